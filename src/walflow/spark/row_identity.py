"""What tells rows apart: their values, and the exact texts of those that a type cannot hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from walflow.model import OLD_EXACT, Column
from walflow.spark.changes import EXACT_TYPE

if TYPE_CHECKING:
    from pyspark.sql import Column as Expr

__all__ = [
    "has_zeros",
    "identity_fields",
    "identity_of",
    "may_be_inexact",
    "no_overflow",
    "only_old_texts",
    "overflow_texts",
    "texts_map",
    "without_old_texts",
    "zeros_of",
    "zeros_sql",
]

# Types with Postgres values that they cannot hold; two such keys may look the same. (Of an array it
# is the shape: its dimensions and lower bounds.)
_INEXACT = ("date", "timestamp", "decimal", "array")
_FLOATS = ("float", "double")
_NUMERIC = 1700  # of which a double (see types.numeric) holds but the nearest


def identity_fields(
    columns: Sequence[Column], values: Mapping[str, Expr], overflow: Mapping[str, Expr] | None
) -> list[Expr]:
    """What tells rows apart: the values, and the exact text of those that their type could not
    hold."""
    fields = [_comparable(column, values[column.name]) for column in columns]
    if overflow is not None:
        fields += [overflow[column.name] for column in columns if may_be_inexact(column)]
    return fields


def identity_of(
    columns: Sequence[Column], values: Mapping[str, Expr], overflow: Mapping[str, Expr] | None
) -> Expr:
    """The same as one struct that can be grouped and joined by."""
    fields = identity_fields(columns, values, overflow)
    return sf.struct(*(field.alias(f"f{number}") for number, field in enumerate(fields)))


def may_be_inexact(column: Column) -> bool:
    """Whether Postgres has values for this column that its Spark type cannot hold."""
    if column.type.base == _NUMERIC and column.spark_type in _FLOATS:
        return True
    return any(inexact in column.spark_type for inexact in _INEXACT)


def _comparable(column: Column, value: Expr) -> Expr:
    """The value in a form that Spark can compare: maps have no order of their own."""
    if not column.spark_type.startswith("map<"):
        return value
    return sf.sort_array(sf.map_entries(value))


def has_zeros(column: Column) -> bool:
    """Whether the column may have -0 and 0, which Spark, like Postgres, takes for equal. As a key
    they are the same, as part of a whole row they are not."""
    return _element(column)[0] in _FLOATS


def _element(column: Column) -> tuple[str, int]:
    """The type of a column's single values, and in how many arrays they stand."""
    bare = column.spark_type.replace("array<", "").rstrip(">")
    return bare, column.spark_type.count("array<")


def zeros_of(column: Column, value: Expr) -> Expr:
    """What tells them apart in a value of such a column."""

    def text(value: Expr, depth: int) -> Expr:
        if depth == 0:
            return sf.when(value == 0, value.cast("string"))
        return sf.transform(value, lambda element: text(element, depth - 1))

    return text(value, _element(column)[1])


def zeros_sql(column: Column, value: str) -> str:
    """The same, in SQL."""

    def text(value: str, depth: int) -> str:
        if depth == 0:
            return f"CASE WHEN {value} = 0 THEN cast({value} AS string) END"
        element = f"_walflow_{depth}"  # no column is called so
        return f"transform({value}, {element} -> {text(element, depth - 1)})"

    return text(value, _element(column)[1])


def overflow_texts(columns: Sequence[Column], prefix: str = "") -> dict[str, Expr]:
    """By column, the text that ``_exact`` has for it, or null."""
    return {c.name: sf.try_element_at(sf.col("_exact"), sf.lit(prefix + c.name)) for c in columns}


def without_old_texts(overflow: Expr) -> Expr:
    """The exact texts of the new row; null rather than empty."""
    kept = sf.map_filter(overflow, lambda name, _: ~sf.startswith(name, sf.lit(OLD_EXACT)))
    return sf.when(sf.size(kept) > 0, kept)


def only_old_texts(overflow: Expr) -> Expr:
    """The exact texts of the old row, under the columns' own names; null rather than empty."""
    kept = sf.map_filter(overflow, lambda name, _: sf.startswith(name, sf.lit(OLD_EXACT)))
    named = sf.transform_keys(kept, lambda name, _: sf.substring(name, len(OLD_EXACT) + 1, 1 << 20))
    return sf.when(sf.size(kept) > 0, named)


def texts_map(texts: Sequence[tuple[str, Expr]]) -> Expr:
    """A map of the texts that are there; null rather than empty."""
    entries = sf.filter(
        sf.array(*(sf.struct(sf.lit(name).alias("key"), t.alias("value")) for name, t in texts)),
        lambda entry: entry["value"].isNotNull(),
    )
    return sf.when(sf.size(entries) > 0, sf.map_from_entries(entries))


def no_overflow() -> Expr:
    return sf.lit(None).cast(EXACT_TYPE)
