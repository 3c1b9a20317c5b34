"""The change log's files as DataFrames: changes, and rows of copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from walflow.model import ChangeStats, ChangeType, TableSchema
from walflow.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column as Expr
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "EXACT_TYPE",
    "changes_schema",
    "old_type",
    "place",
    "read_changes",
    "read_copy",
    "since_truncate",
]

EXACT_TYPE = "map<string,string>"


def changes_schema(schema: TableSchema) -> str:
    """The schema of a table's rows in the change log, as Spark DDL. Every column may be missing."""
    columns = [
        "`_change_type` string",
        "`_lsn` bigint",
        "`_seq` bigint",
        "`_timestamp` timestamp",
        "`_xid` bigint",
        "`_unchanged` array<string>",
        f"`_old` {old_type(schema)}",
        f"`_exact` {EXACT_TYPE}",
        *(f"{quoted(column.name)} {column.spark_type}" for column in schema.columns),
    ]
    return ", ".join(columns)


def old_type(schema: TableSchema) -> str:
    """The type of ``_old``: of what tells the table's rows apart."""
    fields = [f"{quoted(c.name)}: {c.spark_type}" for c in schema.identity_columns]
    # Parquet has no struct without a field.
    return f"struct<{', '.join(fields) or '_nothing: string'}>"


def read_changes(spark: SparkSession, files: Sequence[str], schema: TableSchema) -> DataFrame:
    """All changes in these files of the log; columns that a file lacks are null."""
    declared = changes_schema(schema)
    if not files:
        return spark.createDataFrame([], declared)
    return spark.read.schema(declared).parquet(*files)


def since_truncate(changes: DataFrame, stats: ChangeStats) -> DataFrame:
    """The changes of rows after the last truncate."""
    if stats.last_truncate is None:
        return changes
    lsn, seq = stats.last_truncate
    after = place() > place(lsn, seq)
    return changes.where(after & (sf.col("_change_type") != ChangeType.TRUNCATE.value))


def place(lsn: int | None = None, seq: int = -1) -> Expr:
    """A change's place in the log, or one to compare it with: the transaction's if no ``seq`` is
    told, which is before all of its changes.

    Not as a number: that would be a part of the code that Spark generates, which would be compiled
    anew for each batch. A struct is handed to the code.
    """
    if lsn is None:
        return sf.struct("_lsn", "_seq")
    numbers = {"_lsn": lsn, "_seq": seq}
    return sf.struct(*(sf.lit(int(n)).cast("bigint").alias(name) for name, n in numbers.items()))


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
