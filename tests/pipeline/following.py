"""Watching that a pipeline goes on to follow its tables while things happen to them."""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType
from typing import Any, Self

import psycopg

from tests.conftest import Database
from tests.pipeline.capturing import wait_for
from tests.pipeline.running import WAIT, in_source
from tests.pipeline.shelf import Shelf
from walflow.model import Phase, TableName
from walflow.pipeline.pipeline import Pipeline
from walflow.pipeline.state.table_states import TableState

__all__ = ["Writer", "assert_follows", "find", "named", "on_shelf", "wait_all_ready", "wait_phase"]


class Writer:
    """Goes on to run the statements, each its own transaction, until the block is left.

    ``{n}`` in them counts. What fails because a table is elsewhere just now is run again later.
    """

    def __init__(self, database: Database, *statements: str) -> None:
        self._database = database
        self._statements = statements
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="test-writer")
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        if error is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with self._database.connect() as connection:
                number = 0
                while not self._stop.is_set():
                    for statement in self._statements:
                        number += 1
                        self._try(connection, statement.replace("{n}", str(number)))
                    time.sleep(0.02)
        except BaseException as error:
            self._error = error

    def _try(self, connection: psycopg.Connection[tuple[Any, ...]], statement: str) -> None:
        with contextlib.suppress(
            psycopg.errors.UndefinedTable,
            psycopg.errors.UndefinedColumn,
            psycopg.errors.DeadlockDetected,
        ):
            connection.execute(statement.encode())


def named(table: str) -> TableName:
    schema, dot, name = table.rpartition(".")
    return TableName(schema if dot else "public", name)


def on_shelf(shelf: Shelf, table: str) -> list[tuple[Any, ...]] | None:
    """None: there is no such table."""
    rows = shelf.tables.get(named(table))
    return None if rows is None else sorted(rows.copy().values())


def find(pipeline: Pipeline, table: str) -> TableState | None:
    states = pipeline.status().tables
    return next((state for state in states if state.name == named(table)), None)


def wait_phase(pipeline: Pipeline, table: str, phase: Phase) -> TableState:
    """The table as it was then: a moment later it may be in another one."""
    seen: list[TableState] = []

    def reached() -> bool:
        state = find(pipeline, table)
        if state is not None and state.phase is phase:
            seen.append(state)
        return bool(seen)

    wait_for(reached, WAIT, f"{table} is {phase}: {find(pipeline, table)}", pipeline.check)
    return seen[0]


def wait_all_ready(pipeline: Pipeline) -> None:
    """A table that has caught up is Ready only a moment later."""

    def ready() -> bool:
        return all(state.phase is Phase.READY for state in pipeline.status().tables)

    wait_for(ready, WAIT, "all tables are Ready", pipeline.check)


def assert_follows(pipeline: Pipeline, shelf: Shelf, database: Database, *tables: str) -> None:
    """These tables and no others are Ready, and soon equal to the source's."""

    def ready() -> bool:
        states = pipeline.status().tables
        return {(state.name, state.phase) for state in states} == {
            (named(table), Phase.READY) for table in tables
        }

    wait_for(ready, WAIT, f"{tables} are Ready", pipeline.check)
    for table in tables:
        _assert_equal(pipeline, shelf, database, table)


def _assert_equal(pipeline: Pipeline, shelf: Shelf, database: Database, table: str) -> None:
    deadline = time.monotonic() + WAIT
    while on_shelf(shelf, table) != (expected := in_source(database, table)):
        pipeline.check()
        if time.monotonic() > deadline:
            assert on_shelf(shelf, table) == expected, table
        time.sleep(0.05)
