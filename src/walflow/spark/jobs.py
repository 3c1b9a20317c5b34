"""Jobs that share Spark fairly, and that can be broken off from another thread."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from walflow.spark.connect import is_remote_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BackgroundJobs", "cancel_jobs", "in_pool", "tagged"]

_CANCEL_SECONDS = 0.2


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


class BackgroundJobs:
    """What the function runs on the session, in a thread that nobody waits for until the end. Its
    failures are nobody's concern."""

    def __init__(self, session: SparkSession, name: str, function: Callable[[], None]) -> None:
        self._session = session
        self._function = function
        self._tag = f"{name}-{uuid.uuid4()}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(Exception), tagged(self._session, self._tag):
            self._function()

    def end(self, seconds: float) -> None:
        """Break off what is running; it has ended on return, or the seconds have passed: what
        waits for somebody else, such as a catalog, is no job that could be broken off. Repeats
        safely."""
        deadline = time.monotonic() + seconds
        while self._thread.is_alive() and time.monotonic() < deadline:
            # A JVM that is gone has no jobs; what it was asked for fails by itself.
            with suppress(Exception):
                cancel_jobs(self._session, self._tag)
            self._thread.join(_CANCEL_SECONDS)
