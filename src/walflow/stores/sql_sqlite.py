"""A store in SQLite, which needs no server: one file, for several threads and processes."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import tenacity
from sqlalchemy.dialects import sqlite

from walflow.errors import StoreError, StoreForeign
from walflow.stores.sql_database import Database

__all__ = ["SqliteDatabase"]

_BUSY_SECONDS = 30.0
"""How long a statement waits for another process's transaction."""

# (words, what is wrong, what to do)
_MEANINGS: tuple[tuple[str, type[StoreError], str], ...] = (
    (
        "file is not a database",
        StoreForeign,
        "Name another file in store.uri, or remove this one if it is of no use.",
    ),
    ("locked", StoreError, "Another process has been writing to it for too long: try again."),
    ("disk is full", StoreError, "Free space where the file is. Nothing is lost: try again."),
    ("readonly", StoreError, "Give this user the right to write the file and its folder."),
    (
        "unable to open",
        StoreError,
        "Name another folder (--log FOLDER, or store.uri), or give this user the right to make "
        "files there.",
    ),
    (
        "malformed",
        StoreError,
        "The file is damaged. Put a copy back, or remove it: a pipeline that finds no state asks "
        "the destination how far each table is.",
    ),
)


class SqliteDatabase(Database):
    """A file in WAL mode, so that readers never wait for a writer."""

    # Of this machine, in milliseconds; a writer holds the lock before it asks.
    clock = sa.literal_column("((julianday('now') - 2440587.5) * 86400.0)", sa.Double)

    def __init__(self, path: Path) -> None:
        """Creates the file and its folder if they are missing."""
        engine = sa.create_engine(
            sa.URL.create("sqlite", database=str(path)),
            # SQLAlchemy's own events begin transactions, not the driver.
            connect_args={"isolation_level": None, "timeout": _BUSY_SECONDS},
            hide_parameters=True,
        )
        sa.event.listen(engine, "connect", _prepare)
        sa.event.listen(engine, "begin", _begin)
        super().__init__(engine, str(path))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self.error(f"unable to open the folder: {error.strerror}", "be opened") from error

    def _writing_engine(self) -> sa.Engine:
        return self._engine.execution_options(walflow_writes=True)

    def error(self, cause: str, doing: str) -> StoreError:
        if cause.endswith("unable to open database file"):
            # SQLite keeps the reason for itself.
            file = Path(self.where)
            closed = [place for place in (file.parent, file) if os.path.lexists(place)]
            if not all(os.access(place, os.R_OK | os.W_OK) for place in closed):
                cause += " (permission denied)"
        for words, kind, hint in _MEANINGS:
            if words in cause:
                return kind(f"the store {self.where} cannot {doing}: {cause}", hint=hint)
        return StoreError(f"the store {self.where} cannot {doing}: {cause}")

    def insert(self, table: sa.Table) -> Any:
        return sqlite.insert(table)

    def lock(self, connection: sa.Connection, name: str) -> None:
        """A transaction that writes locks the whole file."""

    def make_schema(self, connection: sa.Connection) -> None:
        """Does nothing: the file is enough."""


def _prepare(driver: sqlite3.Connection, _record: object) -> None:
    _use_wal(driver)
    # In WAL mode the default of some builds, NORMAL, may lose the last transactions in a power
    # loss; the pipeline acts on a state once it was written, so it has to stay written.
    driver.execute("PRAGMA synchronous = FULL")


def _use_wal(driver: sqlite3.Connection) -> None:
    # The file remembers it. SQLite does not wait here if another process is doing the same.
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(
            lambda error: isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
        ),
        stop=tenacity.stop_after_delay(_BUSY_SECONDS),
        wait=tenacity.wait_fixed(0.01),
        reraise=True,
    )
    retrying(driver.execute, "PRAGMA journal_mode = WAL")


def _begin(connection: sa.Connection) -> None:
    # A transaction that reads first and then writes would fail, not wait, if another one wrote
    # in between: those that write say so when they begin.
    writes = connection.get_execution_options().get("walflow_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
