"""One process at a time runs a pipeline: whose it is, and what becomes of those that lose it."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from tests.conftest import Database, fresh_database
from tests.pipeline.capturing import wait_for
from tests.pipeline.running import (
    QUICK,
    WAIT,
    catch_up,
    in_source,
    phase_of,
    running,
    settings_for,
)
from tests.pipeline.shelf import Shelf
from walflow.config import Settings, load_settings
from walflow.errors import LeaseLost, PipelineInUse, StoreError
from walflow.model import Lsn, Phase, TableName
from walflow.pipeline.pipeline import Pipeline
from walflow.pipeline.state.lease import LeaseKeeper
from walflow.pipeline.timing import Timing
from walflow.stores import open_store
from walflow.stores.base import Holder, Report
from walflow.stores.memory import Memory, MemoryStore
from walflow.testing.postgres import EmbeddedPostgres
from walflow.testing.redis import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ELSEWHERE = Holder("theirs", "another.host", 4711)
LONG = 3600.0
NOT_RENEWED = "the lease could not be renewed; trying again"


@pytest.fixture
def store_uri(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store of the kind that the test was parametrized with."""
    match request.param:
        case "sqlite":
            yield f"sqlite:///{tmp_path}/state.db"
        case "postgres":
            server: EmbeddedPostgres = request.getfixturevalue("postgres")
            for database in fresh_database(server):
                yield database.uri
        case "redis":
            with EmbeddedRedis() as redis:
                yield redis.uri


every_kind = pytest.mark.parametrize("store_uri", ["sqlite", "postgres", "redis"], indirect=True)


def nowhere(folder: Path, store_uri: str, log: str = "log") -> Settings:
    """Of a pipeline that would not find its source: who finds the lease taken does not look."""
    return load_settings(
        None,
        {
            "name": "test",
            "source.uri": "postgresql://me@127.0.0.1:1/x",
            "destination.uri": f"iceberg://{folder}/lake",
            "log.folder": str(folder / log),
            "store.uri": store_uri,
        },
        environment={},
    )


@every_kind
def test_a_second_one_is_refused(store_uri: str, tmp_path: Path) -> None:
    first, second = nowhere(tmp_path, store_uri), nowhere(tmp_path, store_uri, "other")
    with closing(open_store(first)) as store:
        keeper = LeaseKeeper(store, lambda: None, timing=Timing(lease=LONG))
        keeper.acquire()
        with pytest.raises(PipelineInUse) as refused:
            Pipeline(second).start()
        assert f"process {os.getpid()} on {socket.gethostname()}" in refused.value.message
        assert "--name" in refused.value.hint
        assert not (tmp_path / "other").exists()
        keeper.release()
        assert store.get_lease() is None


CHILD = """
import sys, time
from walflow.stores.sql import SqlStore
from walflow.stores.sql_sqlite import SqliteDatabase
from walflow.pipeline.state.lease import LeaseKeeper
from walflow.pipeline.timing import Timing
from pathlib import Path
store = SqlStore(SqliteDatabase(Path(sys.argv[1])), "test")
LeaseKeeper(store, lambda: None, timing=Timing(lease=3600.0)).acquire()
print("holding", flush=True)
time.sleep(600)
"""


def test_a_killed_one_on_this_machine_is_taken_over_at_once(tmp_path: Path) -> None:
    settings = nowhere(tmp_path, f"sqlite:///{tmp_path}/state.db")
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "state.db")], stdout=subprocess.PIPE
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"holding\n"
            with closing(open_store(settings)) as store:
                with pytest.raises(PipelineInUse, match=f"process {child.pid} on "):
                    LeaseKeeper(store, lambda: None).acquire()
                # Not reaped yet: it is still in the list of processes.
                os.kill(child.pid, signal.SIGKILL)
                child.wait()
                lease = store.get_lease()
                assert lease is not None
                assert lease.seconds_left > LONG / 2
                keeper = LeaseKeeper(store, lambda: None)
                keeper.acquire()
                keeper.release()
        finally:
            child.kill()


