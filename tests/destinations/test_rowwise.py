"""Destinations that take Python objects: what they are handed, and that they can be stopped."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Database
from tests.pipeline.running import WAIT, running, settings_for
from walflow.destinations.rowwise import (
    Begin,
    Commit,
    Delete,
    Event,
    Insert,
    Relation,
    Row,
    RowwiseDestination,
    Truncate,
    Update,
)
from walflow.model import Lsn, TableSchema
from walflow.testing.sources import Inexact, Source, make_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Notes(RowwiseDestination):
    """Writes down what it is handed."""

    name = "notes"
    batch_rows = 3

    def __init__(self) -> None:
        self.batches: list[Sequence[Row] | Sequence[Event]] = []

    def truncate_table(self, table: TableSchema) -> None:
        self.batches.clear()

    def insert_rows(self, table: TableSchema, rows: Sequence[Row]) -> None:
        self.batches.append(rows)

    def apply_changes(self, table: TableSchema, changes: Sequence[Event]) -> None:
        self.batches.append(changes)


def test_changes_are_objects(spark: SparkSession, tmp_path: Path) -> None:
    columns = {"id": "bigint", "n": "decimal(12,2)", "big": "string", "at": "timestamp"}
    source = Source(make_schema(columns, ["id"]), tmp_path)
    noon = datetime.datetime(2026, 11, 15, 12, tzinfo=datetime.UTC)
    with source.transaction():
        source.insert(id=1, n=Decimal("1.50"), big="large", at=noon)
        source.update(source.find(id=1), unsent=["big"], n=Inexact(None, "NaN"))
        source.update(source.find(id=1), unsent=["big"], id=2)
        source.delete(source.find(id=2))
        source.truncate()
    notes = Notes()
    notes.write_events(source.events(spark, pieces=2))
    assert [len(batch) for batch in notes.batches] == [3, 2]
    insert, update, move, delete, truncate = (c for batch in notes.batches for c in batch)
    assert isinstance(insert, Insert)
    assert insert.row == {"id": 1, "n": Decimal("1.50"), "big": "large", "at": noon}
    assert isinstance(update, Update)
    assert update.row == {"id": 1, "n": None, "at": noon}
    assert update.old == {"id": 1}
    assert update.unchanged == {"big"}
    assert update.exact == {"n": "NaN"}
    assert isinstance(move, Update)
    assert (move.old, move.row["id"]) == ({"id": 1}, 2)
    assert isinstance(delete, Delete)
    assert delete.old == {"id": 2}
    assert isinstance(truncate, Truncate)
    orders = [change.order for change in (insert, update, move, delete, truncate)]
    assert orders == [(1005, seq) for seq in range(5)]


class Everything(Notes):
    transactions = True


def test_all_events_in_their_order(spark: SparkSession, tmp_path: Path) -> None:
    source = Source(make_schema({"id": "bigint"}, ["id"]), tmp_path)
    with source.transaction():
        for number in range(1, 5):
            source.insert(id=number)
    with source.transaction():
        source.truncate()
    notes = Everything()
    notes.write_events(source.events(spark))
    # A transaction may go on in the next batch.
    assert [[type(event).__name__ for event in batch] for batch in notes.batches] == [
        ["Relation", "Begin", "Insert", "Insert", "Insert"],
        ["Insert", "Commit", "Begin", "Truncate"],
        ["Commit"],
    ]
    relation, begin, *_ = notes.batches[0]
    assert relation == Relation(source.schema)
    assert isinstance(begin, Begin)
    _, first, *_, last = (event for batch in notes.batches[1:] for event in batch)
    assert isinstance(first, Commit)
    assert isinstance(last, Commit)
    assert (first.xid, first.lsn, first.timestamp) == (begin.xid, begin.lsn, begin.timestamp)
    assert (first.lsn, first.changes) == (Lsn(1005), 4)
    assert (last.lsn, last.changes) == (Lsn(1015), 1)
    # Each call says which schema follows, and what came before it is not counted.
    with source.transaction():
        source.insert(id=9)
    notes.batches.clear()
    notes.write_events(source.events(spark))
    names = [type(event).__name__ for batch in notes.batches for event in batch]
    assert names == ["Relation", "Begin", "Insert", "Commit"]


class Slow(Notes):
    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def insert_rows(self, table: TableSchema, rows: Sequence[Row]) -> None:
        super().insert_rows(table, rows)
        self.begun.set()
        assert self.go_on.wait(WAIT)

    def break_off(self) -> None:
        super().break_off()
        self.go_on.set()


def test_a_copy_that_takes_long_is_broken_off(
    database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t SELECT generate_series(1, 10)",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    settings = settings_for(database, tmp_path)
    slow = Slow()
    with running(settings, spark, destination=slow, caught_up=False):
        assert slow.begun.wait(WAIT)
    assert len(slow.batches) == 1
    # The next start begins the hand-over anew, without reading the source again.
    notes = Notes()
    with running(settings, spark, destination=notes):
        assert sorted(row["id"] for batch in notes.batches for row in batch) == [*range(1, 11)]  # type: ignore[index]
