"""The reference for batches: a bare MERGE, and how many jobs Spark runs for something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from walflow.bench.measure import Timing, measured_with_jvm
from walflow.destinations.base import TableChanges
from walflow.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BareMerge", "SparkJobs", "counted_jobs"]


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


@dataclass(frozen=True, slots=True)
class SparkJobs:
    jobs: int
    stages: int
    """Those that had something to do."""


def counted_jobs(spark: SparkSession, work: Callable[[], object]) -> SparkJobs:
    """Run it while nothing else runs on this Spark."""
    context: Any = spark.sparkContext._jsc.sc()
    first = context.dagScheduler().numTotalJobs()
    work()
    last = context.dagScheduler().numTotalJobs()
    # What is known of a job comes by an event, which may still be on its way.
    context.listenerBus().waitUntilEmpty()
    tracker = spark.sparkContext.statusTracker()
    stages = set()
    for job in range(first, last):
        if (info := tracker.getJobInfo(job)) is not None:
            stages |= set(info.stageIds)
    done = 0
    for stage in stages:
        about = tracker.getStageInfo(stage)
        done += about is not None and about.numCompletedTasks > 0
    return SparkJobs(last - first, done)
