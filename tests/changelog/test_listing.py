"""Listing, waiting, retiring, restarting, and the room that is left."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.changelog.rows import (
    START,
    files_in_log,
    files_on_disk,
    inserts,
    open_log,
    seal_rows,
    stats_of,
    table,
)
from walflow.changelog import journal as journal_module
from walflow.model import ChangeStats, Lsn
from walflow.serialization import from_json, to_json


def test_listing_by_position_and_table(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    a = seal_rows(log, 1100, {1: 1})
    b = seal_rows(log, 1200, {1: 1, 2: 1})
    c = seal_rows(log, 1300, {2: 1})
    assert log.segments(START) == [a, b, c]
    assert log.segments(Lsn(1100)) == [b, c]
    assert log.segments(Lsn(1099)) == [a, b, c]
    assert log.segments(START, Lsn(1200)) == [a, b]
    assert log.segments(Lsn(1100), Lsn(1201)) == [b, c]
    assert log.segments(Lsn(1300)) == []
    assert log.segments(START, table=1) == [a, b.of_table(1)]
    assert [file.table for file in log.segments(START, table=1)[1].files] == [1]
    assert log.segments(Lsn(1200), table=1) == []
    assert [log.waiting(Lsn(p)) for p in (1000, 1100, 1250, 1300)] == [3, 2, 1, 0]
    log.close()


def test_statistics_add_up() -> None:
    a = ChangeStats(rows=3, inserts=1, updates=1, truncates=1, last_truncate=(5, 2), overflow=True)
    b = ChangeStats(rows=2, deletes=2, key_changes=1, truncates=1, last_truncate=(5, 1))
    both = ChangeStats(5, 1, 1, 2, 1, 2, False, True, (5, 2))
    assert a + b == b + a == both
    assert a + ChangeStats() == a
    assert from_json(ChangeStats, to_json(both)) == both


def test_waiting_for_a_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    assert not log.wait_for_change(START, 0.01)
    log.writer().advance(Lsn(1050), now=True)
    assert not log.wait_for_change(START, 0.01), "an end without changes is nothing to apply"
    timer = threading.Timer(0.1, seal_rows, (log, 1100, {1: 1}))
    timer.start()
    began = time.monotonic()
    assert log.wait_for_change(START, 300)
    assert time.monotonic() - began < 60
    timer.join()
    assert log.wait_for_change(START, 0)
    assert not log.wait_for_change(Lsn(1100), 0)

    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(log.wait_for_change(Lsn(1100), 300)))
    waiter.start()
    log.close()
    waiter.join(60)
    assert answers == [False]
    assert log.closed


def test_retiring_keeps_what_is_not_applied_and_remembers_the_rest(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    seal_rows(log, 1100, {1: 1})
    seal_rows(log, 1200, {2: 1})
    kept = seal_rows(log, 1300, {1: 1})
    size = log.size_bytes
    assert log.covers(1, START)
    assert not log.covers(1, Lsn(999))
    assert log.retire(Lsn(1299), 3600) == 0
    assert log.retire(Lsn(1299), 0) == 2
    assert log.size_bytes < size

    for _ in range(2):
        assert log.segments(START) == [kept]
        assert files_on_disk(log.folder) == files_in_log(log) == {kept.files[0].path}
        assert not log.covers(1, START)
        assert not log.covers(1, Lsn(1099))
        assert log.covers(1, Lsn(1100))
        assert not log.covers(2, Lsn(1199))
        assert log.covers(2, Lsn(1200))
        assert log.covers(3, START), "a table without retired changes is covered from the start"
        log.close()
        log = open_log(tmp_path / "log")
    assert log.retire(Lsn(9999), 0) == 1
    log.close()
    log = open_log(tmp_path / "log")
    assert (log.end, log.size_bytes, log.segments(START)) == (Lsn(1300), 0, [])
    following = seal_rows(log, 1400, {1: 1})
    assert following.files[0].path != kept.files[0].path, "a path never means two things"
    log.close()


def test_retiring_by_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path / "log")
    an_hour_ago = time.time() - 3600
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: an_hour_ago)
        seal_rows(log, 1100, {1: 1})
    young = seal_rows(log, 1200, {1: 1})
    assert log.retire(Lsn(1200), 1800) == 1
    assert log.segments(START) == [young]
    log.close()


def test_retiring_removes_schemas_that_no_file_has(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    writer = log.writer()
    for upto, schema in ((1100, table(1)), (1200, table(1, 1150, ("b",))), (1300, table(2))):
        writer.append(schema, inserts(schema, upto - 10, 1), ChangeStats(rows=1))
        writer.seal(Lsn(upto), 0, 1)
    names = [f"1-{0:016x}.json", f"1-{1150:016x}.json", f"2-{0:016x}.json"]
    assert sorted(path.name for path in (log.folder / "schemas").iterdir()) == names
    log.retire(Lsn(1300), 0)
    assert sorted(path.name for path in (log.folder / "schemas").iterdir()) == names[1:]
    assert log.latest_schema(1) == table(1, 1150, ("b",))
    log.close()


def test_an_open_segment_keeps_its_schemas(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    writer = log.writer()
    seal_rows(log, 1100, {1: 1})
    for schema in (table(1), table(1, 1150, ("b",))):
        writer.append(schema, inserts(schema, 1190, 1), ChangeStats(rows=1))
    log.retire(Lsn(1100), 0)
    writer.seal(Lsn(1200), 0, 1)
    log.close()
    log = open_log(tmp_path / "log")
    assert log.schema(1, Lsn(0)) == table(1)
    log.close()


def test_the_journal_rotates_and_old_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "ROTATE_BYTES", 1000)
    log = open_log(tmp_path / "log")
    for upto in range(1100, 3100, 100):
        seal_rows(log, upto, {1: 1})
        log.writer().advance(Lsn(upto + 50), now=True)
    files = list((log.folder / "journal").iterdir())
    assert len(files) > 3
    segments = log.segments(START)
    log.close()
    log = open_log(tmp_path / "log")
    assert log.segments(START) == segments
    assert log.end == Lsn(3050)
    log.retire(Lsn(3000), 0)
    assert len(list((log.folder / "journal").iterdir())) == 1
    log.close()
    log = open_log(tmp_path / "log")
    assert (log.end, log.segments(START)) == (Lsn(3050), [])
    log.close()


def test_restart_begins_anew(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    before = seal_rows(log, 1100, {1: 1})
    log.retire(Lsn(1100), 0)
    seal_rows(log, 1200, {1: 1})
    log.writer().append(table(2), inserts(table(2), 1290, 1), ChangeStats(rows=1))
    log.restart(Lsn(5000))
    for _ in range(2):
        assert (log.start, log.end, log.size_bytes) == (Lsn(5000), Lsn(5000), 0)
        assert log.segments(Lsn(0)) == []
        assert files_on_disk(log.folder) == set()
        assert not log.covers(1, Lsn(1200))
        assert log.covers(1, Lsn(5000))
        log.close()
        log = open_log(tmp_path / "log")
    after = seal_rows(log, 5100, {1: 2})
    assert after.sequence > before.sequence
    assert log.segments(Lsn(0)) == [after]
    log.close()


def test_room(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", max_bytes=5000, buffer_bytes=400_000)
    writer = log.writer()
    batch = inserts(table(1), 1090, 10_000)
    writer.append(table(1), batch, stats_of(batch))
    assert log.size_bytes > 5000
    room = [log.has_room]
    writer.seal(Lsn(1100), 0, 1)
    room.append(log.has_room)
    log.retire(Lsn(1100), 0)
    room.append(log.has_room)
    assert room == [True, False, True], "a transaction larger than the limit must be able to end"
    log.close()


def test_readers_and_retirement_beside_a_writer(tmp_path: Path) -> None:
    """A reader follows the writer, and retires what it has read: it sees every row, once."""
    log = open_log(tmp_path / "log")
    last = Lsn(1000 + 100 * 150)
    failures: list[BaseException] = []
    seen: list[int] = []

    def follow() -> None:
        try:
            at = START
            while at < last:
                log.wait_for_change(at, 5)
                for segment in log.segments(at):
                    for file in segment.files:
                        rows = pq.read_table(log.folder / file.path)
                        assert rows.num_rows == file.stats.rows
                        assert log.schema(file.table, file.version).oid == file.table
                    assert segment.span.after == at
                    at = segment.span.upto
                    seen.append(int(at))
                log.retire(at, 0)
        except BaseException as error:
            failures.append(error)

    def look() -> None:
        try:
            while not seen or seen[-1] < last:
                ends = [segment.span.upto for segment in log.segments(START)]
                assert ends == sorted(ends)
                assert log.size_bytes >= 0
                assert log.latest_schema(1) in (None, table(1))
                time.sleep(0.001)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=target, daemon=True) for target in (follow, look)]
    for thread in threads:
        thread.start()
    for upto in range(1100, int(last) + 1, 100):
        seal_rows(log, upto, {1: 5, 2: 5})
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert seen == list(range(1100, int(last) + 1, 100))
    assert files_on_disk(log.folder) == set()
    log.close()
