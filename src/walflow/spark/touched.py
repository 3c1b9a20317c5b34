"""The keys that changes touched: what they were before, and what they were after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from walflow.model import OLD_EXACT, ChangeStats, ChangeType, Lsn, TableSchema
from walflow.spark.changes import place, read_changes
from walflow.spark.names import quoted
from walflow.spark.row_identity import may_be_inexact

if TYPE_CHECKING:
    from pyspark.sql import Column as Expr
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["touched_keys"]


def touched_keys(
    spark: SparkSession,
    files: Sequence[str],
    schema: TableSchema,
    stats: ChangeStats,
    after: Lsn,
    upto: Lsn,
) -> DataFrame:
    """Every key that a transaction that ended in ``(after, upto]`` gave to a row or took from one.

    For key column number n a column ``v<n>`` with the value, and ``e<n>`` with its exact text
    where it has one. ``files`` are the log's, of one schema version, and ``stats`` what is in them.
    """
    # A position is the end of a transaction, `_lsn` the place of its commit, just before.
    inside = (place() > place(after)) & (place() < place(upto))
    changes = read_changes(spark, files, schema).where(inside)
    changes = changes.where(sf.col("_change_type") != ChangeType.TRUNCATE.value)
    keys = changes.select(*_key(schema, stats, "", ""))
    if stats.key_changes:
        moved = changes.where("`_old` IS NOT NULL")
        keys = keys.union(moved.select(*_key(schema, stats, "_old.", OLD_EXACT)))
    return keys.distinct()


def _key(schema: TableSchema, stats: ChangeStats, place: str, prefix: str) -> list[Expr]:
    columns = []
    for number, column in enumerate(schema.key_columns):
        columns.append(sf.col(place + quoted(column.name)).alias(f"v{number}"))
        if stats.overflow and may_be_inexact(column):
            text = sf.try_element_at(sf.col("_exact"), sf.lit(prefix + column.name))
            columns.append(text.alias(f"e{number}"))
    return columns
