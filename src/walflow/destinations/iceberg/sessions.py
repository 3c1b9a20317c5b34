"""Sessions of our own beside the caller's, because what stamps a commit is a session's setting.

As many as calls run at once, however many tables there are: a session costs memory and time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SessionPool", "child_session", "jvm_of"]


def jvm_of(spark: SparkSession) -> Any:
    """The bridge to the session's JVM; None through Spark Connect, which has none."""
    return getattr(spark, "_jvm", None)


def child_session(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """A session of the same Spark with settings of its own: the conf's catalogs, at first."""
    # Through Connect, a session's settings are known to it alone: a new one would lack ours.
    makes: Any = spark
    child: SparkSession = makes.cloneSession() if jvm_of(spark) is None else makes.newSession()
    for name, value in conf.items():
        if name.startswith("spark.sql.catalog."):
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
            session = child_session(self._spark, self._conf)
        try:
            yield session
        except BaseException:
            _end(session)
            raise
        with self._lock:
            self._idle.append(session)

    def close(self) -> None:
        """End the sessions that nobody has borrowed. Repeats safely."""
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            _end(session)


def _end(session: SparkSession) -> None:
    """Tell Connect's server, which would keep it for an hour; a classic one goes with its object.

    Not by ``stop``, which may end the server, and in classic Spark ends Spark.
    """
    if jvm_of(session) is None:
        own: Any = session
        # It may be why the session is ended that the server is gone, or has forgotten it.
        with contextlib.suppress(Exception):
            own.client.release_session()
        own.client.close()
