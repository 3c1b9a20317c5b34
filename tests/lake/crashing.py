"""Crashes between any two steps that change something in a lake.

Steps are what a format commits, and statements that do. When the chosen one is reached, everything
that would change the lake fails from then on, in all threads, until the crash is over: a process
that has died writes nothing more.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from walflow.destinations.delta import DeltaFormat
from walflow.destinations.iceberg import IcebergFormat
from walflow.destinations.iceberg.columnar import IcebergTable

__all__ = ["Crash", "Crashes"]

_STEPS = (
    *("create", "replace", "adopt", "append", "overwrite", "touch"),
    *("add_column", "change_columns", "alter", "rename", "drop"),
)
_STATEMENT = re.compile(r"\s*(MERGE|UPDATE|DELETE|INSERT|ALTER|CREATE|DROP)\b", re.IGNORECASE)


class Crash(BaseException):
    """Not an Exception: nobody is to handle it."""


class Crashes:
    """Made once a test: from then on, steps are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from pyspark.sql import SparkSession

        self._lock = threading.Lock()
        self._left: int | None = None
        self._table = ""
        self.happened = ""
        """At which step it did, if it did."""
        steps = [(kind, name) for kind in (IcebergFormat, DeltaFormat) for name in _STEPS]
        for kind, name in (*steps, (IcebergTable, "commit")):
            step = self._step(getattr(kind, name), lambda *given, name=name: name)
            monkeypatch.setattr(kind, name, step)
        sql = self._step(
            SparkSession.sql,
            lambda session, query, *rest: query if _STATEMENT.match(query) else None,
        )
        monkeypatch.setattr(SparkSession, "sql", sql)

    @contextmanager
    def after(self, steps: int, table: str = "") -> Iterator[None]:
        """Crash when so many steps (that mention the table) have begun or ended."""
        with self._lock:
            self._left, self._table, self.happened = steps, table, ""
        try:
            yield
        finally:
            with self._lock:
                self._left = None

    def _step(self, run: Callable[..., Any], what: Callable[..., str | None]) -> Callable[..., Any]:
        @functools.wraps(run)
        def step(*given: Any, **named: Any) -> Any:
            told = what(*given, **named)
            # A statement that is part of a step counts, too: a step may be several commits.
            if told is None or self._left is None or not self._concerns(told, given):
                return run(*given, **named)
            if threading.current_thread().name == "walflow-warm-up":
                return run(*given, **named)
            self._reach(f"before {told}")
            result = run(*given, **named)
            self._reach(f"after {told}")
            return result

        return step

    def _concerns(self, told: str, given: tuple[Any, ...]) -> bool:
        return self._table in told or any(self._table in repr(value) for value in given[1:])

    def _reach(self, told: str) -> None:
        with self._lock:
            if self._left is None:
                return
            if not self.happened and self._left > 0:
                self._left -= 1
                return
            self.happened = self.happened or told
        raise Crash(told)
