"""A source that changes, its log, and tables that are read into it under one snapshot or two."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow.parquet as parquet
from psycopg import sql

from tests.pipeline.capturing import Capture
from walflow.changelog import CopyFolder, FinishedCopy
from walflow.config import TypeSettings
from walflow.model import quote_identifier
from walflow.pipeline.table_sync.copy_connections import Connections
from walflow.pipeline.table_sync.table_copy import CopyReader
from walflow.source.catalog.published_tables import PublishedTable, published_tables
from walflow.source.connection import connect
from walflow.source.copy.snapshot import OpenSnapshot, keep_snapshot
from walflow.source.stream.replication_connection import Replication

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = Counter[tuple[Any, ...]]

_numbers = itertools.count(1)


class Reading:
    """What a pipeline has when it reads tables. The capture runs, so the log follows."""

    def __init__(
        self,
        uri: str,
        spark: SparkSession,
        capture: Capture,
        *,
        range_bytes: int = 16384,
        connections: int = 2,
    ) -> None:
        self.uri = uri
        self.spark = spark
        self.capture = capture
        self.reader = CopyReader(
            uri,
            "walflow test",
            spark,
            capture.log,
            Connections(connections),
            capture.metrics.pipeline("test"),
            range_bytes,
        )
        self.stop = threading.Event()
        self.progress: list[int] = []

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run the statements, each its own transaction; the last one's rows."""
        with psycopg.connect(self.uri, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def tables(self) -> list[PublishedTable]:
        with connect(self.uri, application_name="test") as connection:
            return published_tables(connection, "p", TypeSettings())

    def table(self, name: str) -> PublishedTable:
        return next(table for table in self.tables() if table.name.name == name)

    @contextmanager
    def snapshot(self) -> Iterator[OpenSnapshot]:
        with Replication(self.uri, application_name="test") as replication:
            made = replication.create_slot(f"snapshot_{next(_numbers)}", temporary=True)
            keeper = keep_snapshot(self.uri, made.snapshot)
        with keeper:
            yield OpenSnapshot(keeper, made.consistent_point)

    def read(self, name: str, snapshot: OpenSnapshot) -> FinishedCopy:
        table = self.table(name)
        return self.reader.read(table, snapshot, progress=self.progress.append, stop=self.stop)

    def ranges_read(self, name: str) -> int:
        """By all calls so far."""
        labels = {"pipeline": "test", "table": f"public.{name}"}
        found = self.capture.metrics.registry.get_sample_value(
            "etl_table_copy_ranges_total", labels
        )
        return int(found or 0)

    def copy_of(self, name: str) -> CopyFolder:
        return self.capture.log.copy(self.table(name).schema.oid)

    def finished(self, name: str) -> int:
        """How many ranges the log knows as read."""
        copy = self.copy_of(name)
        plan = copy.plan()
        return 0 if plan is None else len(copy.finished_ranges(plan))

    def check(self, name: str, copy: FinishedCopy, snapshot: OpenSnapshot) -> Rows:
        """The copy is what the snapshot sees."""
        theirs = self.seen(name, copy.schema.column_names, snapshot)
        ours = rows_of(self.copy_of(name).paths(copy))
        assert copy.position == snapshot.position
        assert copy.schema.version == snapshot.position - 1
        assert copy.rows == ours.total()
        assert (ours - theirs, theirs - ours) == (Counter(), Counter())
        return ours

    def seen(self, name: str, columns: Sequence[str], snapshot: OpenSnapshot) -> Rows:
        """What the snapshot sees, asked in the plainest way."""
        with psycopg.connect(self.uri, autocommit=True) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(
                sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot.keeper.name))
            )
            connection.execute("SET LOCAL timezone = 'UTC'")
            listed = ", ".join(quote_identifier(column) for column in columns)
            return Counter(connection.execute(f"SELECT {listed} FROM {name}").fetchall())


def rows_of(files: Iterable[Path]) -> Rows:
    rows: Rows = Counter()
    for file in files:
        for row in parquet.read_table(file).to_pylist():
            overflow = {name: Decimal(text) for name, text in row.pop("_exact", None) or ()}
            rows[tuple((row | overflow).values())] += 1
    return rows