def test_a_number_that_another_process_has_now(tmp_path: Path) -> None:
    # Of a container that was started again, say: process 1 died, and there is a process 1.
    store = MemoryStore("test")
    mine = LeaseKeeper(store, lambda: None)
    mine.acquire()
    lease = store.get_lease()
    assert lease is not None
    mine.release()
    own, place, _start = lease.holder.id.split("/")
    store.acquire_lease(Holder(f"{own}/{place}/1", socket.gethostname(), os.getpid()), LONG)
    keeper = LeaseKeeper(store, lambda: None)
    keeper.acquire()
    keeper.release()


@pytest.mark.parametrize(
    "holder", [ELSEWHERE, Holder("x/another boot/1", socket.gethostname(), 2**22 + 1)]
)
def test_one_that_cannot_be_seen_is_waited_for(holder: Holder) -> None:
    """Also one of the same host name: two containers may have it."""
    store = MemoryStore("test")
    store.acquire_lease(holder, 1.0)
    keeper = LeaseKeeper(store, lambda: None)
    keeper.acquire()
    keeper.release()
    store.acquire_lease(holder, LONG)
    with pytest.raises(PipelineInUse, match=f"process {holder.pid} on {holder.host}"):
        LeaseKeeper(store, lambda: None, timing=Timing(lease=0.2)).acquire()


def test_one_elsewhere_that_renews_is_not_waited_for() -> None:
    memory = Memory()
    theirs, ours = MemoryStore("test", memory), MemoryStore("test", memory)
    theirs.acquire_lease(ELSEWHERE, LONG)
    seen = threading.Event()

    def renew() -> None:
        # Again and again: who looks late must see it, too.
        for number in itertools.count(1):
            if seen.wait(0.3):
                return
            theirs.renew_lease(ELSEWHERE, LONG + 60 * number)

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        with pytest.raises(PipelineInUse):
            LeaseKeeper(ours, lambda: None, timing=Timing(lease=LONG)).acquire()
    finally:
        seen.set()
        renewing.join()


class _Renewed(MemoryStore):
    """Tells of every renewal."""

    def __init__(self, memory: Memory) -> None:
        super().__init__("test", memory)
        self.renewals = threading.Semaphore(0)

    def renew_lease(self, holder: Holder, seconds: float, report: Report | None = None) -> None:
        super().renew_lease(holder, seconds, report)
        self.renewals.release()


def test_a_lease_is_renewed_whatever_else_takes_long() -> None:
    memory = Memory()
    report = Report(Lsn(3), Lsn(2), Lsn(1), 0.5, 0.0)
    store = _Renewed(memory)
    # Long enough for a machine that stands still, and renewed often all the same.
    keeper = LeaseKeeper(store, lambda: report, timing=Timing(lease=LONG, lease_renewal=0.1))
    keeper.acquire()
    other = MemoryStore("test", memory)
    for _ in range(10):
        assert store.renewals.acquire(timeout=WAIT)
        with pytest.raises(PipelineInUse):
            other.acquire_lease(ELSEWHERE, LONG)
    lease = other.get_lease()
    assert lease is not None
    assert lease.report == report
    keeper.check()
    keeper.release()
    assert other.get_lease() is None


class _Hanging(MemoryStore):
    """Does not answer while ``hangs`` is set."""

    def __init__(self) -> None:
        super().__init__("test")
        self.hangs = threading.Event()

    def renew_lease(self, holder: Holder, seconds: float, report: Report | None = None) -> None:
        while self.hangs.is_set():
            time.sleep(0.01)
        super().renew_lease(holder, seconds, report)


def test_a_store_that_hangs_does_not_hide_that_the_lease_ran_out() -> None:
    store = _Hanging()
    keeper = LeaseKeeper(store, lambda: None, timing=Timing(lease=0.5, lease_renewal=0.1))
    keeper.acquire()

    def is_ours() -> bool:
        try:
            keeper.check()
        except StoreError:
            return False
        return True

    try:
        store.hangs.set()
        wait_for(lambda: not is_ours(), WAIT)
    finally:
        store.hangs.clear()
    # Nobody took it.
    wait_for(is_ours, WAIT)
    keeper.release()


# Whole pipelines.


