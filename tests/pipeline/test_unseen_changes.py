"""What the log does not tell, or not in time: types that are altered, tables that are UNLOGGED for
a time, tables that leave while changes of theirs wait, a publication that is made again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Database, ServerFactory, fresh_database
from tests.pipeline.capturing import ALWAYS_BULK, LIVE_ONLY, wait_for
from tests.pipeline.following import assert_follows, find, named, on_shelf, wait_phase
from tests.pipeline.running import HOLD, WAIT, in_source, running, settings_for
from tests.pipeline.shelf import PositionedShelf
from walflow.config import Settings
from walflow.errors import DestinationError, SlotLost
from walflow.model import Phase, TableName
from walflow.stores import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def make(database: Database, *tables: str) -> None:
    for table in tables:
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} SELECT i, 'old' FROM generate_series(1, 5) i",
        )


def change(table: str, value: str) -> tuple[str, ...]:
    """Several transactions."""
    return (
        f"UPDATE {table} SET v = '{value}' WHERE id < 4",
        f"DELETE FROM {table} WHERE id = 5",
        f"INSERT INTO {table} VALUES (6, '{value}') ON CONFLICT (id) DO UPDATE SET v = '{value}'",
    )


def test_what_older_rows_have_becomes_something_else(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    settings = settings_for(database, tmp_path)
    make(database, "steady", "plain")
    database.execute(
        "CREATE TYPE mood AS ENUM ('low', 'high')",
        "CREATE TYPE pair AS (a int, feels mood)",
        "CREATE TYPE other AS (a int)",
        "CREATE TABLE pairs (id int PRIMARY KEY, v pair)",
        "INSERT INTO pairs SELECT i, ROW(i, 'low'::mood)::pair FROM generate_series(1, 5) i",
        "CREATE TABLE moods (id int PRIMARY KEY, v mood)",
        "INSERT INTO moods SELECT i, 'low'::mood FROM generate_series(1, 5) i",
        "CREATE TABLE others (id int PRIMARY KEY, v other)",
        "INSERT INTO others SELECT i, ROW(i)::other FROM generate_series(1, 5) i",
        "CREATE TYPE passing AS ENUM ('here', 'there')",
        "CREATE TABLE passings (id int PRIMARY KEY, v passing)",
        "INSERT INTO passings SELECT i, 'here'::passing FROM generate_series(1, 5) i",
        "CREATE TYPE grown AS (a int)",
        "CREATE TABLE growns (id int PRIMARY KEY, v grown)",
        "INSERT INTO growns SELECT i, ROW(i)::grown FROM generate_series(1, 5) i",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    tables = ("steady", "plain", "pairs", "moods", "others", "passings", "growns")
    shelf = PositionedShelf()

    def copies() -> tuple[int, ...]:
        return tuple(shelf.copies[named(table)] for table in tables)

    with running(settings, spark, destination=shelf) as pipeline:
        assert_follows(pipeline, shelf, database, *tables)
    # Nobody runs.
    database.execute(
        "ALTER TYPE mood ADD VALUE 'middle' BEFORE 'high'",
        "ALTER TYPE other ADD ATTRIBUTE b text",
        "UPDATE others SET v.b = 'x' WHERE id = 2",
        "ALTER TABLE plain SET UNLOGGED",
        "UPDATE plain SET v = 'not logged' WHERE id = 3",
        "ALTER TABLE plain SET LOGGED",
        "VACUUM FULL steady",
        "UPDATE steady SET v = 'new' WHERE id = 2",
        # And back again, so that it looks as before. The log has what it was in between.
        "ALTER TYPE passing RENAME VALUE 'here' TO 'gone'",
        "UPDATE passings SET v = 'gone' WHERE id = 2",
        "ALTER TYPE passing RENAME VALUE 'gone' TO 'here'",
        "ALTER TYPE grown ADD ATTRIBUTE b int",
        "UPDATE growns SET v = (7, 8) WHERE id = 2",
        "ALTER TYPE grown DROP ATTRIBUTE b",
    )
    with running(settings, spark, destination=shelf) as pipeline:
        assert_follows(pipeline, shelf, database, *tables)
        assert copies() == (1, 2, 1, 1, 2, 2, 2)
        # Somebody does.
        database.execute(
            "INSERT INTO moods VALUES (6, 'middle')",
            "ALTER TYPE mood RENAME VALUE 'low' TO 'lowest'",
            "UPDATE pairs SET v.feels = 'lowest' WHERE id = 1",
            "ALTER TYPE other DROP ATTRIBUTE a",
            "DO $do$ BEGIN ALTER TABLE plain SET UNLOGGED; DELETE FROM plain WHERE id = 4;"
            " ALTER TABLE plain SET LOGGED; END $do$",
            "TRUNCATE steady",
            "INSERT INTO steady VALUES (1, 'after')",
        )
        assert_follows(pipeline, shelf, database, *tables)
        assert copies() == (1, 3, 2, 2, 3, 2, 2)


def test_a_table_that_leaves_is_complete_up_to_there(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    settings = settings_for(database, tmp_path, tables__exclude="*.audit_*")
    leaving = ("unpublished", "dropped", "renamed")
    make(database, "steady", *leaving, "sign")
    database.execute(f"CREATE PUBLICATION walflow FOR TABLE steady, {', '.join(leaving)}")
    shelf, go_on = PositionedShelf(), threading.Event()
    at_work: set[str] = set()

    def hold(table: TableName) -> None:
        if table.name in leaving:
            at_work.add(table.name)
            assert go_on.wait(HOLD)

    shelf.before_batch = hold
    with running(settings, spark, destination=shelf) as pipeline:
        # One batch is being applied, and what comes then waits.
        database.execute(*(f"UPDATE {table} SET v = 'first'" for table in leaving))
        wait_for(lambda: at_work == set(leaving), WAIT, "at work", pipeline.check)
        database.execute(*(sql for table in leaving for sql in change(table, "waits")))
        expected = {table: in_source(database, table) for table in leaving}
        database.execute(
            "ALTER PUBLICATION walflow DROP TABLE unpublished",
            "UPDATE unpublished SET v = 'no longer published'",
            "DROP TABLE dropped",
            "ALTER TABLE renamed RENAME TO audit_renamed",
            "ALTER PUBLICATION walflow ADD TABLE sign",
        )
        wait_phase(pipeline, "sign", Phase.READY)
        go_on.set()
        assert_follows(pipeline, shelf, database, "steady", "sign")
        assert {table: on_shelf(shelf, table) for table in leaving} == expected


@pytest.mark.parametrize("way", [LIVE_ONLY, ALWAYS_BULK], ids=["live", "bulk"])
def test_a_table_that_leaves_while_nobody_runs_is_complete_up_to_there(
    spark: SparkSession, database: Database, tmp_path: Path, way: int
) -> None:
    settings = settings_for(database, tmp_path, source__backlog_bytes=way)
    leaving = ("unpublished", "dropped", "flaky", "left_out", "came_back")
    make(database, "steady", *leaving, "replaced", "altered")
    database.execute(
        f"CREATE PUBLICATION walflow FOR TABLE steady, replaced, altered, {', '.join(leaving)}"
    )
    shelf = PositionedShelf()
    with running(settings, spark, destination=shelf):
        pass
    database.execute(*(sql for table in leaving for sql in change(table, "waits")))
    expected = {table: in_source(database, table) for table in leaving}
    database.execute(
        "ALTER PUBLICATION walflow DROP TABLE unpublished, flaky, came_back",
        *change("unpublished", "no longer published"),
        *change("came_back", "while away"),
        "DROP TABLE dropped",
        # Of a form that nobody can tell any more.
        "ALTER TABLE altered ADD w int DEFAULT 7, DROP v, ADD v text",
        "INSERT INTO altered VALUES (7, 8, 'x')",
        "DROP TABLE altered",
        "DROP TABLE replaced",
        "CREATE TABLE replaced (id int PRIMARY KEY, v text)",
        "ALTER PUBLICATION walflow ADD TABLE replaced, came_back",
    )
    settings = settings.model_copy(
        update={"tables": settings.tables.model_copy(update={"exclude": ("*.left_out",)})}
    )
    failures = iter(range(2))

    def fail_twice(table: TableName) -> None:
        if table.name == "flaky" and next(failures, None) is not None:
            raise DestinationError("not now")

    shelf.before_batch = fail_twice
    with running(settings, spark, destination=shelf) as pipeline:
        assert_follows(pipeline, shelf, database, "steady", "replaced", "came_back")
    assert len(on_shelf(shelf, "altered") or ()) == 5
    del expected["came_back"]
    assert {table: on_shelf(shelf, table) for table in expected} == expected
    assert {table: shelf.copies[named(table)] for table in expected} == dict.fromkeys(expected, 1)


@pytest.fixture(params=[17, 18], ids="postgres{}".format)
def source(request: pytest.FixtureRequest, start_postgres: ServerFactory) -> Iterator[Database]:
    """Up to 17 the server reads no log of a time when the publication was missing; 18 does, and
    leaves out the changes."""
    yield from fresh_database(start_postgres(request.param))


MADE_AGAIN = (
    "DROP PUBLICATION walflow",
    "UPDATE a SET v = 'while there was none' WHERE id = 2",
    "CREATE PUBLICATION walflow FOR TABLE a",
)
SLOT = "SELECT slot_name, confirmed_flush_lsn::text FROM pg_replication_slots WHERE NOT temporary"


def states_in(settings: Settings) -> list[tuple[TableName, Phase]]:
    with closing(open_store(settings)) as store:
        states = store.get_table_replication_states().values()
        return [(state.table, state.phase) for state in states]


def test_a_publication_that_was_made_again_is_a_lost_slot(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    settings = settings_for(source, tmp_path)
    resyncing = settings_for(source, tmp_path, source__on_slot_lost="resync")
    make(source, "a")
    source.execute("CREATE PUBLICATION walflow FOR TABLE a")
    shelf = PositionedShelf()
    with running(settings, spark, destination=shelf):
        pass
    # While nobody runs: nothing is touched, or all is copied again.
    slot, states = source.execute(SLOT), states_in(settings)
    source.execute(*MADE_AGAIN)
    with (
        pytest.raises(SlotLost, match="publication of this pipeline was dropped") as lost,
        running(settings, spark, destination=shelf),
    ):
        pass
    assert "source.on_slot_lost: resync" in lost.value.hint
    assert (source.execute(SLOT), states_in(settings)) == (slot, states)
    with running(resyncing, spark, destination=shelf) as pipeline:
        assert_follows(pipeline, shelf, source, "a")
        assert shelf.copies[named("a")] == 2
        # While somebody does.
        source.execute("; ".join(MADE_AGAIN))
        wait_for(lambda: shelf.copies[named("a")] == 3, WAIT, "copied", pipeline.check)
        source.execute("UPDATE a SET v = 'after' WHERE id = 3")
        assert_follows(pipeline, shelf, source, "a")
    # Missing for a time under its name, and still the same.
    source.execute(
        "ALTER PUBLICATION walflow RENAME TO away",
        "UPDATE a SET v = 'while it was away' WHERE id = 1",
        "ALTER PUBLICATION away RENAME TO walflow",
    )
    with running(resyncing, spark, destination=shelf) as pipeline:
        assert_follows(pipeline, shelf, source, "a")
    # It ends who does not want that.
    with running(settings, spark, destination=shelf, caught_up=False) as pipeline:
        wait_phase(pipeline, "a", Phase.READY)
        source.execute("; ".join(MADE_AGAIN))
        with pytest.raises(SlotLost):
            wait_for(lambda: find(pipeline, "a") is None, WAIT, check=pipeline.check)


def test_a_log_that_cannot_be_read_for_want_of_its_publication(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    """The new publication was there all the time for the catalog, not for the log."""
    settings = settings_for(source, tmp_path)
    make(source, "a")
    source.execute("CREATE PUBLICATION walflow FOR TABLE a")
    shelf = PositionedShelf()
    with running(settings, spark, destination=shelf):
        pass
    source.execute(
        "UPDATE a SET v = 'waits' WHERE id = 2", "CREATE PUBLICATION another FOR TABLE a"
    )
    other = settings_for(source, tmp_path, source__publication="another")
    if source.server.version < 18:
        with (
            pytest.raises(SlotLost, match="none of that name"),
            running(other, spark, destination=shelf) as pipeline,
        ):
            wait_for(lambda: False, WAIT, check=pipeline.check)
        other = settings_for(
            source, tmp_path, source__publication="another", source__on_slot_lost="resync"
        )
    with running(other, spark, destination=shelf) as pipeline:
        assert_follows(pipeline, shelf, source, "a")


def test_a_change_of_settings_is_not_called_a_publication_that_was_made_again(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    settings = settings_for(database, tmp_path)
    make(database, "a")
    database.execute("CREATE PUBLICATION walflow FOR TABLE a")
    shelf = PositionedShelf()
    with running(settings, spark, destination=shelf):
        pass
    database.execute("CREATE PUBLICATION another FOR TABLE a", "DROP PUBLICATION walflow")
    other = settings_for(database, tmp_path, source__publication="another")
    with pytest.raises(SlotLost) as lost, running(other, spark, destination=shelf):
        pass
    assert "publication of this pipeline was dropped" in lost.value.message
    assert '"another"' in lost.value.message
    assert "created again" not in lost.value.message
    other = settings_for(
        database, tmp_path, source__publication="another", source__on_slot_lost="resync"
    )
    with running(other, spark, destination=shelf) as pipeline:
        assert_follows(pipeline, shelf, database, "a")
    assert shelf.copies[named("a")] == 2
