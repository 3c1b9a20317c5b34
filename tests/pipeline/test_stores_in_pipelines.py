"""Whole pipelines on each kind of store, and on stores that are lost or fail."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from tests.conftest import Database, fresh_database
from tests.pipeline.capturing import wait_for
from tests.pipeline.running import (
    WAIT,
    catch_up,
    fill_two_tables,
    in_source,
    phase_of,
    running,
    settings_for,
)
from tests.pipeline.shelf import PositionedShelf, Shelf
from tests.stores.small import Small
from walflow.config import Settings
from walflow.errors import ConfigError, PipelineInUse, StoreError, StoreForeign
from walflow.model import Lsn, Phase, TableName, TableSchema
from walflow.pipeline.pipeline import Pipeline
from walflow.states import TableReplicationState
from walflow.stores import STATE_FILE, open_store
from walflow.stores.memory import MemoryStore
from walflow.testing.postgres import EmbeddedPostgres
from walflow.testing.redis import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

A, B = TableName("public", "a"), TableName("public", "b")
READY = {"a": Phase.READY, "b": Phase.READY}


@pytest.fixture
def source(database: Database) -> Database:
    fill_two_tables(database)
    return database


@pytest.fixture
def other_database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    yield from fresh_database(postgres)


@pytest.fixture
def redis() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


def assert_equal(shelf: Shelf, database: Database) -> None:
    for table in ("a", "b"):
        assert shelf.rows(table) == in_source(database, table)


def run_twice(spark: SparkSession, settings: Settings, source: Database, shelf: Shelf) -> None:
    """Copy, and go on after a restart without copying."""
    with running(settings, spark, destination=shelf):
        assert_equal(shelf, source)
    source.execute("UPDATE a SET v = 'while away' WHERE id < 9", "DELETE FROM b WHERE id < 5")
    with running(settings, spark, destination=shelf) as pipeline:
        assert_equal(shelf, source)
        wait_for(lambda: {n: phase_of(pipeline, n) for n in READY} == READY, WAIT)
    assert shelf.copies == {A: 1, B: 1}


def in_store(settings: Settings) -> dict[TableName, Phase]:
    with closing(open_store(settings)) as store:
        states = store.get_table_replication_states().values()
        return {state.table: state.phase for state in states}


@pytest.mark.parametrize("kind", ["postgres", "postgres in the source", "redis", "sqlite"])
def test_a_restart_goes_on(
    spark: SparkSession,
    source: Database,
    tmp_path: Path,
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    uri = f"sqlite:///{tmp_path}/states/of.db"
    if kind == "postgres":
        uri = request.getfixturevalue("other_database").uri
    elif kind == "redis":
        uri = request.getfixturevalue("redis").uri
    elif kind == "postgres in the source":
        uri = source.uri
    settings = settings_for(source, tmp_path, store__uri=uri)
    run_twice(spark, settings, source, Shelf())
    assert in_store(settings) == {A: Phase.READY, B: Phase.READY}
    # Nothing of it is in the source that was not asked for.
    schemas = {name for (name,) in source.execute("SELECT nspname FROM pg_namespace")}
    assert ("walflow" in schemas) is (kind == "postgres in the source")


def test_a_store_that_would_be_followed_is_refused(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    settings = settings_for(
        database, tmp_path, store__uri=database.uri, source__create_publication=True
    )
    with pytest.raises(ConfigError, match="has the tables of the pipeline's store in it"):
        Pipeline(settings, spark=spark, destination=Shelf()).start()
    assert database.execute("SELECT FROM pg_publication") == []
    assert (
        database.execute("SELECT FROM pg_replication_slots WHERE database = current_database()")
        == []
    )
    assert not settings.log_folder.exists()


def test_without_memory_log_and_destination_know(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    settings = settings_for(source, tmp_path, store__uri="memory:")
    run_twice(spark, settings, source, PositionedShelf())


def test_a_store_that_was_deleted(spark: SparkSession, source: Database, tmp_path: Path) -> None:
    settings = settings_for(source, tmp_path)
    kept, copied = PositionedShelf(), Shelf()
    with running(settings, spark, destination=kept), capture_logs() as lines:
        pass
    assert warnings_of_loss(lines) == []
    for file in settings.log_folder.glob(f"{STATE_FILE}*"):
        file.unlink()
    source.execute("UPDATE a SET v = 'nobody noted it'")
    with capture_logs() as lines, running(settings, spark, destination=kept) as pipeline:
        assert_equal(kept, source)
        wait_for(lambda: {n: phase_of(pipeline, n) for n in READY} == READY, WAIT)
    assert kept.copies == {A: 1, B: 1}
    assert warnings_of_loss(lines) == []
    for file in settings.log_folder.glob(f"{STATE_FILE}*"):
        file.unlink()
    # A destination that knows no position: nobody knows how far it is.
    source.execute("DELETE FROM a WHERE id > 40")
    with capture_logs() as lines, running(settings, spark, destination=copied):
        assert_equal(copied, source)
    assert copied.copies == {A: 1, B: 1}
    (warning,) = warnings_of_loss(lines)
    assert "the store knows of no table: all are copied" in warning["event"]


def test_a_log_and_a_store_that_were_deleted_are_told_of(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    settings, shelf = settings_for(source, tmp_path), PositionedShelf()
    # A slot that somebody made beforehand is no loss.
    slot = settings.slot
    source.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    with capture_logs() as lines, running(settings, spark, destination=shelf):
        assert_equal(shelf, source)
    assert warnings_of_loss(lines) == []
    shutil.rmtree(settings.log_folder)
    source.execute("UPDATE a SET v = 'nobody noted it'")
    with capture_logs() as lines, running(settings, spark, destination=shelf):
        assert_equal(shelf, source)
    assert shelf.copies == {A: 2, B: 2}
    (warning,) = warnings_of_loss(lines)
    assert warning["log_level"] == "warning"
    for found in ("the slot is there", "destination has tables of this", "are copied again"):
        assert found in warning["event"]
    assert warning["tables"] == "public.a, public.b"
    assert str(settings.log_folder) in warning["hint"]


def test_a_slot_that_is_gone_with_log_and_store_is_told_of(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    settings, shelf = settings_for(source, tmp_path), PositionedShelf()
    with capture_logs() as lines, running(settings, spark, destination=shelf):
        assert_equal(shelf, source)
    assert warnings_of_loss(lines) == []  # a first start is no loss
    shutil.rmtree(settings.log_folder)
    source.execute(f"SELECT pg_drop_replication_slot('{settings.slot}')")
    with capture_logs() as lines, running(settings, spark, destination=shelf):
        assert_equal(shelf, source)
    assert shelf.copies == {A: 2, B: 2}
    (warning,) = warnings_of_loss(lines)
    assert "the destination has tables of this pipeline" in warning["event"]
    assert warning["tables"] == "public.a, public.b"
    assert str(settings.log_folder) in warning["hint"]


def warnings_of_loss(lines: Iterable[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    return [
        line
        for line in lines
        if line["event"].startswith(("the slot is there", "the slot is a new one"))
    ]


class _Unreadable(PositionedShelf):
    """Cannot say how far some of its tables are."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: set[TableName] = set()

    def applied(self, table: TableSchema) -> Lsn | None:
        if table.name in self.unreadable:
            raise OSError(f"the file of {table.name} is damaged")
        return super().applied(table)