@pytest.fixture
def settings(database: Database, tmp_path: Path) -> Settings:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        "INSERT INTO a SELECT i, 'a' || i FROM generate_series(1, 50) i",
        "CREATE PUBLICATION walflow FOR TABLE a",
    )
    return settings_for(database, tmp_path)


@pytest.mark.spark
def test_a_pipeline_that_loses_its_lease_ends_and_leaves_the_store_alone(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    shelf, stuck, go_on = Shelf(), threading.Event(), threading.Event()

    def wait(_table: TableName) -> None:
        stuck.set()
        go_on.wait(WAIT)

    shelf.before_batch = wait
    with running(settings, spark, destination=shelf) as pipeline:
        with pytest.raises(PipelineInUse, match=f"process {os.getpid()}"):
            Pipeline(settings, spark=spark, destination=Shelf()).start()
        wait_for(lambda: phase_of(pipeline, "a") is Phase.READY, WAIT)
        database.execute("UPDATE a SET v = 'written, but not by the one that may'")
        assert stuck.wait(WAIT)
        with closing(open_store(settings)) as others:
            lease = others.get_lease()
            assert lease is not None
            others.release_lease(lease.holder)
            others.acquire_lease(ELSEWHERE, LONG)
            before = others.get_table_replication_states()
            # By then nobody may have had it, if it was just to be renewed.
            with pytest.raises(LeaseLost, match=r"process 4711 on another\.host|not this process"):
                pipeline.wait()
            go_on.set()
            pipeline.shutdown()
            others.load_table_replication_states()
            assert others.get_table_replication_states() == before
            lease = others.get_lease()
            assert lease is not None
            assert lease.holder == ELSEWHERE
            others.release_lease(ELSEWHERE)
    with running(settings, spark, destination=shelf):
        assert shelf.rows("a") == in_source(database, "a")
    assert shelf.copies == {TableName("public", "a"): 1}
    with closing(open_store(settings)) as others:
        assert others.get_lease() is None


@pytest.mark.spark
def test_a_store_that_is_away_for_shorter_than_the_lease(
    spark: SparkSession, settings: Settings, database: Database, tmp_path: Path
) -> None:
    shelf = Shelf()
    with EmbeddedRedis() as redis:
        settings = settings_for(database, tmp_path, store__uri=redis.uri)
        timing = replace(QUICK, lease_renewal=0.1)
        with (
            capture_logs() as logs,
            running(settings, spark, destination=shelf, timing=timing) as pipeline,
        ):
            # A table on its way to Ready waits for the store.
            wait_for(lambda: phase_of(pipeline, "a") is Phase.READY, WAIT)
            redis.crash()
            database.execute("UPDATE a SET v = 'while the store is away'")
            wait_for(lambda: shelf.rows("a") == in_source(database, "a"), WAIT)
            wait_for(lambda: NOT_RENEWED in [line["event"] for line in logs], WAIT)
            redis.start()
            database.execute("UPDATE a SET v = 'it is back'")
            catch_up(pipeline)
            assert shelf.rows("a") == in_source(database, "a")
            wait_for(lambda: phase_of(pipeline, "a") is Phase.READY, WAIT)


@pytest.mark.spark
def test_a_store_that_is_away_for_longer_than_the_lease(
    spark: SparkSession, settings: Settings, database: Database, tmp_path: Path
) -> None:
    shelf = Shelf()
    with EmbeddedRedis() as redis:
        settings = settings_for(database, tmp_path, store__uri=redis.uri)
        with running(settings, spark, destination=shelf):
            pass
        short = Timing(lease=15.0, lease_renewal=0.5)
        with running(settings, spark, destination=shelf, timing=short, caught_up=False) as pipeline:
            redis.crash()
            # Whoever notices first tells: a write that fails, or the lease that ran out.
            with pytest.raises(StoreError, match=r"redis|the store has not answered"):
                pipeline.wait()
        redis.start()
        database.execute("UPDATE a SET v = 'later'")
        with running(settings, spark, destination=shelf):
            assert shelf.rows("a") == in_source(database, "a")
    assert shelf.copies == {TableName("public", "a"): 1}
