"""Segments: what is sealed is what was appended, in files of the right schema and size."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.changelog.rows import (
    EXACT,
    OLD,
    START,
    files_in_log,
    files_on_disk,
    inserts,
    open_log,
    read,
    seal_rows,
    stats_of,
    table,
    with_column,
)
from walflow.changelog import writer as writer_module
from walflow.errors import LogError
from walflow.model import ChangeStats, Lsn, Span


def test_sealed_rows_come_back_after_reopening(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    writer = log.writer()
    first, second = inserts(table(1), 1100, 3), inserts(table(1), 1150, 2, first=3)
    writer.append(table(1), first, stats_of(first))
    writer.append(table(2), inserts(table(2), 1100, 1), ChangeStats(rows=1, inserts=1))
    writer.append(table(1), second, stats_of(second))
    sealed = writer.seal(Lsn(1200), 42, 2)
    log.close()

    log = open_log(tmp_path / "log", start=Lsn(9999))
    assert log.start == START
    assert log.end == Lsn(1200)
    assert log.segments(START) == [sealed]
    assert sealed.span == Span(START, Lsn(1200))
    assert (sealed.commit_time, sealed.transactions) == (42, 2)
    assert log.size_bytes == sealed.bytes > 0
    rows = read(log, [sealed])
    assert rows[1, 0] == first.to_pylist() + second.to_pylist()
    assert [row["id"] for row in rows[2, 0]] == [0]
    assert log.schema(1, Lsn(0)) == table(1)
    log.close()


def test_nothing_shows_before_the_seal_and_abandoning_leaves_no_trace(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", buffer_bytes=4096)
    writer = log.writer()
    for first in range(0, 5000, 1000):
        batch = inserts(table(1), 1100, 1000, first=first)
        writer.append(table(1), batch, stats_of(batch))
    assert files_on_disk(log.folder)
    assert writer.open_bytes > 0
    assert log.segments(START) == []
    assert log.end == START
    writer.abandon()
    assert files_on_disk(log.folder) == set()
    assert (writer.open_bytes, writer.buffered_bytes, log.size_bytes) == (0, 0, 0)

    sealed = seal_rows(log, 1200, {1: 7})
    assert [row["id"] for row in read(log, [sealed])[1, 0]] == list(range(7))
    log.close()


def test_files_roll_inside_a_transaction_and_keep_the_order(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", file_bytes=200_000, buffer_bytes=400_000)
    writer = log.writer()
    noise = np.random.default_rng(7)
    for first in range(0, 20_000, 500):
        batch = inserts(table(1), 1100, 500, first=first)
        values = pa.array([noise.bytes(16).hex() for _ in range(500)])
        batch = batch.set_column(batch.schema.get_field_index("name"), "name", values)
        writer.append(table(1), batch, stats_of(batch))
    sealed = writer.seal(Lsn(1200), 0, 1)
    assert len(sealed.files) > 3
    assert all(file.bytes < 500_000 for file in sealed.files)
    assert [row["_seq"] for row in read(log, [sealed])[1, 0]] == list(range(20_000))
    assert sum((file.stats for file in sealed.files), ChangeStats()).inserts == 20_000
    log.close()


def test_optional_columns_are_in_a_file_only_if_a_row_needs_them(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    writer = log.writer()
    plain = inserts(table(1), 1100, 2)
    overflow = with_column(
        inserts(table(1), 1100, 1, first=2), "_exact", pa.array([[("name", "NaN")]], EXACT)
    )
    old = with_column(inserts(table(1), 1100, 1, first=3), "_old", pa.array([{"id": 9}], OLD))
    writer.append(table(2), inserts(table(2), 1100, 1), ChangeStats(rows=1))
    for batch in (plain, overflow, old):
        writer.append(table(1), batch, stats_of(batch))
    sealed = writer.seal(Lsn(1200), 0, 1)
    one, two = sealed.files
    meta = ["_change_type", "_lsn", "_seq", "_timestamp", "_xid"]
    assert pq.read_schema(log.folder / two.path).names == [*meta, "id", "name"]
    assert pq.read_schema(log.folder / one.path).names == [*meta, "_old", "_exact", "id", "name"]
    rows = read(log, [sealed])[1, 0]
    assert [row["_exact"] for row in rows] == [None, None, [("name", "NaN")], None]
    assert [row["_old"] for row in rows] == [None, None, None, {"id": 9}]
    log.close()


def test_a_column_that_an_open_file_lacks_starts_a_new_one(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", buffer_bytes=4)
    writer = log.writer()
    unchanged = with_column(inserts(table(1), 1100, 1, first=1), "_unchanged", pa.array([["name"]]))
    for batch in (inserts(table(1), 1100, 1), unchanged, inserts(table(1), 1100, 1, first=2)):
        writer.append(table(1), batch, stats_of(batch))
    sealed = writer.seal(Lsn(1200), 0, 1)
    assert [file.stats.rows for file in sealed.files] == [1, 2]
    assert [row.get("_unchanged") for row in read(log, [sealed])[1, 0]] == [None, ["name"], None]
    log.close()


def test_two_schema_versions_in_one_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    writer = log.writer()
    before, after = table(1), table(1, 1150, ("email",))
    for schema in (before, after):
        writer.append(schema, inserts(schema, 1160, 2), ChangeStats(rows=2))
    sealed = writer.seal(Lsn(1200), 0, 1)
    assert [file.version for file in sealed.files] == [0, 1150]
    assert "email" in read(log, [sealed])[1, 1150][0]
    log.close()
    log = open_log(tmp_path / "log")
    assert log.schema(1, Lsn(1150)) == after
    assert log.latest_schema(1) == after
    assert log.latest_schema(1, Lsn(1149)) == before
    assert log.latest_schema(5) is None
    with pytest.raises(LogError, match="no schema 0/1 of table 1"):
        log.schema(1, Lsn(1))
    log.close()


def test_a_schema_cannot_change_under_its_version(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    seal_rows(log, 1200, {1: 1})
    other = table(1, 0, ("email",))
    with pytest.raises(LogError, match="with other columns"):
        log.writer().append(other, inserts(other, 1290, 1), ChangeStats(rows=1))
    log.close()


def test_a_batch_must_have_the_columns_of_its_schema(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    wrong = inserts(table(1, 0, ("email",)), 1100, 1)
    with pytest.raises(ValueError, match="email"):
        log.writer().append(table(1), wrong, ChangeStats(rows=1))
    assert log.writer().buffered_bytes == 0
    log.close()


def test_a_small_slice_does_not_keep_its_parent(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    writer = log.writer()
    parent = inserts(table(1), 1100, 100_000, text="x" * 50)
    writer.append(table(1), parent.slice(500, 10), ChangeStats(rows=10))
    assert writer.buffered_bytes < 20_000
    sealed = writer.seal(Lsn(1200), 0, 1)
    assert [row["id"] for row in read(log, [sealed])[1, 0]] == list(range(500, 510))
    log.close()


def test_three_hundred_tables_in_one_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", buffer_bytes=8 << 20)
    writer = log.writer()
    for first in range(0, 1000, 100):
        for oid in range(1, 301):
            batch = inserts(table(oid), 1100, 100, first=first)
            writer.append(table(oid), batch, stats_of(batch))
            assert writer.buffered_bytes < 8 << 20
    sealed = writer.seal(Lsn(1200), 0, 1)
    assert len({file.table for file in sealed.files}) == 300
    assert len(sealed.files) < 900, "small tables stay in memory instead of making small files"
    ids: dict[int, list[object]] = {}
    for file in sealed.files:
        content = pq.read_table(log.folder / file.path, columns=["id"])
        ids.setdefault(file.table, []).extend(content.column("id").to_pylist())
    assert ids == {oid: list(range(1000)) for oid in range(1, 301)}
    assert files_on_disk(log.folder) == files_in_log(log)
    log.close()


def test_few_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_OPEN_FILES", 5)
    log = open_log(tmp_path / "log", buffer_bytes=4)
    writer = log.writer()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for first in range(3):
        for oid in range(1, 21):
            writer.append(
                table(oid), inserts(table(oid), 1100, 1, first=first), ChangeStats(rows=1)
            )
            assert len(list(Path("/proc/self/fd").iterdir())) <= before + 5
    rows = read(log, [writer.seal(Lsn(1200), 0, 1)])
    assert all([row["id"] for row in rows[oid, 0]] == [0, 1, 2] for oid in range(1, 21))
    log.close()


def test_an_end_without_changes_is_recorded_now_and_then(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    writer = log.writer()
    sealed = seal_rows(log, 1200, {1: 1})
    empty = writer.seal(Lsn(1300), 5, 3)
    assert (empty.files, empty.span, empty.transactions) == ((), Span(Lsn(1200), Lsn(1300)), 3)
    assert log.end == Lsn(1200), "an end that is not durable must not be acknowledged"
    assert writer.advance(Lsn(1400)) == Lsn(1200)
    assert writer.advance(Lsn(1400), now=True) == Lsn(1400)
    writer.advance(Lsn(1500))
    log.close()
    log = open_log(tmp_path / "log")
    assert log.end == Lsn(1500), "closing records the end that was reached"
    assert log.segments(START) == [sealed]
    following = seal_rows(log, 1600, {1: 1})
    assert following.span == Span(Lsn(1500), Lsn(1600))
    log.close()


def test_a_segment_cannot_end_before_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    seal_rows(log, 1200, {1: 1})
    with pytest.raises(ValueError, match="cannot end at"):
        seal_rows(log, 1200, {1: 1})
    assert files_on_disk(log.folder) == files_in_log(log)
    log.close()


def test_everything_is_synced_before_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path / "log", file_bytes=20_000, buffer_bytes=40_000)
    synced: list[str] = []
    real = os.fsync

    def spy(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.suffix == ".parquet":
            time.sleep(0.05)  # so slow that a seal that does not wait would be ahead
        real(descriptor)
        synced.append(str(path.relative_to(log.folder)))

    monkeypatch.setattr(os, "fsync", spy)
    writer = log.writer()
    for first in range(0, 10_000, 500):
        for oid in (1, 2, 3):
            batch = inserts(table(oid), 1100, 500, first=first)
            writer.append(table(oid), batch, stats_of(batch))
    sealed = writer.seal(Lsn(1200), 0, 1)
    assert synced[-1].startswith("journal/")
    assert sum(path.startswith("journal/") for path in synced) == 1
    files = [synced.index(file.path) for file in sealed.files]
    assert len(files) > 3
    assert max(files) < synced.index("data/000000") < synced.index("data")
    schemas = [synced.index(f"schemas/{oid}-{0:016x}.json.tmp") for oid in (1, 2, 3)]
    assert max(schemas) < synced.index("schemas")
    log.close()
