"""The base of databases that can hold a store, with what differs between SQLite and Postgres."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from walflow.errors import StoreError

__all__ = ["Database"]


class Database(ABC):
    """Transactions on an engine. The database's errors become ours, without secrets."""

    clock: sa.ColumnElement[float]
    """The database's own time in seconds. It is read while the row is locked that it is compared
    with."""

    def __init__(self, engine: sa.Engine, where: str, schema: str | None = None) -> None:
        """``where``: the database's name in messages. ``schema``: the schema of the tables."""
        self.where = where
        self.schema = schema
        self._engine = engine
        self._closed = False

    @contextmanager
    def reading(self, doing: str) -> Iterator[sa.Connection]:
        """A transaction that sees one state of the database. ``doing`` completes "cannot …"."""
        with self._transaction(self._engine, doing) as connection:
            yield connection

    @contextmanager
    def writing(self, doing: str) -> Iterator[sa.Connection]:
        """A transaction that is durable, even after a power loss, if the block ends without
        error."""
        with self._transaction(self._writing_engine(), doing) as connection:
            yield connection

    @contextmanager
    def _transaction(self, engine: sa.Engine, doing: str) -> Iterator[sa.Connection]:
        if self._closed:
            raise StoreError(
                f"the store {self.where} cannot {doing}: it was closed", hint="Open it again."
            )
        try:
            with engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            # What SQLAlchemy adds to the driver's words is the statement, which helps nobody.
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise self.error(" ".join(str(cause).split()), doing) from error

    def close(self) -> None:
        """Repeats safely."""
        self._closed = True
        self._engine.dispose()

    def _writing_engine(self) -> sa.Engine:
        return self._engine

    @abstractmethod
    def error(self, cause: str, doing: str) -> StoreError:
        """The error for the driver's message."""

    @abstractmethod
    def insert(self, table: sa.Table) -> Any:
        """An INSERT that supports ON CONFLICT."""

    @abstractmethod
    def lock(self, connection: sa.Connection, name: str) -> None:
        """Make other transactions that use this name wait until this one has ended."""

    @abstractmethod
    def make_schema(self, connection: sa.Connection) -> None:
        """Create the schema or folder for the tables, if it is missing."""
