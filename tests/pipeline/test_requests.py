"""What operators ask for: in the pipeline's process, through the store, before it runs."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Database
from tests.pipeline.capturing import wait_for
from tests.pipeline.following import Writer, assert_follows, find, named, on_shelf, wait_phase
from tests.pipeline.running import HOLD, WAIT, running, settings_for
from tests.pipeline.shelf import PositionedShelf, Shelf
from walflow.config import Settings
from walflow.errors import DestinationError
from walflow.model import Phase, TableName, TableSchema
from walflow.stores import open_store
from walflow.stores.base import Action, Request, Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

A = TableName("public", "a")
SHADOW = TableName("public", "a__walflow_new")


class SwappingShelf(PositionedShelf):
    """Puts a complete shadow in the place of the table."""

    def swap_table(self, shadow: TableSchema, table: TableSchema) -> None:
        with self._lock:
            if shadow.name in self.tables:
                self.tables[table.name] = self.tables.pop(shadow.name)
                self.positions[table.name] = self.positions.pop(shadow.name)
                self.forms[table.name] = replace(self.forms.pop(shadow.name), name=table.name)


class Breakable:
    """Makes a shelf refuse to write one table while it is set."""

    def __init__(self, shelf: Shelf, table: TableName) -> None:
        self.broken = threading.Event()
        self._table = table
        shelf.before_batch = shelf.before_copy = self._check

    def _check(self, table: TableName) -> None:
        if table == self._table and self.broken.is_set():
            raise DestinationError("no room", hint="make room")


@pytest.fixture
def settings(database: Database, tmp_path: Path) -> Settings:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        "CREATE TABLE steady (id int PRIMARY KEY, v text)",
        "INSERT INTO a SELECT i, 'a' || i FROM generate_series(1, 20) i",
        "INSERT INTO steady SELECT i, 's' || i FROM generate_series(1, 20) i",
        "CREATE PUBLICATION walflow FOR TABLE a, steady",
    )
    return settings_for(database, tmp_path, table_error_retry_max_attempts=0)


def ask(store: Store, action: Action, table: TableName = A) -> str:
    request = Request.new(table, action)
    store.put_request(request)
    return request.id


def answer(store: Store, id: str) -> Request:
    def finished() -> bool:
        request = store.get_request(id)
        return request is not None and request.outcome is not None

    wait_for(finished, WAIT, f"the request is answered: {store.get_request(id)}")
    request = store.get_request(id)
    assert request is not None
    return request


def writing(database: Database) -> Writer:
    return Writer(
        database,
        "UPDATE a SET v = 'u{n}' WHERE id = {n} % 20 + 1",
        "UPDATE steady SET v = 'u{n}' WHERE id = {n} % 20 + 1",
    )


@pytest.mark.parametrize("kind", [Shelf, PositionedShelf])
def test_a_table_that_was_set_aside_is_tried_again_or_rolled_back(
    spark: SparkSession, settings: Settings, database: Database, kind: type[Shelf]
) -> None:
    shelf = kind()
    shelf_of_a = Breakable(shelf, A)
    with running(settings, spark, destination=shelf) as pipeline:
        # As another process would.
        with closing(open_store(settings)) as store, writing(database):
            wait_phase(pipeline, "a", Phase.READY)
            refused = answer(store, ask(store, Action.RETRY))
            assert refused.refused
            assert "was not set aside" in (refused.outcome or "")

            for action in (Action.RETRY, Action.ROLLBACK):
                shelf_of_a.broken.set()
                wait_phase(pipeline, "a", Phase.ERRORED)
                again = answer(store, ask(store, action))
                assert not again.refused, again.outcome
                # It is tried, and fails again.
                wait_phase(pipeline, "a", Phase.ERRORED)
                shelf_of_a.broken.clear()
                done = answer(store, ask(store, action))
                assert not done.refused, done.outcome
                wait_phase(pipeline, "a", Phase.READY)

            before = answer(store, ask(store, Action.ROLLBACK))
            assert "went back from Ready to SyncDone" in (before.outcome or "")
            wait_phase(pipeline, "a", Phase.READY)

            unknown = answer(store, ask(store, Action.RESYNC, TableName("public", "nobody")))
            assert unknown.refused
            assert "no table public.nobody" in (unknown.outcome or "")
        assert_follows(pipeline, shelf, database, "a", "steady")
    assert shelf.copies == {A: 1, named("steady"): 1}


def test_a_new_copy_is_made_beside_the_old_one(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    shelf, go_on = SwappingShelf(), threading.Event()
    with running(settings, spark, destination=shelf) as pipeline:
        go_on.clear()
        shelf.before_copy = lambda table: _hold(go_on) if table == SHADOW else None
        with closing(open_store(settings)) as store, writing(database):
            wait_phase(pipeline, "a", Phase.READY)
            first = ask(store, Action.RESYNC)
            assert answer(store, first).outcome == "public.a is copied again"
            wait_phase(pipeline, "a", Phase.FINISHED_COPY)
            rows = on_shelf(shelf, "a")
            assert rows is not None
            assert len(rows) == 20
            # Once more while that copy is under way: what it gives is not used.
            second = ask(store, Action.RESYNC)
            database.execute("DELETE FROM a WHERE id = 5")
            assert on_shelf(shelf, "a") == rows
            go_on.set()
            assert not answer(store, second).refused
            wait_phase(pipeline, "a", Phase.READY)
        assert_follows(pipeline, shelf, database, "a", "steady")
        assert SHADOW not in shelf.tables
    assert shelf.copies == {SHADOW: 3, named("steady__walflow_new"): 1}


def _hold(event: threading.Event) -> None:
    assert event.wait(HOLD)


@pytest.mark.parametrize("kind", [Shelf, PositionedShelf])
def test_a_copy_is_rolled_back(
    spark: SparkSession, settings: Settings, database: Database, kind: type[Shelf]
) -> None:
    """Step by step to the state before it: the destination's half of a copy is not taken for
    the table."""
    shelf = kind()
    shelf_of_a = Breakable(shelf, A)
    with running(settings, spark, destination=shelf) as pipeline, writing(database):
        wait_phase(pipeline, "a", Phase.READY)
        shelf_of_a.broken.set()
        with closing(open_store(settings)) as store:
            answer(store, ask(store, Action.RESYNC))
            wait_phase(pipeline, "a", Phase.ERRORED)
            # Errored, FinishedCopy, DataSync, Init, Ready; all asked for at once.
            asked = [ask(store, Action.ROLLBACK) for _ in range(4)]
            for id in asked:
                assert not answer(store, id).refused
            shelf_of_a.broken.clear()
            database.execute("INSERT INTO a VALUES (100, 'when there is room')")

            def comes() -> bool:
                # What was refused just before may set it aside only now.
                if (find(pipeline, "a") or pytest.fail("gone")).phase is Phase.ERRORED:
                    answer(store, ask(store, Action.RETRY))
                return (100, "when there is room") in (on_shelf(shelf, "a") or ())

            wait_for(comes, WAIT, "a goes on", pipeline.check)
        wait_phase(pipeline, "a", Phase.READY)
    with running(settings, spark, destination=shelf) as pipeline:
        assert_follows(pipeline, shelf, database, "a", "steady")


def test_requests_wait_for_the_next_start(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    shelf = PositionedShelf()
    shelf_of_a = Breakable(shelf, A)
    shelf_of_a.broken.set()
    with running(settings, spark, destination=shelf, caught_up=False) as pipeline:
        wait_phase(pipeline, "a", Phase.ERRORED)
        wait_phase(pipeline, "steady", Phase.READY)
    shelf_of_a.broken.clear()
    with closing(open_store(settings)) as store:
        asked = {
            action: ask(store, action, table)
            for action, table in (
                (Action.RETRY, A),
                (Action.RESYNC, named("steady")),
            )
        }
        with running(settings, spark, destination=shelf) as pipeline:
            for id in asked.values():
                done = answer(store, id)
                assert not done.refused, done.outcome
            wait_for(lambda: shelf.copies[named("steady")] == 2, WAIT, "steady is copied again")
            assert_follows(pipeline, shelf, database, "a", "steady")
    assert shelf.copies == {A: 1, named("steady"): 2}


def test_nothing_to_roll_back(spark: SparkSession, settings: Settings, database: Database) -> None:
    shelf = PositionedShelf()
    settings = settings.model_copy(update={"max_table_sync_workers": 1})
    go_on = threading.Event()
    copying: list[TableName] = []

    def hold(table: TableName) -> None:
        copying.append(table)
        _hold(go_on)

    shelf.before_copy = hold
    with (
        running(settings, spark, destination=shelf, caught_up=False) as pipeline,
        closing(open_store(settings)) as store,
    ):
        wait_for(lambda: bool(copying), WAIT, "one is being copied", pipeline.check)
        # The other waits for its turn, and has no other state yet.
        waiting = next(s for s in pipeline.status().tables if s.name != copying[0])
        assert waiting.phase is Phase.INIT
        refused = answer(store, ask(store, Action.ROLLBACK, waiting.name))
        assert refused.refused
        go_on.set()
        assert_follows(pipeline, shelf, database, "a", "steady")
    assert shelf.copies == {A: 1, named("steady"): 1}
