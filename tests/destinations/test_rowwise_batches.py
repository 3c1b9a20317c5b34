"""Destinations that take Python objects, without Spark: exact texts, ending and beginning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from walflow.destinations.base import TableChanges
from walflow.destinations.rowwise import Change, CopiedRow, RowwiseDestination
from walflow.errors import Stopped
from walflow.model import ChangeStats, Lsn, Span, TableSchema
from walflow.testing.sources import make_schema

TABLE = make_schema({"id": "int", "d": "date"}, ["id"])


class Kept(RowwiseDestination):
    name = "kept"

    def __init__(self) -> None:
        self.rows: list[CopiedRow] = []
        self.changes: list[Change] = []

    def truncate_table(self, table: TableSchema) -> None:
        self.rows.clear()

    def insert_rows(self, table: TableSchema, rows: Sequence[CopiedRow]) -> None:
        self.rows.extend(rows)
        self.break_off()

    def apply_changes(self, table: TableSchema, changes: Sequence[Change]) -> None:
        self.changes.extend(changes)
        self.break_off()


def test_copied_rows_have_their_exact_texts() -> None:
    kept = Kept()
    ids = {"id": pa.array([1, 2], pa.int32()), "d": pa.array([None, None], pa.date32())}
    kept.write_row_batch(TABLE, pa.record_batch(ids))
    texts = pa.array([[("d", "infinity")], None], pa.map_(pa.string(), pa.string()))
    kept.write_row_batch(TABLE, pa.record_batch({**ids, "_exact": texts}))
    assert kept.rows == [{"id": 1, "d": None}, {"id": 2, "d": None}] * 2
    assert [row.exact for row in kept.rows] == [{}, {}, {"d": "infinity"}, {}]


def test_rows_without_columns_are_counted() -> None:
    kept, texts = Kept(), pa.nulls(3, pa.map_(pa.string(), pa.string()))
    kept.write_row_batch(make_schema({}, []), pa.record_batch({"_exact": texts}))
    assert kept.rows == [{}, {}, {}]


def changes(*ids: int) -> pa.RecordBatch:
    nothing = dict.fromkeys(("_timestamp", "_xid", "_unchanged", "_old", "_exact", "d"))
    told = {"_change_type": "delete", "_lsn": 5, **nothing}
    return pa.RecordBatch.from_pylist([{**told, "_seq": id, "id": id} for id in ids])


def test_it_ends_between_two_batches_and_can_be_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.record_batch({"id": [1], "d": pa.array([None], pa.date32())})
    brought: list[pa.RecordBatch] = []
    monkeypatch.setattr("walflow.spark.batches.arrow_batches", lambda *_, **__: iter(brought))
    monkeypatch.setattr(TableChanges, "changes", None)
    frame: Any = None
    events = TableChanges(TABLE, (), ChangeStats(rows=2), frame, Span(Lsn(1), Lsn(9)))
    kept = Kept()
    for _ in ("the first pipeline", "the second"):
        kept.startup()
        brought[:] = [changes(1), changes(2)]
        with pytest.raises(Stopped, match=r"while changes of public\.t were written"):
            kept.write_events(events)
        # A call with one batch is not broken off: it is written as quickly as that is told.
        brought[:] = [changes(3)]
        kept.write_events(events)
        kept.startup()
        brought[:] = [rows, rows]
        with pytest.raises(Stopped, match=r"while public\.t was written"):
            kept.write_table_rows(TABLE, frame)
    assert [change.seq for change in kept.changes] == [1, 3] * 2
    assert [row["id"] for row in kept.rows] == [1] * 2
