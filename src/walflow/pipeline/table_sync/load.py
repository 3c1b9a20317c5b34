"""From the copy's files to the destination's table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from walflow.destinations.base import AdoptsFiles, Destination, Positioned, SwapsTables
from walflow.model import TableName, TableSchema
from walflow.pipeline.table_sync.table_copy import FinishedCopy
from walflow.spark.copied_rows import read_copy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["hand_over", "shadow_of"]


def hand_over(
    destination: Destination, spark: SparkSession, table: TableSchema, copy: FinishedCopy
) -> None:
    """Make the destination's table from the copy, in the way that shows readers least of it.

    May be repeated, whether it failed or not. ``table`` has the destination's name.
    """
    if isinstance(destination, AdoptsFiles):
        destination.adopt_files(table, copy.files, copy.position, copy.overflow)
        return
    swaps = isinstance(destination, SwapsTables)
    target = shadow_of(table) if swaps else table
    destination.truncate_table(target)
    rows = read_copy(spark, [str(path) for path in copy.files], table, copy.overflow)
    destination.write_table_rows(target, rows)
    if isinstance(destination, Positioned):
        destination.mark_applied(target, copy.position)
    if isinstance(destination, SwapsTables):
        destination.swap_table(target, table)


def shadow_of(table: TableSchema) -> TableSchema:
    """The table that a copy is written to before it takes the table's place."""
    return replace(table, name=TableName(table.name.schema, f"{table.name.name}__walflow_new"))
