"""A copy that goes on under a newer snapshot is what that snapshot sees, row by row.

The reasons are in docs/decisions/0008-resuming-a-copy.md.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import hypothesis.strategies as st
import pytest

from tests.conftest import Database
from tests.pipeline.capturing import Capture
from tests.pipeline.reading import Reading, rows_of
from walflow.errors import FailpointReached
from walflow.failpoints import set_failpoints
from walflow.pipeline.table_sync import copy_resume

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DOCUMENTS = (
    "CREATE TABLE documents (tenant int, name text, pad text, doc text, amount numeric,"
    " at timestamptz DEFAULT now(), PRIMARY KEY (name, tenant)) WITH (fillfactor = 100)",
    "ALTER TABLE documents ALTER doc SET STORAGE EXTERNAL",
    "INSERT INTO documents SELECT n % 10, E'it''s \\\\ ' || n, repeat('x', 300),"
    " CASE WHEN n % 5 = 0 THEN repeat(md5(n::text), 100) END, n / 100.0"
    " FROM generate_series(1, 1500) n",
    "ANALYZE documents",
)
"""Rows of some hundred bytes, of which every fifth has a value that lies outside."""


@pytest.fixture
def reading(database: Database, spark: SparkSession, tmp_path: Path) -> Iterator[Reading]:
    database.execute("CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)")
    with Capture(database.uri, tmp_path / "log", slot=f"{database.name}_s") as capture:
        yield Reading(database.uri, spark, capture)
    set_failpoints("")


def break_off(reading: Reading, name: str, ranges: int) -> int:
    """Read some ranges under a snapshot that is then gone; how many."""
    set_failpoints(f"copy.range[public.{name}]@{ranges}=raise")
    with reading.snapshot() as snapshot, pytest.raises(FailpointReached):
        reading.read(name, snapshot)
    set_failpoints("")
    finished = reading.finished(name)
    assert finished >= ranges
    return finished


def forget(reading: Reading, name: str, kept: float, seed: int) -> int:
    """As if only some of the ranges, anywhere, had been read; how many."""
    copy = reading.copy_of(name)
    copy.reopen()
    choice = random.Random(seed)
    for note in sorted(copy.folder.glob("*.done")):
        if choice.random() > kept:
            note.unlink()
    return reading.finished(name)


def test_rows_that_move_change_keys_and_keep_what_lies_outside(reading: Reading) -> None:
    reading.execute(*DOCUMENTS)
    with reading.snapshot() as snapshot:
        reading.read("documents", snapshot)
    finished = forget(reading, "documents", 0.5, seed=1)
    former = rows_of(reading.copy_of("documents").folder.glob("*.parquet"))
    reading.execute(
        # To the end, and into the room that this leaves on earlier pages.
        "UPDATE documents SET pad = pad || 'y' WHERE tenant = 1",
        "DELETE FROM documents WHERE tenant = 2",
        "VACUUM documents",
        "UPDATE documents SET pad = pad || 'z' WHERE tenant = 3",
        "INSERT INTO documents SELECT tenant, name || ' again', 'new', doc FROM documents"
        " WHERE tenant = 4",
        # Deleted, and back under the same key, elsewhere.
        "WITH gone AS (DELETE FROM documents WHERE tenant = 5 RETURNING *)"
        " INSERT INTO documents SELECT tenant, name || '!', pad, 'other' FROM gone",
        "UPDATE documents SET name = rtrim(name, '!') WHERE tenant = 5",
        # Keys change places, and what lies outside is not sent.
        "UPDATE documents SET tenant = 100 WHERE tenant = 6",
        "UPDATE documents SET tenant = 6 WHERE tenant = 0",
        "UPDATE documents SET tenant = 0 WHERE tenant = 100",
        # A row takes the key that another has just left.
        "UPDATE documents SET name = name || ' moved' WHERE tenant = 3 AND doc IS NOT NULL",
        "INSERT INTO documents SELECT tenant, replace(name, ' moved', ''), 'b', 'of the heir'"
        " FROM documents WHERE name LIKE '% moved'",
        "VACUUM documents",
        "UPDATE documents SET amount = 1e60 WHERE tenant = 4",
    )
    with reading.snapshot() as snapshot:
        reading.execute("UPDATE documents SET pad = 'later', tenant = tenant + 10")
        copy = reading.read("documents", snapshot)
        now = reading.check("documents", copy, snapshot)
    plan = reading.copy_of("documents").plan()
    assert plan is not None
    assert reading.ranges_read("documents") == 2 * len(plan.ranges) - finished
    # What was read would not have been right by itself, on either side, and some of it was kept.
    table = reading.copy_of("documents")
    read = [done.file for done in table.finished_ranges(plan).values() if done.file]
    mixed = rows_of(table.folder / file.name for file in read)
    assert mixed - now
    assert now - mixed
    assert max(Counter(row[:2] for row in mixed.elements()).values()) > 1
    assert former & now


def test_a_third_snapshot(reading: Reading) -> None:
    reading.execute(*DOCUMENTS)
    first = break_off(reading, "documents", 5)
    reading.execute("UPDATE documents SET pad = pad || 'y', name = name || 'y' WHERE tenant = 1")
    second = break_off(reading, "documents", 6) if first < 60 else first
    assert second > first
    reading.execute(
        "UPDATE documents SET pad = pad || 'z' WHERE tenant = 2",
        "DELETE FROM documents WHERE tenant = 1 AND doc IS NULL",
    )
    with reading.snapshot() as snapshot:
        reading.check("documents", reading.read("documents", snapshot), snapshot)
    plan = reading.copy_of("documents").plan()
    assert plan is not None
    assert reading.ranges_read("documents") == len(plan.ranges)
    # What was complete at one snapshot goes on to another, too.
    reading.execute("UPDATE documents SET pad = 'w' WHERE tenant = 3")
    with reading.snapshot() as snapshot:
        reading.check("documents", reading.read("documents", snapshot), snapshot)
    assert reading.ranges_read("documents") == len(plan.ranges)


def test_a_crash_while_it_is_brought_to_the_newer_snapshot(reading: Reading) -> None:
    """The updated files are others: what was read is as it was, until all is complete."""
    reading.execute(*DOCUMENTS)
    break_off(reading, "documents", 20)
    reading.execute("UPDATE documents SET pad = pad || 'y' WHERE tenant = 1")
    with reading.snapshot() as snapshot:
        copy = reading.read("documents", snapshot)
        reading.check("documents", copy, snapshot)
        table = reading.copy_of("documents")
        updated = [
            path for path in table.paths(copy) if "untouched" in path.name or "keyed" in path.name
        ]
        assert updated
        table.reopen()
        updated[0].write_bytes(b"torn")
        reading.check("documents", reading.read("documents", snapshot), snapshot)


def test_partitions_that_rows_move_between_and_that_come(reading: Reading) -> None:
    reading.execute(
        "CREATE TABLE parts (id int, region int, pad text, PRIMARY KEY (id, region))"
        " PARTITION BY LIST (region)",
        "CREATE TABLE part_a PARTITION OF parts FOR VALUES IN (1)",
        "CREATE TABLE part_b (pad text, region int NOT NULL, id int NOT NULL)",
        "ALTER TABLE parts ATTACH PARTITION part_b FOR VALUES IN (2)",
        "INSERT INTO parts SELECT n, 1 + n % 2, repeat('x', 300) FROM generate_series(1, 1500) n",
    )
    with reading.snapshot() as snapshot:
        reading.read("parts", snapshot)
    finished = forget(reading, "parts", 0.6, seed=2)
    reading.execute(
        "UPDATE parts SET region = 3 - region WHERE id % 9 = 0",
        "UPDATE parts SET pad = 'y' WHERE id % 11 = 0",
        "CREATE TABLE part_c PARTITION OF parts FOR VALUES IN (3)",
        "UPDATE parts SET region = 3 WHERE id % 13 = 0",
        "INSERT INTO parts SELECT n, 3, repeat('x', 300) FROM generate_series(2000, 2100) n",
    )
    before = reading.ranges_read("parts")
    with reading.snapshot() as snapshot:
        reading.check("parts", reading.read("parts", snapshot), snapshot)
    plan = reading.copy_of("parts").plan()
    assert plan is not None
    assert len(plan.ranges) > before
    assert reading.ranges_read("parts") == before + len(plan.ranges) - finished
    forget(reading, "parts", 0.6, seed=3)
    reading.execute("ALTER TABLE parts DETACH PARTITION part_a")
    with reading.snapshot() as snapshot:
        reading.check("parts", reading.read("parts", snapshot), snapshot)
    other = reading.copy_of("parts").plan()
    assert other is not None
    assert other.id != plan.id


def test_a_row_filter_that_rows_come_to_match(reading: Reading) -> None:
    reading.execute(
        "CREATE TABLE filtered (id int PRIMARY KEY, pad text)",
        "INSERT INTO filtered SELECT n, repeat('x', 300) FROM generate_series(1, 1500) n",
        "DROP PUBLICATION p",
        "CREATE PUBLICATION p FOR TABLE filtered WHERE (id % 2 = 0)",
    )
    with reading.snapshot() as snapshot:
        reading.read("filtered", snapshot)
    forget(reading, "filtered", 0.5, seed=4)
    reading.execute(
        "UPDATE filtered SET id = id + 10001 WHERE id % 7 = 0",
        "UPDATE filtered SET pad = 'y' WHERE id % 11 = 0",
    )
    with reading.snapshot() as snapshot:
        copy = reading.read("filtered", snapshot)
        theirs = reading.seen("filtered", ("id", "pad"), snapshot)
        assert rows_of(reading.copy_of("filtered").paths(copy)) == Counter(
            {row: 1 for row in theirs if row[0] % 2 == 0}
        )


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(["VACUUM FULL t"], id="rewritten"),
        pytest.param(["TRUNCATE t", "INSERT INTO t VALUES (1, 'x')"], id="truncated"),
        pytest.param(["ALTER TABLE t ADD note text DEFAULT 'n'"], id="wider"),
        pytest.param(["ALTER TABLE t DROP pad", "ALTER TABLE t ADD pad text"], id="another column"),
        pytest.param(["ALTER TABLE t REPLICA IDENTITY FULL"], id="another identity"),
        pytest.param(
            [
                "ALTER TABLE t ADD note text",
                "UPDATE t SET pad = 'y' WHERE id = 1",
                "ALTER TABLE t DROP note",
            ],
            id="another schema for a while",
        ),
        pytest.param(["ALTER PUBLICATION p SET (publish = 'insert')"], id="fewer changes"),
    ],
)
def test_what_makes_a_copy_start_over(reading: Reading, statements: list[str]) -> None:
    reading.execute(
        "CREATE TABLE t (id int PRIMARY KEY, pad text)",
        "INSERT INTO t SELECT n, repeat('x', 300) FROM generate_series(1, 1000) n",
    )
    starts_over(reading, statements)


def starts_over(reading: Reading, statements: list[str]) -> None:
    break_off(reading, "t", 3)
    plan = reading.copy_of("t").plan()
    reading.execute(*statements)
    reading.capture.catch_up()
    with reading.snapshot() as snapshot:
        reading.check("t", reading.read("t", snapshot), snapshot)
    now = reading.copy_of("t").plan()
    assert plan is not None
    assert now is None or now.id != plan.id


@pytest.mark.parametrize("key", ["", "ALTER TABLE t ADD PRIMARY KEY (weight)"])
def test_a_table_without_a_key_that_can_be_written_starts_over(reading: Reading, key: str) -> None:
    reading.execute(
        "CREATE TABLE t AS SELECT n + 0.1::float8 AS weight, repeat('x', 300) AS pad"
        " FROM generate_series(1, 1000) n",
        key or "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    starts_over(reading, ["UPDATE t SET pad = 'y' WHERE weight < 100"])


def test_changes_that_the_log_does_not_have(reading: Reading) -> None:
    reading.execute(
        "CREATE TABLE t (id int PRIMARY KEY, pad text)",
        "INSERT INTO t SELECT n, repeat('x', 300) FROM generate_series(1, 1000) n",
    )
    break_off(reading, "t", 3)
    plan = reading.copy_of("t").plan()
    reading.execute("UPDATE t SET pad = 'y' WHERE id % 9 = 0")
    # Behind what was read: a log that has not come so far would have all that is missing.
    reading.capture.catch_up()
    reading.capture.log.break_off(reading.table("t").schema.oid)
    with reading.snapshot() as snapshot:
        reading.check("t", reading.read("t", snapshot), snapshot)
    now = reading.copy_of("t").plan()
    assert plan is not None
    assert now is not None
    assert now.id != plan.id


@pytest.fixture
def lagging(
    request: pytest.FixtureRequest, database: Database, spark: SparkSession, tmp_path: Path
) -> Iterator[Reading]:
    """The log does not follow until its capture is entered; then all that comes within a second,
    or as long as the test says, goes into one segment."""
    fill_seconds = getattr(request, "param", 1)
    database.execute(
        "CREATE TABLE t (id int, region int, pad text, PRIMARY KEY (id, region))"
        " PARTITION BY LIST (region)",
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES IN (1)",
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES IN (2)",
        "INSERT INTO t SELECT n, 1 + n % 2, repeat('x', 300) FROM generate_series(1, 1000) n",
        "CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root)",
    )
    slot = f"{database.name}_s"
    capture = Capture(database.uri, tmp_path / "log", slot=slot, fill_seconds=fill_seconds)
    yield Reading(database.uri, spark, capture)
    capture.log.close()
    set_failpoints("")


GAPS = [
    pytest.param(
        [],
        [
            "ALTER PUBLICATION p DROP TABLE t",
            "UPDATE t SET pad = 'unseen' WHERE id % 9 = 0",
            "ALTER PUBLICATION p ADD TABLE t",
        ],
        id="published again",
    ),
    pytest.param(
        [],
        [
            "ALTER TABLE t DETACH PARTITION t_1",
            "UPDATE t_1 SET pad = 'unseen' WHERE id % 9 = 0",
            "ALTER TABLE t ATTACH PARTITION t_1 FOR VALUES IN (1)",
        ],
        id="attached again",
    ),
    pytest.param(
        ["ALTER PUBLICATION p SET (publish = 'insert')"],
        [
            "UPDATE t SET pad = 'unseen' WHERE id % 9 = 0",
            "ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')",
        ],
        id="more changes",
    ),
]


@pytest.mark.parametrize(("before", "gap"), GAPS)
def test_what_was_read_before_a_gap_does_not_count(
    lagging: Reading, before: list[str], gap: list[str]
) -> None:
    """The log has not come so far yet, so it does not tell."""
    lagging.execute("SELECT 1", *before)
    with lagging.snapshot() as snapshot:
        whole = lagging.read("t", snapshot)
    table, copy = lagging.table("t"), lagging.copy_of("t")
    assert lagging.reader.finished(whole.schema.oid, table.membership) == whole
    lagging.execute(*gap)
    now = lagging.table("t")
    assert lagging.reader.finished(whole.schema.oid, now.membership) is None
    # As a pipeline does that sees it.
    lagging.capture.log.break_off(whole.schema.oid)
    assert lagging.capture.log.covers(whole.schema.oid, whole.position)
    forget(lagging, "t", 0.7, seed=5)
    plan = copy.plan()
    with lagging.capture, lagging.snapshot() as snapshot:
        lagging.check("t", lagging.read("t", snapshot), snapshot)
        other = copy.plan()
    assert plan is not None
    assert other is not None
    assert other.id != plan.id


def test_a_partition_that_came_meanwhile_is_missed_when_it_goes(lagging: Reading) -> None:
    """And comes back, in the same file but without its rows."""
    with lagging.capture:
        with lagging.snapshot() as snapshot:
            lagging.read("t", snapshot)
        forget(lagging, "t", 0.7, seed=6)
        lagging.execute(
            "CREATE TABLE t_3 PARTITION OF t FOR VALUES IN (3)",
            "INSERT INTO t SELECT n, 3, repeat('x', 300) FROM generate_series(1, 100) n",
        )
        with lagging.snapshot() as snapshot:
            lagging.check("t", lagging.read("t", snapshot), snapshot)
        plan = lagging.copy_of("t").plan()
        lagging.execute(
            "ALTER TABLE t DETACH PARTITION t_3",
            "DELETE FROM t_3",
            "VACUUM (TRUNCATE) t_3",
            "ALTER TABLE t ATTACH PARTITION t_3 FOR VALUES IN (3)",
        )
        assert [r.pages for r in lagging.table("t").relations if r.name.name == "t_3"] == [0]
        with lagging.snapshot() as snapshot:
            lagging.check("t", lagging.read("t", snapshot), snapshot)
        other = lagging.copy_of("t").plan()
    assert plan is not None
    assert other is not None
    assert other.id != plan.id


@pytest.mark.parametrize("lagging", [10], indirect=True, ids=["in one segment"])
def test_a_form_that_ended_before_the_first_snapshot(lagging: Reading) -> None:
    """The log may have its last changes in one segment with those that the copy needs."""
    lagging.execute(
        "UPDATE t SET pad = 'y' WHERE id % 9 = 0",
        "ALTER TABLE t ADD note text",
        "UPDATE t SET note = 'n' WHERE id % 9 = 1",
    )
    finished = break_off(lagging, "t", 3)
    copy = lagging.copy_of("t")
    plan = copy.plan()
    assert plan is not None
    first = next(iter(copy.finished_ranges(plan).values())).position
    lagging.execute("UPDATE t SET pad = 'z', note = 'z' WHERE id % 9 < 3")
    with lagging.capture, lagging.snapshot() as snapshot:
        lagging.capture.wait_durable(snapshot.position)
        (segment,) = lagging.capture.log.segments(first, table=plan.schema.oid)
        assert segment.span.after < first
        assert len({file.version for file in segment.files}) == 2
        lagging.check("t", lagging.read("t", snapshot), snapshot)
        assert copy.plan() == plan
        assert lagging.ranges_read("t") == len(plan.ranges) > finished


def test_after_very_many_changes_only_the_older_part_is_read_again(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_resume, "_FEW_KEYS", 20)
    monkeypatch.setattr(copy_resume, "_MANY_KEYS", 20)
    reading.execute(*DOCUMENTS)
    finished = break_off(reading, "documents", 5)
    reading.execute("UPDATE documents SET pad = 'y' WHERE tenant = 1")
    with reading.snapshot() as snapshot:
        reading.check("documents", reading.read("documents", snapshot), snapshot)
    plan = reading.copy_of("documents").plan()
    assert plan is not None
    assert reading.ranges_read("documents") == len(plan.ranges) + finished


KEYS = st.integers(1, 60)
OPERATIONS = st.one_of(
    st.tuples(st.just("UPDATE {t} SET pad = pad || repeat('y', 200) WHERE id = {0}"), KEYS, KEYS),
    st.tuples(st.just("UPDATE {t} SET pad = left(pad, 50) WHERE id = {0}"), KEYS, KEYS),
    st.tuples(st.just("UPDATE {t} SET doc = md5(random()::text) WHERE id = {0}"), KEYS, KEYS),
    st.tuples(
        st.just(
            "UPDATE {t} SET id = {1} WHERE id = {0} AND NOT EXISTS (SELECT FROM {t} WHERE id = {1})"
        ),
        KEYS,
        KEYS,
    ),
    st.tuples(
        st.just(
            "WITH g AS (DELETE FROM {t} WHERE id = {0} RETURNING doc) UPDATE {t}"
            " SET id = {0} WHERE id = {1} AND id <> {0} AND NOT EXISTS"
            " (SELECT FROM {t} AS o WHERE o.id = {0})"
        ),
        KEYS,
        KEYS,
    ),
    st.tuples(st.just("DELETE FROM {t} WHERE id = {0}"), KEYS, KEYS),
    st.tuples(
        st.just(
            "INSERT INTO {t} VALUES ({0}, repeat('n', {1}), repeat('d', 3000))"
            " ON CONFLICT (id) DO UPDATE SET pad = 'again'"
        ),
        KEYS,
        KEYS,
    ),
    st.tuples(st.just("VACUUM {t}"), KEYS, KEYS),
)
STRETCHES = st.lists(
    st.tuples(st.lists(OPERATIONS, max_size=25), st.integers(0, 1000)), min_size=1, max_size=2
)


def test_whatever_happens_between_the_snapshots(reading: Reading) -> None:
    """Rows of few keys, so that they meet; after each part of them any range has been read."""
    table = iter(range(1_000_000))

    @hypothesis.given(slices=STRETCHES)
    @hypothesis.settings(
        max_examples=int(os.environ.get("WALFLOW_TEST_EXAMPLES", "4")),
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def check(slices: list[tuple[list[tuple[str, int, int]], int]]) -> None:
        name = f"t{next(table)}"
        reading.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, pad text, doc text)",
            f"ALTER TABLE {name} ALTER doc SET STORAGE EXTERNAL",
            f"INSERT INTO {name} SELECT n, repeat('x', 900), repeat(md5(n::text), 80)"
            " FROM generate_series(2, 60, 2) n",
        )
        with reading.snapshot() as snapshot:
            reading.read(name, snapshot)
        for operations, seed in slices:
            forget(reading, name, 0.7, seed)
            reading.execute(
                "SELECT 1", *(text.format(one, two, t=name) for text, one, two in operations)
            )
            with reading.snapshot() as snapshot:
                reading.check(name, reading.read(name, snapshot), snapshot)
        reading.reader.drop(reading.table(name).schema.oid)
        reading.execute(f"DROP TABLE {name}")

    check()
