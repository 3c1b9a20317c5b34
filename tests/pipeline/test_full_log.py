"""A log that is full, and a source that is away: tables that can go on do."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Database
from tests.pipeline.capturing import wait_for
from tests.pipeline.following import wait_phase
from tests.pipeline.running import (
    WAIT,
    catch_up,
    fill_two_tables,
    in_source,
    phase_of,
    running,
    settings_for,
    state_of,
)
from tests.pipeline.shelf import PositionedShelf, Shelf
from walflow.config import Settings
from walflow.errors import DestinationError
from walflow.model import Phase, TableName
from walflow.pipeline.pipeline import Pipeline
from walflow.states import RetryKind
from walflow.stores.base import Action, Request
from walflow.stores.memory import MemoryStore
from walflow.testing.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

A, B = TableName("public", "a"), TableName("public", "b")
FILL = "UPDATE {} SET v = " + " || ".join(["md5(random()::text)"] * 12)
"""With text that hardly compresses: about 100 kB of log each time."""


def assert_equal(shelf: Shelf, database: Database) -> None:
    for table in ("a", "b"):
        assert shelf.rows(table) == in_source(database, table)


def is_given_up(pipeline: Pipeline, table: str) -> bool:
    state = state_of(pipeline, table)
    return (
        state is not None and state.error is not None and state.error.retry.kind is RetryKind.NONE
    )


def outcome(store: MemoryStore, table: TableName, action: Action) -> Request:
    """What comes of a request."""
    request = Request.new(table, action)
    store.put_request(request)

    def answered() -> Request | None:
        found = store.get_request(request.id)
        return found if found is not None and found.outcome is not None else None

    wait_for(lambda: answered() is not None, WAIT)
    answer = answered()
    assert answer is not None
    return answer


def test_a_table_that_was_set_aside_does_not_fill_the_log_for_ever(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    fill_two_tables(database, 500)
    limit = 600_000
    settings = settings_for(database, tmp_path, log__max_bytes=limit)
    store, shelf, broken = MemoryStore("test"), PositionedShelf(), threading.Event()

    def refuse(table: TableName) -> None:
        if table == A and broken.is_set():
            raise DestinationError("the shelf of a is full", hint="make room")

    shelf.before_batch = refuse
    with running(settings, spark, destination=shelf, store=store) as pipeline:
        broken.set()
        database.execute(FILL.format("a"))
        # As it was then: a moment later it is tried again.
        failed = wait_phase(pipeline, "a", Phase.ERRORED)
        assert failed.error is not None
        assert failed.error.hint == "make room"
        batches = 0
        while not is_given_up(pipeline, "a"):
            batches += 1
            assert batches < 60, "the log was never full"
            database.execute(FILL.format("b"), FILL.format("a"))
            wait_for(lambda: shelf.rows("b") == in_source(database, "b"), WAIT)
        # It went on, and goes on.
        for _ in range(4):
            database.execute(FILL.format("b"), FILL.format("a"))
        wait_for(lambda: shelf.rows("b") == in_source(database, "b"), WAIT)
        state = state_of(pipeline, "a")
        assert state is not None
        assert state.error is not None
        assert "walflow resync public.a" in state.error.hint
        assert state.error.reason == "the shelf of a is full"
        wait_for(lambda: log_size(settings) < 2 * limit, WAIT)
        # No attempt can help, now that the shelf has room.
        broken.clear()
        refused = outcome(store, A, Action.RETRY)
        assert refused.refused
        assert "walflow resync public.a" in (refused.outcome or "")
        assert phase_of(pipeline, "a") is Phase.ERRORED
        assert shelf.copies == {A: 1, B: 1}
    # It is known after a restart, too.
    with running(settings, spark, destination=shelf, store=store) as pipeline:
        assert is_given_up(pipeline, "a")
        assert not outcome(store, A, Action.RESYNC).refused
        wait_for(lambda: phase_of(pipeline, "a") is Phase.READY, WAIT)
        database.execute("DELETE FROM a WHERE id < 100", "DELETE FROM b WHERE id > 400")
        catch_up(pipeline)
        assert_equal(shelf, database)
    assert shelf.copies == {A: 2, B: 1}


def test_a_source_that_is_away_blames_no_table(spark: SparkSession, tmp_path: Path) -> None:
    """While one table is followed and another is being copied."""
    with EmbeddedPostgres() as server:
        database = Database(server, "postgres")
        fill_two_tables(database, 500)
        database.execute(
            "CREATE TABLE c (id int PRIMARY KEY, v text)",
            "INSERT INTO c SELECT i, repeat('c', 200) FROM generate_series(1, 5000) i",
        )
        settings = settings_for(database, tmp_path, copy__range_bytes=64 << 10)
        store, shelf, seen = MemoryStore("test"), Shelf(), threading.Event()
        with running(settings, spark, destination=shelf, store=store) as pipeline:
            wait_for(lambda: phase_of(pipeline, "a") is Phase.READY, WAIT)
            database.execute("UPDATE a SET v = 'before'", "ALTER PUBLICATION walflow ADD TABLE c")
            # Most often in the middle of its copy; who looks late finds it further on.
            wait_for(lambda: phase_of(pipeline, "c") not in (None, Phase.INIT), WAIT)
            server.crash()
            seen.wait(2)  # long enough for whoever needs it to have noticed
            pipeline.check()
            server.start()
            database.execute("UPDATE a SET v = 'after'", "DELETE FROM b WHERE id < 50")
            wait_for(lambda: phase_of(pipeline, "c") is Phase.READY, WAIT)
            server.restart()
            database.execute("DELETE FROM c WHERE id < 50")
            catch_up(pipeline)
            assert_equal(shelf, database)
            assert shelf.rows("c") == in_source(database, "c")
        for oid in store.get_table_replication_states():
            history = [state.phase for state in store.get_table_replication_history(oid)]
            assert Phase.ERRORED not in history
        assert shelf.copies == {A: 1, B: 1, TableName("public", "c"): 1}


def log_size(settings: Settings) -> int:
    found = 0
    for file in settings.log_folder.rglob("*.parquet"):
        with contextlib.suppress(FileNotFoundError):  # just let go
            found += file.stat().st_size
    return found
