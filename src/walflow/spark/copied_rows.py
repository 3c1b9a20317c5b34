"""Rows of a copy, as executors left them in Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from walflow.model import TableSchema
from walflow.spark.changes import EXACT_TYPE
from walflow.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_copy"]


def read_copy(
    spark: SparkSession, files: Sequence[str], table: TableSchema, overflow: bool
) -> DataFrame:
    """The rows, with a column ``_exact`` if ``exact``, or if there is no other; no files give no
    rows."""
    columns = [f"{quoted(column.name)} {column.spark_type}" for column in table.columns]
    if overflow or not columns:
        columns.append(f"_exact {EXACT_TYPE}")
    schema = ", ".join(columns)
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*files)
