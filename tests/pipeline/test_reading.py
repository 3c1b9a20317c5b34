"""A copy is what its snapshot sees, whatever happens to source and process while it is read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.conftest import Database
from tests.pipeline.capturing import Capture, wait_for
from tests.pipeline.reading import Reading
from tests.pipeline.running import WAIT
from tests.pipeline.sessions import held_sessions
from walflow.errors import (
    FailpointReached,
    PublicationChanged,
    SnapshotLost,
    Stopped,
    TableLocked,
    TableRewritten,
)
from walflow.failpoints import VARIABLE, set_failpoints
from walflow.pipeline.state.retries import is_of_the_source
from walflow.pipeline.table_sync.copy_connections import Connections
from walflow.pipeline.table_sync.table_copy import CopyReader
from walflow.spark.jobs import cancel_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

WIDE = (
    "CREATE TABLE wide AS SELECT n AS id, repeat('x', 300) AS pad FROM generate_series(1, 1500) n",
    "ALTER TABLE wide ADD PRIMARY KEY (id)",
)


@pytest.fixture
def reading(database: Database, spark: SparkSession, tmp_path: Path) -> Iterator[Reading]:
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    with Capture(database.uri, tmp_path / "log", slot=f"{database.name}_s") as capture:
        yield Reading(database.uri, spark, capture)
    set_failpoints("")


def test_a_table_is_what_the_snapshot_sees(reading: Reading) -> None:
    reading.execute(*WIDE)
    with reading.snapshot() as snapshot:
        reading.execute(
            "UPDATE wide SET pad = 'y' WHERE id % 3 = 0", "DELETE FROM wide WHERE id < 9"
        )
        copy = reading.read("wide", snapshot)
        assert reading.check("wide", copy, snapshot).total() == 1500
        assert reading.progress[-1] == 1500
        assert reading.ranges_read("wide") == reading.finished("wide") > 20
        membership = reading.table("wide").membership
        assert reading.reader.finished(copy.schema.oid, membership) == copy
        assert reading.read("wide", snapshot) == copy
        assert reading.ranges_read("wide") == reading.finished("wide")
    reading.reader.drop(copy.schema.oid)
    assert reading.reader.finished(copy.schema.oid, membership) is None
    assert not reading.copy_of("wide").folder.exists()


def test_an_empty_table_takes_no_connection(reading: Reading) -> None:
    reading.execute(
        "CREATE TABLE empty (id int PRIMARY KEY)",
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part_a PARTITION OF parts FOR VALUES FROM (0) TO (9)",
    )
    ours = reading.reader
    nowhere = "postgresql://nobody@127.0.0.1:1/nowhere"
    reader = CopyReader(
        nowhere, "t", ours.spark, ours.log, Connections(1), ours.metrics, ours.range_bytes
    )
    with reading.snapshot() as snapshot:
        for name in ("empty", "parts", "part_a"):
            described = [t for t in reading.tables() if t.name.name == name]
            for table in described:
                copy = reader.read(
                    table, snapshot, progress=reading.progress.append, stop=reading.stop
                )
                assert (copy.files, copy.rows, copy.overflow) == ((), 0, False)
                assert copy.position == snapshot.position
                assert reader.finished(table.schema.oid, table.membership) == copy


def test_rows_that_a_held_snapshot_sees_keep_their_pages(reading: Reading) -> None:
    """So no pages, seen after the snapshot was taken, means no rows."""
    reading.execute(
        "CREATE TABLE gone AS SELECT generate_series(1, 10) AS id",
        "ALTER TABLE gone ADD PRIMARY KEY (id)",
    )
    with reading.snapshot() as snapshot:
        reading.execute("DELETE FROM gone", "VACUUM gone")
        copy = reading.read("gone", snapshot)
        assert reading.check("gone", copy, snapshot).total() == 10


def test_a_lost_snapshot_keeps_what_was_read(reading: Reading) -> None:
    reading.execute(*WIDE)

    def lose(rows: int) -> None:
        if rows:
            reading.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'walflow snapshot'"
            )

    with reading.snapshot() as snapshot, pytest.raises(SnapshotLost):
        reading.reader.read(reading.table("wide"), snapshot, progress=lose, stop=reading.stop)
    assert reading.finished("wide") > 0
    with reading.snapshot() as snapshot:
        reading.check("wide", reading.read("wide", snapshot), snapshot)
    plan = reading.copy_of("wide").plan()
    assert plan is not None
    assert reading.ranges_read("wide") == len(plan.ranges)


@pytest.mark.parametrize("statement", ["TRUNCATE wide", "VACUUM FULL wide", "DROP TABLE wide"])
def test_a_table_that_is_rewritten_meanwhile_is_not_taken(reading: Reading, statement: str) -> None:
    reading.execute(*WIDE)
    table = reading.table("wide")
    done = threading.Event()

    def rewrite(rows: int) -> None:
        if rows and not done.is_set():
            done.set()
            reading.execute(statement)

    with reading.snapshot() as snapshot:
        # A dropped table is first missed by the query that reads it.
        with pytest.raises(Exception, match=r"rewritten|does not exist"):
            reading.reader.read(table, snapshot, progress=rewrite, stop=reading.stop)
        with pytest.raises(TableRewritten):
            reading.reader.read(table, snapshot, progress=rewrite, stop=reading.stop)
    assert not reading.reader.log.copy(table.schema.oid).folder.exists()
    if statement != "DROP TABLE wide":
        with reading.snapshot() as snapshot:
            reading.check("wide", reading.read("wide", snapshot), snapshot)


def test_a_table_that_waits_for_a_lock_can_be_interrupted(
    reading: Reading,
) -> None:
    reading.reader.lock_seconds = 120
    reading.execute(*WIDE)
    table = reading.table("wide")
    with reading.snapshot() as snapshot, ThreadPoolExecutor(1) as pool:
        with psycopg.connect(reading.uri) as blocking:
            blocking.execute("LOCK TABLE wide IN ACCESS EXCLUSIVE MODE")
            job = pool.submit(
                reading.reader.read, table, snapshot, progress=lambda _: None, stop=reading.stop
            )
            wait_for(lambda: len(copying(reading)) == 2, WAIT, "executors that wait")
            reading.stop.set()
            cancel_jobs(reading.spark, reading.reader.tag)
            with pytest.raises(Stopped):
                job.result(WAIT)
        wait_for(lambda: not copying(reading), WAIT, "no session is left")
        reading.stop.clear()
        reading.check("wide", reading.read("wide", snapshot), snapshot)


@pytest.mark.parametrize("rows", [10, 1500])
def test_a_table_that_is_locked_for_long_gives_its_connections_back(
    reading: Reading, rows: int
) -> None:
    """Whether executors read it, or the driver because it is small."""
    reading.reader.lock_seconds = 0.3
    reading.execute(*WIDE, f"DELETE FROM wide WHERE id > {rows}", "VACUUM FULL wide")
    with reading.snapshot() as snapshot:
        table = reading.table("wide")
        with psycopg.connect(reading.uri) as blocking:
            blocking.execute("LOCK TABLE wide IN ACCESS EXCLUSIVE MODE")
            # Not for ever, so that a reading that waits for it ends.
            blocking.execute("SET idle_in_transaction_session_timeout = '180s'")
            with pytest.raises(TableLocked) as raised:
                reading.reader.read(table, snapshot, progress=lambda _: None, stop=reading.stop)
            assert is_of_the_source(raised.value)
            # Those that were given back may still be ending.
            wait_for(lambda: not copying(reading), WAIT, "no session is left")
        reading.check("wide", reading.read("wide", snapshot), snapshot)


SWAP = (
    "BEGIN; ALTER TABLE {0} RENAME TO tmp; ALTER TABLE {1} RENAME TO {0};"
    " ALTER TABLE tmp RENAME TO {1}; COMMIT"
)


@pytest.mark.parametrize("rows", [10, 1000])
def test_partitions_that_exchange_their_names_are_not_taken_for_each_other(
    reading: Reading, rows: int
) -> None:
    reading.execute(
        "DROP PUBLICATION p",
        "CREATE TABLE parts (id int, region int, pad text, PRIMARY KEY (id, region))"
        " PARTITION BY LIST (region)",
        "CREATE TABLE part_a PARTITION OF parts FOR VALUES IN (1)",
        "CREATE TABLE part_b PARTITION OF parts FOR VALUES IN (2)",
        f"INSERT INTO parts SELECT n, 1, repeat('a', 300) FROM generate_series(1, {rows}) n",
        f"INSERT INTO parts SELECT n, 2, repeat('b', 300) FROM generate_series(1, {rows * 3}) n",
        "CREATE PUBLICATION p FOR TABLE parts WITH (publish_via_partition_root)",
    )
    with reading.snapshot() as snapshot:
        table = reading.table("parts")
        reading.execute(SWAP.format("part_a", "part_b"))
        with pytest.raises(PublicationChanged):
            reading.reader.read(table, snapshot, progress=lambda _: None, stop=reading.stop)
        # Described anew, the names are right again.
        reading.check("parts", reading.read("parts", snapshot), snapshot)


def test_tables_that_exchange_their_names_are_not_read_by_key(reading: Reading) -> None:
    reading.execute(*WIDE, "CREATE TABLE other (LIKE wide INCLUDING ALL)")
    with reading.snapshot() as snapshot:
        reading.read("wide", snapshot)
    reading.execute("UPDATE wide SET pad = 'y' WHERE id % 9 = 0")
    with reading.snapshot() as snapshot:
        table = reading.table("wide")
        reading.execute(SWAP.format("wide", "other"))
        with pytest.raises(PublicationChanged):
            reading.reader.read(table, snapshot, progress=lambda _: None, stop=reading.stop)


def test_stopping_between_waves_keeps_what_was_read(reading: Reading) -> None:
    reading.execute(*WIDE)

    def stop(rows: int) -> None:
        if rows:
            reading.stop.set()

    with reading.snapshot() as snapshot:
        with pytest.raises(Stopped):
            reading.reader.read(reading.table("wide"), snapshot, progress=stop, stop=reading.stop)
        before = reading.finished("wide")
        assert before > 0
        reading.stop.clear()
        reading.check("wide", reading.read("wide", snapshot), snapshot)
        assert reading.ranges_read("wide") == reading.finished("wide") > before


def test_many_tables_at_once_share_the_connections(
    database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    names = [f"t{number}" for number in range(6)]
    for name in names:
        database.execute(
            f"CREATE TABLE {name} AS SELECT n AS id, repeat('x', 300) AS pad"
            f" FROM generate_series(1, {700 if name < 't2' else 10}) n"
        )
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    most: list[int] = []
    with Capture(database.uri, tmp_path / "log", slot=f"{database.name}_s") as capture:
        reading = Reading(database.uri, spark, capture, connections=3)
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.01):
                most.append(len(held_sessions(database, reading.reader.application_name)))

        with (
            reading.snapshot() as snapshot,
            ThreadPoolExecutor(len(names) + 1) as pool,
        ):
            watching = pool.submit(watch)
            try:
                copies = list(pool.map(lambda name: reading.read(name, snapshot), names))
            finally:
                over.set()
            watching.result()
            for name, copy in zip(names, copies, strict=True):
                reading.check(name, copy, snapshot)
    assert 1 <= max(most) <= 3


def copying(reading: Reading) -> list[int]:
    """The sessions that copy."""
    rows = reading.execute(
        "SELECT pid FROM pg_stat_activity"
        f" WHERE application_name = '{reading.reader.application_name}'"
        " AND datname = current_database()"
    )
    return [int(str(pid)) for (pid,) in rows]


def test_a_killed_process_keeps_what_was_read(
    database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    database.execute(*WIDE, "CREATE PUBLICATION p FOR ALL TABLES")
    slot, log = f"{database.name}_s", str(tmp_path / "log")
    child = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.reading_child", database.uri, log, slot, "wide"],
        env={**os.environ, VARIABLE: "copy.range[public.wide]@20=kill"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    database.execute(
        "UPDATE wide SET pad = pad || 'y' WHERE id % 50 = 0", "DELETE FROM wide WHERE id % 50 = 1"
    )
    with Capture(database.uri, tmp_path / "log", slot=slot) as capture:
        reading = Reading(database.uri, spark, capture)
        copy = reading.copy_of("wide")
        before = reading.finished("wide")
        assert before >= 20
        # The machine went down too: two files are torn.
        first, second = sorted(copy.folder.glob("*.parquet"))[:2]
        first.write_bytes(first.read_bytes()[:-100])
        second.unlink()
        assert reading.finished("wide") == before - 2
        with reading.snapshot() as snapshot:
            reading.check("wide", reading.read("wide", snapshot), snapshot)
        plan = copy.plan()
        assert plan is not None
        assert reading.ranges_read("wide") == len(plan.ranges) - (before - 2)


def test_an_executor_that_dies_costs_no_finished_range(reading: Reading) -> None:
    """What executors noted counts, also if the driver never heard of it."""
    reading.execute(*WIDE)
    with reading.snapshot() as snapshot:
        set_failpoints("copy.range@1=raise")
        with pytest.raises(FailpointReached):
            reading.read("wide", snapshot)
        set_failpoints("")
        before = reading.finished("wide")
        assert before > 1
        copy = reading.read("wide", replace(snapshot))
        reading.check("wide", copy, snapshot)
        assert reading.ranges_read("wide") == reading.finished("wide") > before


def test_memory_does_not_grow_with_the_table(database: Database, tmp_path: Path) -> None:
    """However much a table has, or one range of it, an executor holds a row group at a time."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
        # 300 MB: texts of 10 kB cut out of a random megabyte, which are quickly made and compress
        # by no more than half.
        "WITH noise AS MATERIALIZED (SELECT string_agg(sha512(i::text::bytea), '') AS bytes"
        "                              FROM generate_series(1, 16384) i)"
        " INSERT INTO t SELECT n, encode(substr(bytes, n * 7919 % 1000000 + 1, 5000), 'hex')"
        "   FROM noise, generate_series(1, 30000) n",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    for ranges, range_bytes in (range(15, 40), 16 << 20), (range(1, 2), 1 << 40):
        folder = tmp_path / str(range_bytes)
        folder.mkdir()
        child = subprocess.run(
            [
                *(sys.executable, "-m", "tests.pipeline.ranging_child"),
                *(database.uri, str(folder), "p", str(range_bytes)),
            ],
            stdout=subprocess.PIPE,
            text=True,
            timeout=200,
            check=True,
        )
        made, rows, size, before, after = map(int, child.stdout.split())
        grown = after - before
        print(f"{made} ranges, {size >> 20} MB of files: took {grown >> 20} MB more at most")
        assert made in ranges
        assert rows == 30_000
        assert size > 100 << 20
        assert grown < 200 << 20
