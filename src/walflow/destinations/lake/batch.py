"""One batch of one table: what every mode is given, and what all of them share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from walflow.destinations.base import TableChanges
from walflow.destinations.lake.format import Constant, LakeFormat
from walflow.destinations.lake.merging import our_values
from walflow.destinations.lake.owner import Stamp
from walflow.destinations.lake.table_schema import EXACT, LakeTableSchema
from walflow.model import Lsn
from walflow.spark.changes import EXACT_TYPE
from walflow.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column as Expr
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Batch", "append_rows", "kept", "only_inserts", "stored_rows", "stored_values"]


@dataclass(frozen=True, slots=True)
class Batch:
    """The changes of one table, to be written in exactly one commit. The session that reads them
    is this batch's alone."""

    format: LakeFormat
    lake_schema: LakeTableSchema
    """As the table is, with or without the column of overflow texts."""
    changes: TableChanges
    begins: Lsn
    """The table's position: there are no changes from before it."""
    stamp: Stamp
    """Of the commit."""

    @property
    def spark(self) -> SparkSession:
        return self.changes.spark

    @property
    def identifier(self) -> str:
        return self.format.identifier(self.lake_schema.name)

    def with_overflow(self, needed: bool) -> Batch:
        """The batch of a table that has the column of overflow texts, if rows need it."""
        if self.lake_schema.overflow or not needed:
            return self
        self.format.add_column(self.spark, self.lake_schema.name, EXACT, EXACT_TYPE)
        return replace(self, lake_schema=replace(self.lake_schema, overflow=True))

    def with_overflow_for(self, rows: DataFrame, column: str) -> Batch:
        """The same, if a row has an overflow text in this column."""
        if self.lake_schema.overflow or not self.changes.stats.overflow:
            return self
        return self.with_overflow(not rows.where(f"{column} IS NOT NULL").isEmpty())


def stored_rows(
    rows: DataFrame, lake_schema: LakeTableSchema, ours: Mapping[str, Expr | Constant]
) -> DataFrame:
    """Rows of the source's columns (and ``_exact``, if some need it) with all that the table has,
    in its order. ``ours``: what is in our columns, null if it is not said."""
    values: dict[str, Expr] = {
        name: sf.col(quoted(name)) for name in lake_schema.schema.column_names
    }
    for column in lake_schema.ours:
        value = ours.get(column.name)
        given = value if _is_expression(value) else sf.lit(value)
        values[column.name] = given.cast(column.spark_type)  # type: ignore[union-attr]
    if lake_schema.overflow:
        values[EXACT] = (
            sf.col("_exact") if "_exact" in rows.columns else sf.lit(None).cast(EXACT_TYPE)
        )
    return rows.select(*(value.alias(name) for name, value in values.items()))


def stored_values(table: DataFrame, lake_schema: LakeTableSchema, *more: Expr) -> DataFrame:
    """Rows as they are stored, as ``row`` (a struct of the source's columns) and ``exact``, with
    what more is wanted of them."""
    return table.select(
        sf.struct(*(sf.col(quoted(name)) for name in lake_schema.schema.column_names)).alias("row"),
        (sf.col(EXACT) if lake_schema.overflow else sf.lit(None).cast(EXACT_TYPE)).alias("exact"),
        *more,
    )


def only_inserts(changes: TableChanges) -> bool:
    """Whether each change is a whole row that was not there before."""
    stats = changes.stats
    return stats.inserts == stats.rows and not changes.truncated and not stats.unchanged


def append_rows(batch: Batch, ours: Mapping[str, Expr]) -> LakeTableSchema:
    """Append the rows of a batch that only has inserts: the position proves that none of them is
    there yet. ``ours``: what is in the mode's own columns."""
    batch = batch.with_overflow(batch.changes.stats.overflow)
    lake_schema = batch.lake_schema
    rows = batch.changes.changes.withColumnRenamed("_change_type", "_kind")
    metadata = {
        name: sf.col(value) for name, value in our_values(lake_schema).items() if name not in ours
    }
    batch.format.append(stored_rows(rows, lake_schema, {**metadata, **ours}), lake_schema.name)
    return lake_schema


def _is_expression(value: object) -> bool:
    from pyspark.sql import Column as Expr

    return isinstance(value, Expr)


@contextmanager
def kept(frame: DataFrame) -> Iterator[DataFrame]:
    """The frame, computed once however often it is read inside."""
    from pyspark import StorageLevel

    frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield frame
    finally:
        frame.unpersist()
