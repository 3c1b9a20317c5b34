"""What may become of a pipeline's slot, and what a pipeline leaves of slots and other things."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.conftest import Database, ServerFactory, fresh_database
from tests.pipeline.capturing import ALWAYS_BULK, wait_for
from tests.pipeline.following import Writer
from tests.pipeline.running import (
    HOLD,
    WAIT,
    catch_up,
    fill_two_tables,
    in_source,
    phase_of,
    running,
    settings_for,
    told_to_end,
)
from tests.pipeline.shelf import PositionedShelf, Shelf
from walflow.changelog.copies import CopyFolder
from walflow.config import Settings
from walflow.errors import DestinationError, MappingConflict, SlotLost, SourceError, Stopped
from walflow.failpoints import set_failpoints
from walflow.model import Phase, TableName
from walflow.observe.metrics import Metrics
from walflow.pipeline.pipeline import Pipeline
from walflow.stores import open_store
from walflow.stores.memory import MemoryStore
from walflow.testing.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

A, B = TableName("public", "a"), TableName("public", "b")
SLOTS = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() ORDER BY 1"


@pytest.fixture
def source(database: Database) -> Database:
    fill_two_tables(database)
    return database


@pytest.fixture(autouse=True)
def no_failpoints() -> Iterator[None]:
    yield
    set_failpoints("")


def slots(database: Database) -> list[str]:
    return [name for (name,) in database.execute(SLOTS)]


def assert_equal(shelf: Shelf, database: Database) -> None:
    for table in ("a", "b"):
        assert shelf.rows(table) == in_source(database, table)


def in_store(settings: Settings) -> dict[TableName, Phase]:
    with closing(open_store(settings)) as store:
        states = store.get_table_replication_states().values()
        return {state.table: state.phase for state in states}


def drop(database: Database, slot: str) -> None:
    _take_away(database, slot, f"SELECT pg_drop_replication_slot('{slot}')")


def advance(database: Database, slot: str) -> None:
    _take_away(
        database, slot, f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())"
    )


def _take_away(database: Database, slot: str, statement: str) -> None:
    """Also from a pipeline that runs: whoever reads the slot is ended, and may not be back yet."""
    end = (
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
        f" WHERE slot_name = '{slot}' AND active_pid IS NOT NULL"
    )

    def done() -> bool:
        with contextlib.suppress(psycopg.errors.ObjectInUse):
            database.execute(end)
            # A change that the reader will not have seen.
            database.execute("INSERT INTO a SELECT max(id) + 1, 'missed' FROM a", statement)
            return True
        return False

    wait_for(done, WAIT)


@pytest.mark.parametrize("lose", [drop, advance], ids=["gone", "read by someone else"])
def test_a_slot_that_was_lost_while_nobody_ran(
    spark: SparkSession, source: Database, tmp_path: Path, lose: object
) -> None:
    assert callable(lose)
    settings = settings_for(source, tmp_path)
    shelf = PositionedShelf()
    with running(settings, spark, destination=shelf):
        pass
    lose(source, settings.slot)
    before = slots(source), in_store(settings), shelf.rows("a")
    files = sorted(settings.log_folder.rglob("*"))
    with pytest.raises(SlotLost) as lost:
        Pipeline(settings, spark=spark, destination=shelf).start()
    assert "source.on_slot_lost: resync" in lost.value.hint
    assert (slots(source), in_store(settings), shelf.rows("a")) == before
    assert sorted(settings.log_folder.rglob("*")) == files
    settings = settings_for(source, tmp_path, source__on_slot_lost="resync")
    with running(settings, spark, destination=shelf) as pipeline:
        assert_equal(shelf, source)
        source.execute("UPDATE b SET v = 'followed again'")
        catch_up(pipeline)
        assert_equal(shelf, source)
    assert shelf.copies == {A: 2, B: 2}
    assert slots(source) == [settings.slot]


def test_changes_that_were_lost_while_a_table_waited_for_the_log(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    settings = settings_for(source, tmp_path, source__on_slot_lost="resync")
    store, shelf = MemoryStore("test"), Shelf()
    with running(settings, spark, destination=shelf, store=store):
        pass
    # As a process leaves it that is killed right after the copy.
    states = store.get_table_replication_states()
    store.update_table_replication_states(
        {oid: replace(s, phase=Phase.SYNC_WAIT, since=time.time()) for oid, s in states.items()}
    )
    advance(source, settings.slot)
    with running(settings, spark, destination=shelf, store=store):
        assert_equal(shelf, source)
    assert shelf.copies == {A: 2, B: 2}


def test_a_slot_that_postgres_has_given_up(spark: SparkSession, tmp_path: Path) -> None:
    limits = {"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    with EmbeddedPostgres(settings=limits) as server:
        source = Database(server, "postgres")
        fill_two_tables(source)
        settings = settings_for(source, tmp_path)
        shelf = Shelf()
        with running(settings, spark, destination=shelf):
            pass
        for _ in range(4):
            source.execute(
                "SELECT pg_switch_wal()",
                "INSERT INTO a SELECT max(id) + 1, 'missed' FROM a",
                "CHECKPOINT",
            )
        with pytest.raises(SlotLost, match="invalidated") as lost:
            Pipeline(settings, spark=spark, destination=shelf).start()
        assert "max_slot_wal_keep_size" in lost.value.hint
        settings = settings_for(source, tmp_path, source__on_slot_lost="resync")
        with running(settings, spark, destination=shelf):
            assert_equal(shelf, source)
        assert shelf.copies == {A: 2, B: 2}
        assert slots(source) == [settings.slot]


def test_a_slot_that_is_lost_under_a_running_pipeline(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    settings = settings_for(source, tmp_path)
    shelf = PositionedShelf()
    with running(settings, spark, destination=shelf) as pipeline:
        drop(source, settings.slot)
        with pytest.raises(SlotLost) as lost:
            pipeline.wait()
    assert "source.on_slot_lost: resync" in lost.value.hint
    assert slots(source) == []
    settings = settings_for(source, tmp_path, source__on_slot_lost="resync")
    with running(settings, spark, destination=shelf):
        assert_equal(shelf, source)
    assert shelf.copies == {A: 2, B: 2}


def test_a_running_pipeline_makes_a_new_slot(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    """While tables are written to, one is set aside and another is being copied."""
    source.execute("CREATE TABLE c (id int PRIMARY KEY)", "INSERT INTO c VALUES (1)")
    settings = settings_for(source, tmp_path, source__on_slot_lost="resync")
    shelf, broken, copying, go_on = (
        PositionedShelf(),
        threading.Event(),
        threading.Event(),
        threading.Event(),
    )

    def refuse(table: TableName) -> None:
        if table == B and broken.is_set():
            raise DestinationError("not now")

    def linger(table: TableName) -> None:
        if table.name == "c" and not go_on.is_set():
            copying.set()
            go_on.wait(HOLD)

    shelf.before_batch, shelf.before_copy = refuse, linger
    with running(settings, spark, destination=shelf) as pipeline:
        broken.set()
        source.execute("UPDATE b SET v = 'refused'")
        wait_for(lambda: phase_of(pipeline, "b") is Phase.ERRORED, WAIT)
        source.execute("ALTER PUBLICATION walflow ADD TABLE c")
        assert copying.wait(WAIT)
        with Writer(source, "UPDATE a SET v = '{n}' WHERE id = 1 + {n} % 50"):
            drop(source, settings.slot)
            broken.clear()
            go_on.set()
            wait_for(lambda: shelf.copies[A] == 2 and shelf.copies[B] == 2, WAIT)
            wait_for(lambda: phase_of(pipeline, "c") is Phase.READY, WAIT)
            advance(source, settings.slot)
            wait_for(lambda: shelf.copies[A] == 3 and shelf.copies[B] == 3, WAIT)
        catch_up(pipeline)
        assert_equal(shelf, source)
        assert shelf.rows("c") == in_source(source, "c")
        assert slots(source) == [settings.slot]


@pytest.mark.parametrize("version", [16, 17, 18])
def test_a_slot_that_standbys_keep(
    spark: SparkSession, start_postgres: ServerFactory, tmp_path: Path, version: int
) -> None:
    for source in fresh_database(start_postgres(version)):
        fill_two_tables(source)
        settings = settings_for(source, tmp_path, source__failover=True)
        if version < 17:
            with pytest.raises(SourceError, match="survive a failover") as refused:
                Pipeline(settings, spark=spark, destination=Shelf()).start()
            assert "Postgres 17" in refused.value.hint
            assert slots(source) == []
            assert not settings.log_folder.exists()
            continue
        with running(settings, spark, destination=Shelf()):
            kept = source.execute(
                f"SELECT failover FROM pg_replication_slots WHERE slot_name = '{settings.slot}'"
            )
            assert kept == [(True,)]


def test_a_kill_leaves_no_temporary_slot(source: Database, tmp_path: Path) -> None:
    """In the middle of a bulk read, which has one of its own."""
    slot = f"slot_{source.name}"
    arguments = [source.uri, str(tmp_path / "log"), slot, str(ALWAYS_BULK), "0", "holds"]
    source.execute(
        "CREATE PUBLICATION p FOR TABLE a",
        f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
        "INSERT INTO a SELECT i, repeat('x', 500) FROM generate_series(100, 100000) i",
    )
    with subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.capturing_child", *arguments],
        stdout=subprocess.PIPE,
    ) as child:
        try:
            wait_for(lambda: any("_bulk_" in name for name in slots(source)), WAIT)
        finally:
            os.kill(child.pid, signal.SIGKILL)
    wait_for(lambda: slots(source) == [slot], WAIT)


def assert_nothing_left(settings: Settings, source: Database) -> None:
    assert slots(source) == []
    assert not settings.log_folder.exists()
    assert in_store(settings) == {}
    assert not source.execute("SELECT FROM pg_publication WHERE pubname = 'made_by_us'")


def let_go_at_the_end(pipeline: Pipeline) -> threading.Thread:
    """The shutdown waits for copies that are held: they go on once it has told them to end."""

    def let_go() -> None:
        wait_for(lambda: told_to_end(pipeline), WAIT)
        set_failpoints("")

    thread = threading.Thread(target=let_go)
    thread.start()
    return thread


def test_a_first_start_that_comes_to_nothing_leaves_nothing(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    settings = settings_for(
        source,
        tmp_path,
        store__uri=f"sqlite:///{tmp_path}/elsewhere.db",
        source__publication="made_by_us",
        source__create_publication=True,
        tables__include="public.a, public.b",
    )
    # Stopped while the slot is waited for.
    pipeline = Pipeline(settings, spark=spark, destination=Shelf())

    def stop_when_it_waits() -> None:
        wait_for(lambda: slots(source) != [], WAIT)
        pipeline.stop()

    with source.connect(autocommit=False) as writing:
        writing.execute("INSERT INTO a VALUES (1000, 'not committed')")
        stopping = threading.Thread(target=stop_when_it_waits)
        stopping.start()
        with pytest.raises((Stopped, SourceError)):
            pipeline.start()
        stopping.join()
        writing.rollback()
    assert_nothing_left(settings, source)
    # Stopped before a range was read.
    set_failpoints("sync.data_sync=hold")
    with running(settings, spark, destination=Shelf(), caught_up=False) as pipeline:
        wait_for(lambda: phase_of(pipeline, "a") is Phase.DATA_SYNC, WAIT)
        letting_go = let_go_at_the_end(pipeline)
    letting_go.join()
    assert_nothing_left(settings, source)
    # Ended by an error.
    settings = settings.model_copy(
        update={"mapping": settings.mapping.model_copy(update={"template": "all.one"})}
    )
    with pytest.raises(MappingConflict), running(settings, spark, destination=Shelf()):
        pass
    assert_nothing_left(settings, source)


def test_a_first_start_that_is_stopped_while_it_copies_goes_on(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    source.execute("INSERT INTO b SELECT i, repeat('x', 500) FROM generate_series(100, 3000) i")
    settings = settings_for(source, tmp_path, copy__range_bytes=64 << 10, max_copy_connections=1)
    shelf, metrics = Shelf(), Metrics()

    def ranges() -> int:
        labels = {"pipeline": "test", "table": "public.b"}
        return int(metrics.registry.get_sample_value("etl_table_copy_ranges_total", labels) or 0)

    set_failpoints("copy.range[public.b]=hold")
    with running(settings, spark, destination=shelf, metrics=metrics, caught_up=False) as pipeline:
        wait_for(lambda: ranges() > 0, WAIT)
        letting_go = let_go_at_the_end(pipeline)
    letting_go.join()
    assert slots(source) == [settings.slot]
    assert shelf.copies[B] == 0
    ((oid,),) = source.execute("SELECT 'b'::regclass::oid")
    plan = CopyFolder(oid, settings.log_folder / "copy" / str(oid)).plan()
    assert plan is not None
    assert 0 < ranges() < len(plan.ranges)
    source.execute("DELETE FROM b WHERE id % 3 = 0", "UPDATE a SET v = 'meanwhile' WHERE id < 5")
    with running(settings, spark, destination=shelf, metrics=metrics):
        assert_equal(shelf, source)
    assert shelf.copies == {A: 1, B: 1}
    assert ranges() == len(plan.ranges)
