"""Sessions of our own beside the caller's, because what stamps a commit is a session's setting.

As many as calls run at once, however many tables there are: a session costs memory and time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from walflow.spark.session import child_session, end_child_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SessionPool", "lake_session"]


def lake_session(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """A session of the same Spark with the conf."""
    child = child_session(spark)
    for name, value in conf.items():
        child.conf.set(name, value)
    return child


class SessionPool:
    """Lends child sessions. It has no limit: who calls must never wait for another call."""

    def __init__(self, spark: SparkSession, conf: Mapping[str, str]) -> None:
        self._spark = spark
        self._conf = conf
        self._lock = threading.Lock()
        self._idle: list[SparkSession] = []

    @contextmanager
    def borrowed(self) -> Iterator[SparkSession]:
        """A session for the caller alone, who leaves it as it was. After an error it is not used
        again: nobody knows what state it is in, or whether its server still knows it."""
        with self._lock:
            session = self._idle.pop() if self._idle else None
        if session is None:
            session = lake_session(self._spark, self._conf)
        try:
            yield session
        except BaseException:
            end_child_session(session)
            raise
        with self._lock:
            self._idle.append(session)

    def close(self) -> None:
        """End the sessions that nobody has borrowed. Repeats safely."""
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            end_child_session(session)
