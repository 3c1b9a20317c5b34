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
from walflow.destinations.base import Events, TablesFailed
from walflow.destinations.rowwise import (
    Change,
    Delete,
    Insert,
    Row,
    RowwiseDestination,
    Truncate,
    Update,
)
from walflow.errors import DestinationError
from walflow.model import TableSchema
from walflow.testing.sources import Inexact, Source, make_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Notes(RowwiseDestination):
    """Writes down what it is handed."""

    name = "notes"
    batch_rows = 3

    def __init__(self) -> None:
        self.batches: list[Sequence[Row] | Sequence[Change]] = []
        self.refused: TableSchema | None = None

    def truncate_table(self, table: TableSchema) -> None:
        self.batches.clear()

    def insert_rows(self, table: TableSchema, rows: Sequence[Row]) -> None:
        self.batches.append(rows)

    def apply_changes(self, table: TableSchema, changes: Sequence[Change]) -> None:
        if table == self.refused:
            raise DestinationError("refused")
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


def test_of_several_tables_those_that_fail_are_told(spark: SparkSession, tmp_path: Path) -> None:
    notes = Notes()
    batches = []
    for name in ("one", "two"):
        source = Source(make_schema({"id": "int"}, ["id"], name), tmp_path)
        with source.transaction():
            source.insert(id=1)
        batches.append(source.events(spark))
    first, second = (batch.tables[0] for batch in batches)
    notes.refused = first.schema
    with pytest.raises(TablesFailed, match=r"public.one: refused") as failed:
        notes.write_events(Events(batches[0].span, (first, second)))
    assert list(failed.value.failures) == [first.schema.name]
    assert len(notes.batches) == 1


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
