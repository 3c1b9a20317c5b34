"""Exactly once: a batch that comes again, wherever it was broken off, changes nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Database
from tests.lake.crashing import Crash, Crashes
from tests.lake.equality import (
    ALL_ROWS,
    CURRENT,
    NOT_DELETED,
    TOLD_LAST,
    Lake,
    Sought,
    assert_equal,
    format_of,
)
from tests.pipeline.running import catch_up, running, settings_for
from walflow.config import Settings
from walflow.destinations.base import TableChanges
from walflow.destinations.lake import LakeDestination, Owner
from walflow.model import Span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

TABLES = {
    "mirrored": ({}, ALL_ROWS),
    "soft": ({"mode": "soft_delete"}, NOT_DELETED),
    "told": ({"mode": "history"}, TOLD_LAST),
    "versions": ({"mode": "scd2"}, CURRENT),
    "keyless": ({}, ALL_ROWS),
}
SOUGHT = [Sought(table, rows) for table, (_, rows) in TABLES.items()]

BATCHES = (
    # Appended as they are.
    ("INSERT INTO {t} VALUES (7, 'seven', 7), (8, 'eight', 8)",),
    (
        "UPDATE {t} SET n = n + 1 WHERE id < 4",
        "UPDATE {t} SET id = 20 WHERE id = 2",
        "UPDATE {t} SET id = 21, v = 'x' WHERE id = 20",
        "DELETE FROM {t} WHERE id IN (5, 7)",
        "INSERT INTO {t} VALUES (5, 'again', 5)",
    ),
    ("UPDATE {t} SET v = 'x'", "TRUNCATE {t}", "INSERT INTO {t} VALUES (1, 'new', 1), (9, 'n', 9)"),
    ("UPDATE {t} SET id = id + 1, n = 0", "INSERT INTO {t} VALUES (1, 'one', 1)"),
)


class Recorder(LakeDestination):
    """Remembers the batches that it was given, and writes them unless told not to."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        given: list[TableChanges],
        *,
        writes: bool = True,
    ) -> None:
        plans = {f"public.{t}": settings.apply.plan_of(f"public.{t}") for t in TABLES}
        owner = Owner(settings.name, "the source")
        super().__init__(spark, format_of(settings), owner, lambda name: plans[str(name)])
        self.given = given
        self.writes = writes

    def apply(self, changes: TableChanges) -> None:
        self.given.append(changes)
        if self.writes:
            super().apply(changes)


@dataclass(slots=True)
class Room:
    spark: SparkSession
    database: Database
    settings: Settings
    lake: Lake
    given: list[TableChanges]

    @contextmanager
    def destination(self) -> Iterator[Recorder]:
        """As a new process has it: it remembers nothing."""
        made = Recorder(self.spark, self.settings, [])
        try:
            yield made
        finally:
            made.shutdown()

    def run(self, *batches: Sequence[str], writes: bool = True) -> list[TableChanges]:
        """Let the pipeline follow; the batches that came of it."""
        begin = len(self.given)
        destination = Recorder(self.spark, self.settings, self.given, writes=writes)
        with running(self.settings, self.spark, destination=destination) as pipeline:
            for statements in batches:
                for table in TABLES:
                    self.database.execute(*(text.replace("{t}", table) for text in statements))
                catch_up(pipeline)
        return self.given[begin:]

    def state(self, table: str) -> tuple[Counter[str], int]:
        """All that is in the table, and how often it was committed to."""
        rows = self.lake.rows(self.lake.query(table))
        return Counter(map(repr, rows)), self.lake.commits(table)


@pytest.fixture
def room(spark: SparkSession, database: Database, tmp_path: Path, lake_format: str) -> Room:
    """Tables of all modes, copied."""
    plans = {f"public.{table}": plan for table, (plan, _) in TABLES.items() if plan}
    settings = settings_for(
        database,
        tmp_path,
        destination__uri=f"{lake_format}://{tmp_path}/lake",
        apply__tables=json.dumps(plans),
    )
    for table in TABLES:
        key = "" if table == "keyless" else "PRIMARY KEY"
        database.execute(
            f"CREATE TABLE {table} (id int {key}, v text, n int)",
            f"INSERT INTO {table} SELECT i, 'v' || i, i FROM generate_series(1, 6) i",
        )
    database.execute(
        "ALTER TABLE keyless REPLICA IDENTITY FULL",
        "INSERT INTO keyless SELECT * FROM keyless",
        f"CREATE PUBLICATION walflow FOR TABLE {', '.join(TABLES)}",
    )
    made = Room(spark, database, settings, Lake(spark, settings), [])
    made.run()
    return made


def of_table(given: Sequence[TableChanges], table: str) -> list[TableChanges]:
    return [events for events in given if events.schema.name.name == table]


def joined(batches: Sequence[TableChanges]) -> TableChanges:
    """The batches of one table as one."""
    files = tuple(file for part in batches for file in part.files)
    stats = reduce(add, (part.stats for part in batches))
    span = Span(batches[0].span.after, batches[-1].span.upto)
    return replace(batches[-1], files=files, stats=stats, after=batches[0].after, span=span)


def test_batches_that_come_again(room: Room) -> None:
    given = room.run(*BATCHES[:3])
    assert_equal(room.database, room.lake, SOUGHT)
    before = {table: room.state(table) for table in TABLES}
    for table in TABLES:
        batches = of_table(given, table)
        assert len(batches) >= 3
        for events in (*reversed(batches), joined(batches)):
            with room.destination() as destination:
                destination.apply(events)
                destination.apply(events)
    assert {table: room.state(table) for table in TABLES} == before

    # What has come since, together with what the tables have.
    new = room.run(BATCHES[3], writes=False)
    assert {table: room.state(table) for table in TABLES} == before
    for table in TABLES:
        events = joined(of_table([*given, *new], table))
        with room.destination() as destination:
            destination.apply(events)
            commits = room.lake.commits(table)
            destination.apply(events)
        assert commits == room.lake.commits(table) == before[table][1] + 1
    assert_equal(room.database, room.lake, SOUGHT)
    # And the pipeline finds that nothing is left to be done.
    after = {table: room.state(table) for table in TABLES}
    assert room.run() == []
    assert {table: room.state(table) for table in TABLES} == after


def test_a_crash_at_every_step_of_a_batch(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    room.run(BATCHES[0])
    new = room.run(BATCHES[1], writes=False)
    crashes = Crashes(monkeypatch)
    for table in TABLES:
        before = room.state(table)
        write = partial(Recorder.apply, changes=joined(of_table(new, table)))
        seen = crash_at_every_step(room, crashes, table, write)
        # A step, before and after it; and whoever crashed after it finds it done.
        assert [state[1] - before[1] for state in seen] == [0] * (len(seen) - 2) + [1, 1], table
        assert all(state == before for state in seen[:-2]), table
        assert seen[-2] == seen[-1], table
    assert_equal(room.database, room.lake, SOUGHT)


def crash_at_every_step(
    room: Room, crashes: Crashes, table: str, act: Callable[[Recorder], None]
) -> list[tuple[Counter[str], int]]:
    """Act, each time up to one step further, until there is none left; the table's state after
    each time."""
    seen = []
    for step in range(50):
        with room.destination() as destination, crashes.after(step, table), suppress(Crash):
            act(destination)
        seen.append(room.state(table))
        if not crashes.happened:
            return seen
    raise AssertionError(f"{table} never came to an end: {crashes.happened}")
