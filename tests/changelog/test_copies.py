"""Copies in the log: what was read survives, what is torn or of another plan does not count."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.changelog.rows import open_log, table
from walflow.changelog import (
    ChangeLog,
    CopyFolder,
    CopyPlan,
    FinishedCopy,
    FinishedRange,
    store_range,
)
from walflow.model import CopyFile, Lsn, PageRange
from walflow.states import Membership

SCHEMA = table(7)
RANGES = tuple(PageRange(7, first, first + 10, 80_000) for first in range(0, 50, 10))
MEMBERSHIP = Membership(
    frozenset({"16400:751"}), "id > 3", frozenset({"insert"}), frozenset({(7, 0), (8, 751)})
)
PLAN = CopyPlan(SCHEMA, "id > 3", {7: 123}, RANGES, MEMBERSHIP)


def add(copy: CopyFolder, plan: CopyPlan, number: int, position: int, rows: int = 5) -> CopyFile:
    """A range that an executor has read."""
    name = f"{number:06}-{plan.id}-{position:x}.parquet"
    (copy.folder / name).write_bytes(b"x" * rows)
    file = CopyFile(name, rows, rows, overflow=number == 1, checksum=0)
    store_range(copy.folder, FinishedRange(plan.id, number, Lsn(position), file))
    return file


@pytest.fixture
def log(tmp_path: Path) -> ChangeLog:
    return open_log(tmp_path / "log")


def test_a_plan_and_what_was_read_of_it_survive(log: ChangeLog, tmp_path: Path) -> None:
    copy = log.copy(7)
    assert (copy.plan(), copy.completed()) == (None, None)
    copy.begin(PLAN)
    file = add(copy, PLAN, 3, 200)
    store_range(copy.folder, FinishedRange(PLAN.id, 0, Lsn(100), None))
    log.close()
    log = open_log(tmp_path / "log")
    (copy,) = log.copies()
    assert copy.table == 7
    assert copy.plan() == PLAN
    assert copy.finished_ranges(PLAN) == {
        0: FinishedRange(PLAN.id, 0, Lsn(100), None),
        3: FinishedRange(PLAN.id, 3, Lsn(200), file),
    }
    longer = replace(PLAN, ranges=(*RANGES, PageRange(8, 0, None, 1)))
    copy.extend(longer)
    assert copy.plan() == longer
    assert set(copy.finished_ranges(longer)) == {0, 3}
    log.close()


def test_a_complete_copy_survives(log: ChangeLog, tmp_path: Path) -> None:
    copy = log.copy(7)
    copy.begin(PLAN)
    files = [add(copy, PLAN, number, 100) for number in range(3)]
    told = FinishedCopy(SCHEMA, Lsn(300), tuple(files), MEMBERSHIP)
    copy.complete(told)
    log.close()
    log = open_log(tmp_path / "log")
    copy = log.copy(7)
    whole = copy.completed()
    assert whole == told
    assert (whole.rows, whole.overflow) == (15, True)
    copy.reopen()
    assert copy.completed() is None
    copy.drop()
    copy.drop()
    assert not copy.folder.exists()
    assert log.copies() == []
    log.close()


def test_what_is_torn_does_not_count(log: ChangeLog) -> None:
    copy = log.copy(7)
    copy.begin(PLAN)
    files = [add(copy, PLAN, number, 100) for number in range(5)]
    copy.complete(FinishedCopy(SCHEMA, Lsn(100), tuple(files), MEMBERSHIP))
    (copy.folder / files[0].name).write_bytes(b"x")
    (copy.folder / files[1].name).unlink()
    (copy.folder / "000002.done").write_bytes(b'{"plan": "')
    (copy.folder / "000003.done").unlink()
    assert set(copy.finished_ranges(PLAN)) == {4}
    assert copy.completed() is None
    copy.remove_others([files[4].name])
    assert sorted(path.name for path in copy.folder.glob("*.parquet")) == [files[4].name]
    (copy.folder / "plan.json").write_text("[")
    assert copy.plan() is None
    log.close()


def test_what_does_not_say_how_the_table_was_published_does_not_count(log: ChangeLog) -> None:
    copy = log.copy(7)
    copy.begin(PLAN)
    copy.complete(FinishedCopy(SCHEMA, Lsn(100), (), MEMBERSHIP))
    for path in copy.folder.glob("*.json"):
        told = json.loads(path.read_bytes())
        del told["membership"]
        path.write_text(json.dumps(told))
    assert (copy.plan(), copy.completed()) == (None, None)
    log.close()


def test_who_still_works_on_a_former_plan_changes_nothing(log: ChangeLog) -> None:
    copy = log.copy(7)
    copy.begin(PLAN)
    late = replace(PLAN, id="former")
    mine = add(copy, PLAN, 0, 100)
    add(copy, late, 1, 90)
    add(copy, PLAN, 2, 100)
    add(copy, late, 2, 90)
    assert copy.finished_ranges(PLAN) == {0: FinishedRange(PLAN.id, 0, Lsn(100), mine)}
    log.close()


def test_folders_of_other_formats_go_when_the_log_is_opened(log: ChangeLog, tmp_path: Path) -> None:
    log.copy(8).begin(PLAN)
    log.close()
    former = tmp_path / "log" / "copy" / "7-0000000000001234"
    former.mkdir()
    (former / "000000.parquet").write_bytes(b"x")
    (tmp_path / "log" / "copy" / "stray").write_bytes(b"x")
    log = open_log(tmp_path / "log")
    assert [copy.table for copy in log.copies()] == [8]
    assert [path.name for path in (tmp_path / "log" / "copy").iterdir()] == ["8"]
    log.close()


def test_a_plan_is_plain_json(log: ChangeLog) -> None:
    copy = log.copy(7)
    copy.begin(PLAN)
    told = json.loads((copy.folder / "plan.json").read_bytes())
    assert told["filenodes"] == {"7": 123}
    assert told["ranges"][1] == {
        "relation": 7,
        "first_page": 10,
        "end_page": 20,
        "bytes": 80_000,
    }
    log.close()
