"""Changes of a table's former schema, in its present one; values as Spark SQL has them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from walflow.evolution import Evolution
from walflow.model import OLD_EXACT, ChangeType, Column
from walflow.spark.changes import EXACT_TYPE, old_type
from walflow.spark.names import literal, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column as Expr
    from pyspark.sql import DataFrame

__all__ = ["in_schema", "missing_value", "sql_value"]


def in_schema(changes: DataFrame, evolution: Evolution) -> DataFrame:
    """Changes (see read_changes) of the schema before, as if the table had had the schema after.

    A row of the former schema has, in columns that were added since, what Postgres shows in them;
    where these are not published (see TableSchema), an update leaves them as they are.
    The schemas must have the same key, but for its columns' names.
    """
    kind = sf.col("_change_type")
    # A delete tells the key only, or where there is none, the whole row.
    has_row = kind != ChangeType.TRUNCATE.value
    if evolution.after.key:
        has_row &= kind != ChangeType.DELETE.value
    values = _values(evolution, evolution.after.columns, "", has_row)
    identity = _values(evolution, evolution.after.identity_columns, "_old.", sf.lit(True))
    old = sf.when(sf.col("_old").isNotNull(), sf.struct(*identity))
    if not identity:
        old = sf.lit(None).cast(old_type(evolution.after))
    return changes.select(
        "_change_type",
        "_lsn",
        "_seq",
        "_timestamp",
        "_xid",
        _unchanged(evolution).alias("_unchanged"),
        old.alias("_old"),
        _overflow(evolution).alias("_exact"),
        *values,
    )


def missing_value(evolution: Evolution, column: Column) -> str:
    """What rows from before it have in a column that was added, in Spark SQL."""
    return sql_value(evolution.missing.get(column.name), column.spark_type)


def sql_value(value: object, spark_type: str) -> str:
    """A Python value as one of the type, in Spark SQL."""
    if isinstance(value, list) and spark_type.startswith("map<"):
        value = dict(value)  # as Arrow shows a map
    return f"CAST({_literal(value)} AS {spark_type})"


def _literal(value: object) -> str:
    """As a text where there is one that casts to exactly this, whatever the session's settings."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case bytes():
            return f"X'{value.hex()}'"
        case dict():
            pairs = (_literal(part) for pair in value.items() for part in pair)
            return f"map({', '.join(pairs)})"
        case list():
            return f"array({', '.join(map(_literal, value))})"
        case date():  # and datetime, which is one
            return f"'{value.isoformat()}'"
        case int() | float() | Decimal():
            return f"'{value}'"
        case str():
            return literal(value)
    raise TypeError(f"no Spark value is known for a {type(value).__name__}")


def _values(
    evolution: Evolution, columns: tuple[Column, ...], prefix: str, has_row: Expr
) -> list[Expr]:
    former = {column.attnum: column for column in evolution.before.columns}
    found = []
    for column in columns:
        was = former.get(column.attnum)
        if was is None:
            value = sf.when(has_row, sf.expr(missing_value(evolution, column)))
        else:
            value = sf.col(prefix + quoted(was.name))
            if was.spark_type != column.spark_type:
                value = value.cast(column.spark_type)
        found.append(value.alias(column.name))
    return found


def _unchanged(evolution: Evolution) -> Expr:
    names = sf.col("_unchanged")
    gone = [column.name for column in evolution.dropped]
    if gone:
        names = sf.filter(names, lambda name: ~name.isin(gone))
    since = {old.name: new.name for old, new in evolution.renamed}
    if since:
        names = sf.transform(names, lambda name: _renamed(name, since))
    unsent = [c.name for c in evolution.added if c.attnum in evolution.after.unpublished]
    if unsent:
        is_update = sf.col("_change_type") == ChangeType.UPDATE.value
        named = sf.coalesce(names, sf.array().cast("array<string>"))
        names = sf.when(is_update, sf.concat(named, sf.array(*map(sf.lit, unsent)))).otherwise(
            names
        )
    return names


def _overflow(evolution: Evolution) -> Expr:
    texts = sf.col("_exact")
    gone = [p + column.name for p in ("", OLD_EXACT) for column in evolution.dropped]
    if gone:
        texts = sf.map_filter(texts, lambda name, _: ~name.isin(gone))
    since = {p + old.name: p + new.name for p in ("", OLD_EXACT) for old, new in evolution.renamed}
    if since:
        texts = sf.transform_keys(texts, lambda name, _: _renamed(name, since))
    return texts.cast(EXACT_TYPE)


def _renamed(name: Expr, since: Mapping[str, str]) -> Expr:
    names = sf.create_map(*(sf.lit(text) for pair in since.items() for text in pair))
    return sf.coalesce(sf.try_element_at(names, name), name)
