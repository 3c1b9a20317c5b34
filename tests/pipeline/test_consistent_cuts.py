"""Pictures: versions of several tables that show the source at one and the same commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Database
from tests.destinations.reference import make_schema, reading_session
from tests.pipeline.following import wait_all_ready
from tests.pipeline.running import QUICK, catch_up, running, settings_for
from walflow.destinations.iceberg import IcebergFormat
from walflow.destinations.lake import LakeDestination, Owner
from walflow.model import Lsn, Phase, TableName
from walflow.observe.metrics import Metrics
from walflow.pipeline.apply.consistent_cuts import Committed, ConsistentCuts, newest_common
from walflow.pipeline.state.status import PipelineStatus
from walflow.pipeline.state.table_states import TableState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def batches(*spans: tuple[int, int]) -> list[Committed]:
    return [Committed(Lsn(begins), Lsn(position), position) for begins, position in spans]


def common(
    *tables: tuple[list[Committed], int],
) -> tuple[int, list[int]] | None:
    found = newest_common(
        {number: of_table for number, (of_table, _) in enumerate(tables)},
        {number: Lsn(complete) for number, (_, complete) in enumerate(tables)},
    )
    if found is None:
        return None
    return int(found[0]), [int(found[1][number].position) for number in range(len(tables))]


def test_tables_that_have_all_belong_together() -> None:
    assert common((batches((0, 10)), 50), (batches((0, 10), (20, 30)), 50)) == (50, [10, 30])


def test_a_table_that_is_ahead_is_shown_as_it_was() -> None:
    # The second has a batch of (40, 60] already, and nothing of it before 40.
    assert common((batches((0, 10)), 50), (batches((0, 10), (40, 60)), 60)) == (40, [10, 10])


def test_a_batch_across_hides_what_is_inside() -> None:
    first = batches((0, 10), (10, 30), (30, 50))
    assert common((first, 50), (batches((0, 10), (15, 45)), 45)) == (10, [10, 10])
    assert common((first, 50), (batches((0, 20), (25, 50)), 50)) == (50, [50, 50])
    assert common((first, 50), (batches((0, 20), (25, 45)), 45)) is None


def test_nothing_is_known_from_before_a_table_was_ready() -> None:
    assert common((batches((0, 40)), 50), (batches((0, 10), (20, 30)), 30)) is None
    assert newest_common({}, {}) is None


@pytest.mark.spark
def test_batches_end_at_cuts_unless_a_table_is_far_behind(
    spark: SparkSession, tmp_path: Path
) -> None:
    now = [1000.0]
    lake = LakeDestination(spark, IcebergFormat(str(tmp_path)), Owner("test", "whoever"))
    cuts = ConsistentCuts(spark, lake, Metrics().pipeline("t"), lambda: now[0])
    for position in (20, 30, 40):
        # The second comes too soon after the first.
        now[0] += 6
        cuts.look(a_status(position))
    ends = [Lsn(10), Lsn(20), Lsn(30), Lsn(50)]
    recently, long_ago = 1_000_000_000, 900_000_000
    assert cuts.before_cut(ends, recently) == 2
    assert cuts.before_cut(ends[2:], recently) == 1
    assert cuts.before_cut(ends[3:], recently) == 1
    assert cuts.before_cut(ends[:2], recently) == 2
    assert cuts.before_cut(ends, long_ago) == 4
    cuts.close(None)
    lake.shutdown()


def a_status(routed: int) -> PipelineStatus:
    tables = tuple(
        TableState.new(
            make_schema({"id": "int"}, ["id"], name), TableName("public", name), Phase.READY
        )
        for name in ("t", "u")
    )
    tables = tuple(
        replace(state, schema=replace(state.schema, oid=number))
        for number, state in enumerate(tables)
    )
    end = Lsn(routed)
    return PipelineStatus(tables, end, end, end, Lsn(0), 0.0, uncertain=True)


# Whole pipelines.

TRANSFER = (
    "BEGIN",
    "UPDATE savings SET amount = amount - 1 WHERE id = (SELECT count(*) FROM ledger) % 10",
    "UPDATE checking SET amount = amount + 1 WHERE id = (SELECT count(*) FROM ledger) % 7",
    "INSERT INTO ledger SELECT count(*) + 1 FROM ledger",
    "COMMIT",
)
START = 1000


@pytest.mark.spark
def test_every_cut_is_of_one_transaction(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE savings (id bigint PRIMARY KEY, amount int)",
        "CREATE TABLE checking (id bigint PRIMARY KEY, amount int)",
        "CREATE TABLE ledger (n bigint PRIMARY KEY)",
        f"INSERT INTO savings SELECT g, {START} FROM generate_series(0, 9) g",
        f"INSERT INTO checking SELECT g, {START} FROM generate_series(0, 6) g",
        "CREATE PUBLICATION walflow FOR TABLE savings, checking, ledger",
    )
    settings = settings_for(database, tmp_path)
    with running(settings, spark, timing=replace(QUICK, cut=1.0)) as pipeline:
        # Pictures from before may lack tables: those that were not ready.
        wait_all_ready(pipeline)
        begin = pipeline.source_position()
        with transfers(database):
            wait_for_cuts(spark, tmp_path, begin, 4)
        catch_up(pipeline)
    (done,) = database.execute("SELECT count(*) FROM ledger")[0]
    kept = positions(spark, tmp_path, begin)
    assert len(kept) >= 4
    lake = LakeDestination(spark, IcebergFormat(f"{tmp_path}/lake"), Owner("test", "whoever"))
    reader = reading_session(spark, tmp_path / "lake")
    counts = []
    for position in (kept[0], *kept[1:-1][:: max(1, len(kept) // 6)], kept[-1]):
        found = lake.as_of(position)
        assert found is not None
        assert found.cut.since <= position <= found.cut.upto
        names = [table.source.name for table in found.cut.tables]
        queries = dict(zip(names, found.queries, strict=True))
        (count,) = reader.sql(f"SELECT count(*) FROM ({queries['ledger']})").collect()[0]
        (less,) = reader.sql(f"SELECT sum(amount) FROM ({queries['savings']})").collect()[0]
        (more,) = reader.sql(f"SELECT sum(amount) FROM ({queries['checking']})").collect()[0]
        assert (less, more) == (10 * START - count, 7 * START + count)
        counts.append(count)
    lake.shutdown()
    assert counts == sorted(counts)
    assert len(set(counts)) > 2
    # The last one is kept when the pipeline ends.
    assert counts[-1] == done


@contextmanager
def transfers(database: Database) -> Iterator[None]:
    """One after the other, while the block runs."""
    ended = threading.Event()

    def transfer() -> None:
        with database.connect() as connection:
            while not ended.wait(0.02):
                for statement in TRANSFER:
                    connection.execute(statement)

    thread = threading.Thread(target=transfer)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def positions(spark: SparkSession, folder: Path, after: Lsn) -> list[Lsn]:
    """Of the pictures behind ``after`` that are kept, oldest first."""
    reader = reading_session(spark, folder / "lake")
    if not reader.catalog.tableExists("lake._walflow.consistent_cuts_test"):
        return []
    rows = reader.sql(
        "SELECT DISTINCT lsn FROM lake._walflow.consistent_cuts_test"
        f" WHERE lsn > {int(after)} ORDER BY lsn"
    )
    return [Lsn(row["lsn"]) for row in rows.collect()]


def wait_for_cuts(spark: SparkSession, folder: Path, after: Lsn, count: int) -> None:
    deadline = time.monotonic() + 180
    while len(kept := positions(spark, folder, after)) < count:
        assert time.monotonic() < deadline, f"only {len(kept)} pictures were kept"
        time.sleep(1)
