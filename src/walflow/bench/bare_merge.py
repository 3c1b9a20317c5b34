"""The reference for batches: the least work that can apply them, in its fastest known way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from walflow.bench.measure import Timing, measured_with_jvm
from walflow.destinations.base import TableChanges
from walflow.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BareMerge"]


class BareMerge:
    """A table that only gets a MERGE. The changes have one row a key already, and are cached."""

    def __init__(self, spark: SparkSession, identifier: str) -> None:
        self.spark = spark
        self._identifier = identifier

    def timed(self, changes: TableChanges) -> Timing:
        return measured_with_jvm(lambda: self._merge(changes))

    def _merge(self, changes: TableChanges) -> None:
        names = changes.schema.column_names
        rows = self.spark.read.parquet(*changes.files).cache()
        rows.createOrReplaceTempView("bare")
        updates = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in names)
        self.spark.sql(
            f"MERGE INTO {self._identifier} t"
            " USING (SELECT * FROM bare WHERE _change_type IN ('insert', 'update', 'delete')) s"
            " ON t.id = s.id"
            " WHEN MATCHED AND s._change_type = 'delete' THEN DELETE"
            f" WHEN MATCHED THEN UPDATE SET {updates}"
            f" WHEN NOT MATCHED AND s._change_type <> 'delete' THEN INSERT"
            f" ({', '.join(map(quoted, names))})"
            f" VALUES ({', '.join(f's.{quoted(name)}' for name in names)})"
        )
        rows.unpersist()
