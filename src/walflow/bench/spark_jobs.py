"""How many jobs and stages Spark runs for something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkJobs", "counted_jobs"]


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
