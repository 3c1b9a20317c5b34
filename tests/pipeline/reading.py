"""A source that changes, its log, and tables that are read into it under one snapshot or two."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as parquet
from psycopg import sql

from tests.conftest import Database
from tests.pipeline.capturing import Capture
from walflow.changelog import TableCopy
from walflow.config import TypeSettings
from walflow.model import quote_identifier
from walflow.pipeline.connections import Connections
from walflow.pipeline.reading import CopyReader, ReadCopy
from walflow.source.catalog import PublishedTable, published_tables
from walflow.source.connection import connect
from walflow.source.snapshot import OpenSnapshot, keep_snapshot
from walflow.source.wire import Replication

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = Counter[tuple[Any, ...]]

_numbers = itertools.count(1)


class Reading:
    """What a pipeline has when it reads tables. The capture runs, so the log follows."""

    def __init__(
        self,
        database: Database,
        spark: SparkSession,
        capture: Capture,
        *,
        range_bytes: int = 16384,
        connections: int = 2,
    ) -> None:
        self.database = database
        self.capture = capture
        self.reader = CopyReader(
            database.uri,
            "walflow test",
            spark,
            capture.log,
            Connections(connections),
            capture.metrics.pipeline("test"),
            range_bytes,
        )
        self.stop = threading.Event()
        self.progress: list[int] = []

    def table(self, name: str) -> PublishedTable:
        with connect(self.database.uri, application_name="test") as connection:
            tables = published_tables(connection, "p", TypeSettings())
        return next(table for table in tables if table.name.name == name)

    @contextmanager
    def snapshot(self) -> Iterator[OpenSnapshot]:
        uri = self.database.uri
        with Replication(uri, application_name="test") as replication:
            made = replication.create_slot(f"snapshot_{next(_numbers)}", temporary=True)
            keeper = keep_snapshot(uri, made.snapshot)
        with keeper:
            yield OpenSnapshot(keeper, made.consistent_point)

    def read(self, name: str, snapshot: OpenSnapshot) -> ReadCopy:
        table = self.table(name)
        return self.reader.read(table, snapshot, progress=self.progress.append, stop=self.stop)

    def ranges_read(self, name: str) -> int:
        """By all calls so far."""
        labels = {"pipeline": "test", "table": f"public.{name}"}
        found = self.capture.metrics.registry.get_sample_value(
            "etl_table_copy_ranges_total", labels
        )
        return int(found or 0)

    def copy_of(self, name: str) -> TableCopy:
        return self.capture.log.copy(self.table(name).schema.oid)

    def finished(self, name: str) -> int:
        """How many ranges the log knows as read."""
        copy = self.copy_of(name)
        plan = copy.plan()
        return 0 if plan is None else len(copy.finished_ranges(plan))

    def check(self, name: str, copy: ReadCopy, snapshot: OpenSnapshot) -> Rows:
        """The copy is what the snapshot sees."""
        with self.database.connect() as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(
                sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot.keeper.name))
            )
            connection.execute("SET LOCAL timezone = 'UTC'")
            columns = ", ".join(quote_identifier(column) for column in copy.schema.column_names)
            theirs = Counter(connection.execute(f"SELECT {columns} FROM {name}").fetchall())
        ours = rows_of(copy.files)
        assert copy.position == snapshot.position
        assert copy.rows == ours.total()
        assert (ours - theirs, theirs - ours) == (Counter(), Counter())
        return ours


def rows_of(files: tuple[Path, ...]) -> Rows:
    rows: Rows = Counter()
    for file in files:
        for row in parquet.read_table(file).to_pylist():
            row.pop("_exact", None)
            rows[tuple(row.values())] += 1
    return rows