def test_one_unreadable_table_does_not_stop_a_start_without_the_store(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    settings, shelf = settings_for(source, tmp_path, store__uri="memory:"), _Unreadable()
    with running(settings, spark, destination=shelf):
        assert_equal(shelf, source)
    source.execute("UPDATE a SET v = 'while away' WHERE id < 9", "DELETE FROM b WHERE id < 5")
    # If it can read none of them, nothing of what it has is copied again.
    shelf.unreadable = {A, B}
    with (
        pytest.raises(OSError, match=r"public\.a is damaged"),
        running(settings, spark, destination=shelf),
    ):
        pass
    shelf.unreadable = {A}
    shelf.before_copy = lambda table: shelf.unreadable.discard(table)
    with capture_logs() as lines, running(settings, spark, destination=shelf):
        assert_equal(shelf, source)
    assert shelf.copies == {A: 2, B: 1}
    told = [line for line in lines if "cannot read a table" in line["event"]]
    assert [(line["table"], "is damaged" in line["error"]) for line in told] == [("public.a", True)]


def test_two_pipelines_in_one_store(spark: SparkSession, source: Database, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/shared.db"
    one = settings_for(source, tmp_path, store__uri=uri)
    other = settings_for(
        source,
        tmp_path,
        "other log",
        store__uri=uri,
        name="other",
        source__slot=f"other_{source.name}",
    )
    shelf, shelf_of_other = Shelf(), Shelf()
    with running(one, spark, destination=shelf) as first:
        with running(other, spark, destination=shelf_of_other) as second:
            source.execute("UPDATE a SET v = 'seen by both'")
            catch_up(first)
            catch_up(second)
            assert_equal(shelf, source)
            assert_equal(shelf_of_other, source)
            second.resync(A)
            wait_for(lambda: shelf_of_other.copies[A] == 2, WAIT)
        catch_up(first)
    assert shelf.copies == {A: 1, B: 1}
    with closing(open_store(other)) as store:
        store.drop()
    assert in_store(other) == {}
    assert in_store(one) == {A: Phase.READY, B: Phase.READY}


def test_a_store_with_no_more_than_it_must_have(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    store, shelf = Small(), PositionedShelf()
    assert not store, "an empty one is falsy, and used all the same"
    settings = settings_for(source, tmp_path)
    with running(settings, spark, destination=shelf, store=store) as pipeline:
        wait_for(lambda: {n: phase_of(pipeline, n) for n in READY} == READY, WAIT)
        # Its lease is in the log's folder.
        with pytest.raises(PipelineInUse):
            Pipeline(settings, Small(), shelf, spark=spark).start()
        pipeline.resync(A)
        wait_for(lambda: shelf.copies[A] == 2, WAIT)
        source.execute("UPDATE a SET v = 'all the same'")
        catch_up(pipeline)
        assert_equal(shelf, source)
    assert {state.phase for state in store.get_table_replication_states().values()} == {Phase.READY}
    with running(settings, spark, destination=shelf, store=store) as pipeline:
        catch_up(pipeline)
    assert shelf.copies == {A: 2, B: 1}


class _Failing(MemoryStore):
    """Every move of a table is lost at first, then its answer is, and only then all is well."""

    def __init__(self, error: StoreError, phases: Collection[Phase]) -> None:
        super().__init__("test")
        self.error = error
        self._phases = phases
        self._met: Counter[tuple[int, Phase, float]] = Counter()
        self._meeting = threading.Lock()

    def update_table_replication_states(self, states: Mapping[int, TableReplicationState]) -> None:
        moves = [
            (oid, state.phase, state.since)
            for oid, state in states.items()
            if state.phase in self._phases
        ]
        with self._meeting:
            self._met.update(moves)
            met = min((self._met[move] for move in moves), default=3)
        if met == 1:
            raise self.error
        super().update_table_replication_states(states)
        if met == 2:
            raise self.error


def test_a_store_that_fails_in_the_middle_of_every_move(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    store, shelf = _Failing(StoreError("the store stumbled"), list(Phase)), PositionedShelf()
    settings = settings_for(source, tmp_path)
    with running(settings, spark, destination=shelf, store=store) as pipeline:
        wait_for(lambda: {n: phase_of(pipeline, n) for n in READY} == READY, WAIT)
        source.execute("UPDATE a SET v = 'all the same'")
        catch_up(pipeline)
        assert_equal(shelf, source)
    assert shelf.copies == {A: 1, B: 1}
    for oid in store.get_table_replication_states():
        history = [state.phase for state in store.get_table_replication_history(oid)]
        assert history == [phase for phase in Phase if phase is not Phase.ERRORED]


def test_a_store_that_refuses_ends_the_pipeline_and_blames_no_table(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    store = _Failing(StoreForeign("somebody else's"), {Phase.SYNC_DONE})
    settings = settings_for(source, tmp_path)
    with (
        running(settings, spark, destination=Shelf(), store=store, caught_up=False) as pipeline,
        pytest.raises(StoreForeign, match="somebody else's"),
    ):
        pipeline.wait()
    phases = {state.phase for state in store.get_table_replication_states().values()}
    assert Phase.ERRORED not in phases
