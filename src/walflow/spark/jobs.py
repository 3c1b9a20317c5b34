"""Jobs that share Spark fairly, and that can be broken off from another thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from walflow.spark.connect import is_remote_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["cancel_jobs", "in_pool", "tagged"]


@contextmanager
def tagged(session: SparkSession, tag: str) -> Iterator[None]:
    """What this thread runs on the session inside can be cancelled by the tag.

    A tag is any text without a comma. Several threads may use the same one.
    """
    # Not SparkSession.addTag for both: outside Spark Connect, the tags that it adds are known to
    # the thread that has added them only, and cancelling is for the others.
    if is_remote_session(session):
        session.addTag(tag)
        try:
            yield
        finally:
            session.removeTag(tag)
        return
    context = session.sparkContext
    context.addJobTag(tag)
    # A Python worker that waits for the source does not look whether its task was cancelled.
    context.setInterruptOnCancel(True)
    try:
        yield
    finally:
        context.setInterruptOnCancel(False)
        context.removeJobTag(tag)


@contextmanager
def in_pool(session: SparkSession, pool: str) -> Iterator[None]:
    """What this thread runs inside gets as large a part of Spark as every other pool's work, not
    what earlier jobs leave over. A Spark Connect server shares as it is set up to."""
    if is_remote_session(session):
        yield
        return
    context = session.sparkContext
    context.setLocalProperty("spark.scheduler.pool", pool)
    try:
        yield
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]


def cancel_jobs(session: SparkSession, tag: str) -> None:
    """Break off what runs under the tag, from any thread; its callers get Spark's exception.

    Returns at once. Jobs that start later under the same tag are not affected. The session is the
    one that the jobs were tagged on.
    """
    if is_remote_session(session):
        session.interruptTag(tag)
    else:
        session.sparkContext.cancelJobsWithTag(tag)
