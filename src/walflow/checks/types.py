"""The columns' types: what they become, and which values do not fit there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from walflow.checks.findings import Area, Finding, ok, warning
from walflow.config import TypeSettings
from walflow.model import Column
from walflow.source.catalog.published_tables import PublishedTable
from walflow.source.codec.values import becomes_text, innermost

__all__ = ["check_types"]

_AREA = Area.TABLES
_NAMED = 8
"""How many columns are named on a line."""

_NUMERIC = 1700
_TIMES = ("date", "timestamp", "timestamp_ntz")


def check_types(tables: Sequence[PublishedTable], settings: TypeSettings) -> Iterator[Finding]:
    columns = [(table, column) for table in tables for column in table.schema.columns]
    texts, numbers, times = [], [], []
    for table, column in columns:
        shown = f"{table.name}.{column.name} ({column.type.name})"
        if innermost(column.type).base == _NUMERIC and not _is_declared(column):
            numbers.append(shown)
        elif becomes_text(column.type, settings):
            texts.append(shown)
        elif _element(column.spark_type) in _TIMES:
            times.append(shown)
    others = len(texts) + len(numbers)
    yield ok(_AREA, "types", f"{len(columns) - others} of {len(columns)} columns keep their types")
    if texts:
        yield ok(_AREA, "types", f"these become strings, as Postgres prints them: {_listed(texts)}")
    if numbers:
        yield _numbers(numbers, settings)
    if times:
        yield ok(
            _AREA,
            "types",
            f"these hold the years 1 to 9999 (others become the nearest value; {_EXACTLY}): "
            f"{_listed(times)}",
            detail=True,
        )
    for table in tables:
        pairs = ", ".join(f"{c.name} {c.type.name} → {c.spark_type}" for c in table.schema.columns)
        yield ok(_AREA, "types", f"{table.name}: {pairs}", detail=True)


_EXACTLY = "their exact text is kept in the column _EXACT"


def _numbers(columns: list[str], settings: TypeSettings) -> Finding:
    """Numerics without precision, or with one that is too large."""
    become = f"numerics without precision become {settings.numeric}"
    listed = _listed(columns)
    if settings.numeric == "string":
        return ok(_AREA, "types", f"{become}: {listed}")
    lost = "the nearest one" if settings.numeric == "double" else "NULL"
    message = f"{become}, and values that do not fit become {lost} ({_EXACTLY}): {listed}"
    if "numeric" in settings.model_fields_set:
        return ok(_AREA, "types", message)
    return warning(
        _AREA,
        "types",
        message[:1].upper() + message[1:] + ".",
        "Give the columns a precision: ALTER TABLE … ALTER COLUMN … TYPE numeric(38,10); or choose "
        f"their type: --set 'types.numeric={settings.numeric}' (or double, or string).",
    )


def _is_declared(column: Column) -> bool:
    """Whether the numeric's own precision made its type."""
    from walflow.source.codec.decimals import declared_decimal

    return declared_decimal(innermost(column.type).typmod) is not None


def _element(spark_type: str) -> str:
    while spark_type.startswith("array<"):
        spark_type = spark_type[len("array<") : -1]
    return spark_type


def _listed(columns: list[str]) -> str:
    more = len(columns) - _NAMED
    return ", ".join(columns[:_NAMED]) + (f" and {more} more (-v shows all)" if more > 0 else "")
