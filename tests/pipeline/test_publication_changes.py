"""Tables that come, go and change in the publication: while the pipeline runs, and while not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Database, ServerFactory, fresh_database
from tests.pipeline.capturing import wait_for
from tests.pipeline.following import Writer, assert_follows, find, named, on_shelf, wait_phase
from tests.pipeline.running import HOLD, WAIT, running, settings_for, state_of, told_to_end
from tests.pipeline.shelf import DroppingShelf, PositionedShelf, Shelf
from walflow.config import Settings
from walflow.errors import DestinationForeign, ReservedColumnName, TablesSetAside, WalflowError
from walflow.failpoints import set_failpoints
from walflow.model import Phase, TableName, TableSchema
from walflow.pipeline.pipeline import Pipeline
from walflow.pipeline.state.table_states import TableState
from walflow.stores import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

STEADY = "UPDATE steady SET v = 'v{n}' WHERE id = {n} % 20 + 1"


@pytest.fixture(autouse=True)
def _no_failpoints_left() -> Iterator[None]:
    yield
    set_failpoints("")


@pytest.fixture
def settings(database: Database, tmp_path: Path) -> Settings:
    database.execute(
        "CREATE TABLE steady (id int PRIMARY KEY, v text)",
        "INSERT INTO steady SELECT i, 'v' || i FROM generate_series(1, 20) i",
    )
    return settings_for(database, tmp_path)


def make(database: Database, table: str, rows: int = 20) -> None:
    database.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
        f"INSERT INTO {table} SELECT i, '{table} ' || i FROM generate_series(1, {rows}) i",
    )


def writing(database: Database, *tables: str) -> Writer:
    """Changes the steady table and these."""
    changes = []
    for table in tables:
        changes += [
            f"UPDATE {table} SET v = '{table} u{{n}}' WHERE id = {{n}} % 20 + 1",
            f"INSERT INTO {table} VALUES (1000 + {{n}}, '{table} i{{n}}') ON CONFLICT DO NOTHING",
            f"DELETE FROM {table} WHERE id = 1000 + {{n}} - 30",
        ]
    return Writer(database, STEADY, *changes)


def assert_never_copied_again(shelf: Shelf, *tables: str) -> None:
    assert {table: shelf.copies[named(table)] for table in tables} == dict.fromkeys(tables, 1)


def test_tables_are_added_and_removed(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    make(database, "a")
    make(database, "b")
    database.execute("CREATE PUBLICATION walflow FOR TABLE steady, a")
    shelf = PositionedShelf()
    with running(settings, spark, destination=shelf) as pipeline:
        with writing(database, "a", "b"):
            database.execute("ALTER PUBLICATION walflow ADD TABLE b")
            wait_phase(pipeline, "b", Phase.READY)
            state = find(pipeline, "a")
            assert state is not None
            database.execute("ALTER PUBLICATION walflow DROP TABLE a")
            wait_for(lambda: find(pipeline, "a") is None, WAIT, check=pipeline.check)
        assert_follows(pipeline, shelf, database, "steady", "b")
        # Its state is forgotten, its rows are not.
        store = open_store(settings)
        assert store.get_table_replication_history(state.schema.oid) == []
        assert store.get_table_schema(state.schema.oid) is None
        assert state.schema.oid not in store.get_table_mappings()
        store.close()
        assert on_shelf(shelf, "a")
        with writing(database, "a", "b"):
            # It comes back, and another is away for less than a look.
            database.execute(
                "ALTER PUBLICATION walflow ADD TABLE a",
                "ALTER PUBLICATION walflow DROP TABLE b",
                "UPDATE b SET v = 'while away' WHERE id = 7",
                "ALTER PUBLICATION walflow ADD TABLE b",
            )
            wait_phase(pipeline, "a", Phase.READY)
        assert_follows(pipeline, shelf, database, "a", "b", "steady")
    assert_never_copied_again(shelf, "steady")


@pytest.mark.parametrize("scope", ["TABLES IN SCHEMA public, shop", "ALL TABLES"])
def test_tables_are_made_where_all_are_published(
    spark: SparkSession, settings: Settings, database: Database, scope: str
) -> None:
    if database.server.version < 15 and "SCHEMA" in scope:
        pytest.skip("FOR TABLES IN SCHEMA needs Postgres 15: install a newer server")
    database.execute("CREATE SCHEMA shop", f"CREATE PUBLICATION walflow FOR {scope}")
    shelf = PositionedShelf()
    with running(settings, spark, destination=shelf) as pipeline:
        with writing(database, "made", "shop.made"):
            make(database, "made")
            make(database, "shop.made")
            wait_phase(pipeline, "made", Phase.READY)
        assert_follows(pipeline, shelf, database, "made", "shop.made", "steady")
        database.execute("DROP TABLE made", "INSERT INTO shop.made VALUES (-1, 'last')")
        assert_follows(pipeline, shelf, database, "shop.made", "steady")
    assert_never_copied_again(shelf, "steady")


def test_tables_get_other_names(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    for table in ("renamed", "moved", "orders", "orders_new", "z_new", "recreated"):
        make(database, table)
    database.execute(
        "CREATE SCHEMA attic",
        "CREATE TABLE y (id int PRIMARY KEY, v text)",
        "INSERT INTO y SELECT i, 'y ' || i FROM generate_series(1, 20) i",
        "CREATE PUBLICATION walflow FOR TABLE steady, renamed, moved, orders, orders_new, y, z_new,"
        " recreated",
    )
    shelf = PositionedShelf()
    with running(settings, spark, destination=shelf) as pipeline:
        with writing(database, "renamed", "moved", "orders", "orders_new", "y", "recreated"):
            database.execute(
                "ALTER TABLE renamed RENAME TO renamed_since",
                "ALTER TABLE moved SET SCHEMA attic",
                # Each takes the other's place.
                "BEGIN; ALTER TABLE orders RENAME TO tmp; ALTER TABLE orders_new RENAME TO orders;"
                " ALTER TABLE tmp RENAME TO orders_new; COMMIT",
                # One takes the place of one that goes further back in the alphabet.
                "BEGIN; ALTER TABLE y RENAME TO z_old; ALTER TABLE z_new RENAME TO y; COMMIT",
                "BEGIN; DROP TABLE recreated;"
                " CREATE TABLE recreated (id int PRIMARY KEY, v text);"
                " INSERT INTO recreated VALUES (1, 'new');"
                " ALTER PUBLICATION walflow ADD TABLE recreated; COMMIT",
            )
            for table in ("renamed_since", "attic.moved", "z_old"):
                wait_phase(pipeline, table, Phase.READY)
        assert_follows(
            pipeline,
            shelf,
            database,
            *("steady", "renamed_since", "attic.moved", "orders", "orders_new", "y", "z_old"),
            "recreated",
        )
    assert_never_copied_again(shelf, "steady")


FORMS = (
    "CREATE TABLE filtered (id int PRIMARY KEY, v text)",
    "INSERT INTO filtered SELECT i, 'f' || i FROM generate_series(1, 40) i",
    "CREATE TABLE listed (id int PRIMARY KEY, v text, w text)",
    "INSERT INTO listed SELECT i, 'v' || i, 'w' || i FROM generate_series(1, 20) i",
    "CREATE TABLE dropped (id int PRIMARY KEY, v text)",
    "INSERT INTO dropped SELECT i, 'd' || i FROM generate_series(1, 20) i",
    "CREATE TABLE keyed (id int PRIMARY KEY, other int NOT NULL, v text)",
    "ALTER TABLE keyed REPLICA IDENTITY FULL",
    "INSERT INTO keyed SELECT i, i * 2, 'k' || i FROM generate_series(1, 20) i",
    "CREATE PUBLICATION walflow FOR TABLE steady, dropped, keyed,"
    " filtered WHERE (id > 10), listed (id, v)",
)
OTHER_FORMS = (
    "UPDATE dropped SET v = 'before' WHERE id = 3",
    "ALTER TABLE dropped DROP COLUMN v",
    "ALTER TABLE dropped ADD COLUMN v text",
    "UPDATE dropped SET v = 'after' WHERE id = 4",
    "ALTER PUBLICATION walflow SET TABLE steady, dropped, keyed,"
    " filtered WHERE (id > 5), listed (id, v, w)",
    "UPDATE filtered SET v = 'now' WHERE id IN (3, 7, 20)",
    "UPDATE listed SET w = 'now' WHERE id = 7",
    "ALTER TABLE keyed DROP CONSTRAINT keyed_pkey, ADD PRIMARY KEY (other)",
    "UPDATE keyed SET id = 1 WHERE id < 5",
)


def assert_forms(shelf: Shelf, database: Database) -> None:
    def seen(query: str) -> list[tuple[object, ...]]:
        return database.execute(query)

    filtered = seen("SELECT * FROM filtered WHERE id > 5 ORDER BY 1")
    wait_for(lambda: on_shelf(shelf, "filtered") == filtered, WAIT, "filtered")
    for table in ("listed", "dropped", "keyed"):
        expected = sorted(seen(f"SELECT * FROM {table}"), key=repr)
        wait_for(
            lambda: sorted(on_shelf(shelf, table) or (), key=repr) == expected,  # noqa: B023
            WAIT,
            f"{table}: {on_shelf(shelf, table)} is not {expected}",
        )


def test_tables_are_published_in_another_form(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    database.execute(*FORMS)
    shelf = PositionedShelf()
    with running(settings, spark, destination=shelf) as pipeline, writing(database):
        database.execute(*OTHER_FORMS)
        assert_forms(shelf, database)
        for table in ("filtered", "listed", "dropped", "keyed"):
            wait_phase(pipeline, table, Phase.READY)
        database.execute("UPDATE keyed SET v = 'by the new key' WHERE other = 4")
        assert_forms(shelf, database)


@pytest.mark.parametrize("via_root", [True, False])
def test_partitions_come_and_go(
    spark: SparkSession, settings: Settings, database: Database, via_root: bool
) -> None:
    database.execute(
        "CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE part1 PARTITION OF parts FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE part2 PARTITION OF parts FOR VALUES FROM (100) TO (200)",
        "INSERT INTO parts SELECT i, 'p' || i FROM generate_series(50, 150) i",
        "CREATE TABLE part3 (id int PRIMARY KEY, v text)",
        "INSERT INTO part3 SELECT i, 'p' || i FROM generate_series(200, 250) i",
        "CREATE TABLE part4 (id int PRIMARY KEY, v text)",
        "CREATE PUBLICATION walflow FOR TABLE steady, parts"
        f" WITH (publish_via_partition_root = {via_root})",
    )
    shelf = PositionedShelf()
    tables = ["parts"] if via_root else ["part1", "part2"]
    with running(settings, spark, destination=shelf) as pipeline:
        assert_follows(pipeline, shelf, database, "steady", *tables)
        with Writer(database, STEADY, "UPDATE parts SET v = 'u{n}' WHERE id = 50 + {n} % 100"):
            database.execute(
                "ALTER TABLE parts ATTACH PARTITION part3 FOR VALUES FROM (200) TO (300)"
            )
            wait_for(lambda: holds(shelf, via_root, "part3", 201), WAIT, "part3's rows are there")
            database.execute(
                "ALTER TABLE parts ATTACH PARTITION part4 FOR VALUES FROM (300) TO (400)"
            )
            if via_root:
                # Had it rows when it is first seen, it might have brought them.
                wait_for(lambda: knows_partition(pipeline, database, "part4"), WAIT)
            database.execute(
                "INSERT INTO parts VALUES (301, 'in what was attached empty')",
                "CREATE TABLE part5 PARTITION OF parts FOR VALUES FROM (400) TO (500)",
                "INSERT INTO parts VALUES (401, 'in what was made')",
            )
            wait_for(lambda: holds(shelf, via_root, "part5", 401), WAIT, "part5's rows are there")
            database.execute("ALTER TABLE parts DETACH PARTITION part2")
            if via_root:
                wait_for(lambda: not holds(shelf, True, "", 150), WAIT, "part2's rows are gone")
        tables = ["parts"] if via_root else ["part1", "part3", "part4", "part5"]
        assert_follows(pipeline, shelf, database, "steady", *tables)
    assert_never_copied_again(shelf, "steady")
    if via_root:
        # What comes empty needs no copy; what had rows, and what goes, does.
        assert shelf.copies[named("parts")] == 3


def knows_partition(pipeline: Pipeline, database: Database, partition: str) -> bool:
    with database.connect() as connection:
        row = connection.execute("SELECT %s::regclass::oid::int8", [partition]).fetchone()
    state = state_of(pipeline, "parts")
    assert row is not None
    return state is not None and any(oid == row[0] for oid, _ in state.membership.relations)


def holds(shelf: Shelf, via_root: bool, part: str, key: int) -> bool:
    return any(row[0] == key for row in on_shelf(shelf, "parts" if via_root else part) or ())


def test_all_of_it_while_the_pipeline_is_down(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    for table in ("gone", "away", "orders", "orders_new", "moved", "recreated"):
        make(database, table)
    database.execute(
        "CREATE SCHEMA attic",
        *FORMS,
        "ALTER PUBLICATION walflow ADD TABLE gone, away, orders, orders_new, moved, recreated",
    )
    shelf = PositionedShelf()
    with running(settings, spark, destination=shelf):
        pass
    make(database, "added")
    database.execute(
        *OTHER_FORMS,
        "ALTER PUBLICATION walflow ADD TABLE added, away, orders, orders_new, moved, recreated",
        "UPDATE added SET v = 'early' WHERE id = 1",
        "ALTER PUBLICATION walflow DROP TABLE away",
        "UPDATE away SET v = 'while nobody looked' WHERE id = 1",
        "ALTER PUBLICATION walflow ADD TABLE away",
        "ALTER TABLE orders RENAME TO tmp",
        "ALTER TABLE orders_new RENAME TO orders",
        "ALTER TABLE tmp RENAME TO orders_new",
        "ALTER TABLE moved SET SCHEMA attic",
        "DROP TABLE recreated",
        "CREATE TABLE recreated (id int PRIMARY KEY, v text)",
        "ALTER PUBLICATION walflow ADD TABLE recreated",
        "INSERT INTO recreated VALUES (5, 'five')",
        "UPDATE orders SET v = 'renamed' WHERE id = 3",
    )
    with (
        running(settings, spark, destination=shelf) as pipeline,
        writing(database, "added", "orders", "orders_new", "recreated"),
    ):
        assert_forms(shelf, database)
        wait_phase(pipeline, "attic.moved", Phase.READY)
    with running(settings, spark, destination=shelf) as pipeline:
        assert find(pipeline, "gone") is None
        database.execute("ALTER PUBLICATION walflow DROP TABLE filtered, listed, dropped, keyed")
        assert_follows(
            pipeline,
            shelf,
            database,
            *("steady", "added", "away", "orders", "orders_new", "attic.moved", "recreated"),
        )
    assert_never_copied_again(shelf, "steady", "attic.moved")


class SlowlyDroppingShelf(DroppingShelf):
    """So too, but for one that is not its own, and slowly."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.asked: list[TableName] = []

    def drop_table(self, table: TableSchema) -> None:
        self.asked.append(table.name)
        if table.name == named("foreign"):
            raise DestinationForeign("public.foreign is not ours", hint="Drop it yourself.")
        self.go_on.wait(HOLD)
        super().drop_table(table)


def test_tables_are_dropped_with_their_sources(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    for table in ("a", "b", "c", '"foreign"', "once", "later"):
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} SELECT i, 'x' FROM generate_series(1, 20) i",
        )
    database.execute('CREATE PUBLICATION walflow FOR TABLE steady, a, b, c, "foreign", once, later')
    settings = settings.model_copy(update={"on_table_removed": "drop"})
    shelf = SlowlyDroppingShelf()
    with running(settings, spark, destination=shelf) as pipeline, writing(database):
        database.execute(
            'ALTER PUBLICATION walflow DROP TABLE a, b, c, "foreign"',
            "ALTER TABLE once RENAME TO renamed",
        )
        wait_for(lambda: len(shelf.asked) >= 2, WAIT, "asked", pipeline.check)
        # While that takes its time, the others go on, one comes back, and another takes the
        # place of one.
        batches = shelf.batches[named("steady")]
        database.execute(
            "ALTER PUBLICATION walflow ADD TABLE b",
            "UPDATE b SET v = 'back' WHERE id = 2",
            "DROP TABLE c",
            "CREATE TABLE c (id int PRIMARY KEY, v text)",
            "INSERT INTO c VALUES (1, 'another c')",
            "ALTER PUBLICATION walflow ADD TABLE c",
        )
        wait_for(lambda: shelf.batches[named("steady")] > batches + 3, WAIT, "steady goes on")
        shelf.go_on.set()
        wait_for(lambda: find(pipeline, "a") is None, WAIT, "a is gone", pipeline.check)
        wait_for(lambda: find(pipeline, "foreign") is None, WAIT, "and foreign", pipeline.check)
        wait_phase(pipeline, "b", Phase.READY)
        wait_phase(pipeline, "c", Phase.READY)
        wait_phase(pipeline, "renamed", Phase.READY)
    assert on_shelf(shelf, "a") is None
    assert on_shelf(shelf, "once") is None
    assert on_shelf(shelf, "foreign")
    # While nobody looks, one gets another name, and one takes the name that this one had.
    assert on_shelf(shelf, "later")
    database.execute(
        "ALTER TABLE later RENAME TO latest",
        "ALTER TABLE renamed RENAME TO later",
        "UPDATE latest SET v = 'moved' WHERE id = 3",
    )
    with running(settings, spark, destination=shelf) as pipeline:
        for table in ("later", "latest"):
            wait_phase(pipeline, table, Phase.READY)
        assert_follows(pipeline, shelf, database, "b", "c", "steady", "later", "latest")
    assert on_shelf(shelf, "renamed") is None
    assert_never_copied_again(shelf, "steady")


def test_tables_that_cannot_be_followed_wait_for_their_mending(
    spark: SparkSession, database: Database, settings: Settings, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE taken (id int PRIMARY KEY, _lsn text)",
        "INSERT INTO taken VALUES (1, 'one')",
        "CREATE TABLE secret (id int PRIMARY KEY, v text)",
        "INSERT INTO secret VALUES (1, 'one')",
        "CREATE PUBLICATION walflow FOR TABLE steady",
    )
    make(database, "holds")
    uri = database.replicator("GRANT SELECT ON steady, taken, holds TO {role}")
    role = database.execute("SELECT rolname FROM pg_roles ORDER BY oid DESC LIMIT 1")[0][0]
    settings = settings_for(database, tmp_path, source__uri=uri)
    shelf, go_on = PositionedShelf(), threading.Event()
    shelf.before_copy = lambda table: _hold(go_on) if table == named("holds") else None
    with running(settings, spark, destination=shelf) as pipeline, writing(database):
        database.execute("ALTER PUBLICATION walflow ADD TABLE taken, secret")
        taken = wait_phase(pipeline, "taken", Phase.ERRORED)
        secret = wait_phase(pipeline, "secret", Phase.ERRORED)
        assert taken.error is not None
        assert taken.error.code == "ReservedColumnName"
        assert "rename it" in taken.error.hint
        assert secret.error is not None
        assert secret.error.code == "NoSelectRight"
        assert "GRANT SELECT" in secret.error.hint
        # Changes of both go on to come in.
        database.execute("INSERT INTO taken VALUES (2, 'x')", "INSERT INTO secret VALUES (2, 'x')")
        # A snapshot of the time before, which others go on to use, is no hindrance.
        database.execute("ALTER PUBLICATION walflow ADD TABLE holds")
        wait_phase(pipeline, "holds", Phase.FINISHED_COPY)
        database.execute(f'GRANT SELECT ON secret TO "{role}"')
        wait_phase(pipeline, "secret", Phase.READY)
        go_on.set()
        database.execute("ALTER TABLE taken RENAME COLUMN _lsn TO lsn")
        wait_phase(pipeline, "taken", Phase.READY)
        # One that is followed is copied again when it gets such a column, and waits likewise.
        database.execute("ALTER TABLE taken ADD COLUMN _seq int DEFAULT 7")
        wait_phase(pipeline, "taken", Phase.ERRORED)
        database.execute("ALTER TABLE taken RENAME COLUMN _seq TO seq")
        wait_phase(pipeline, "taken", Phase.READY)
    with running(settings, spark, destination=shelf) as pipeline:
        assert_follows(pipeline, shelf, database, "steady", "taken", "secret", "holds")
    assert_never_copied_again(shelf, "steady", "secret", "holds")


def test_tables_that_cannot_be_followed_do_not_stop_the_first_start(
    spark: SparkSession, database: Database, settings: Settings, tmp_path: Path
) -> None:
    for table in ("secret", "hidden", "reserved"):
        make(database, table)
    database.execute(
        "ALTER TABLE reserved RENAME v TO _lsn",
        "ALTER TABLE hidden ENABLE ROW LEVEL SECURITY",
        "CREATE PUBLICATION walflow FOR TABLE secret, hidden, reserved",
    )
    uri = database.replicator("GRANT SELECT ON steady, hidden, reserved TO {role}")
    role = database.execute("SELECT rolname FROM pg_roles ORDER BY oid DESC LIMIT 1")[0][0]
    settings = settings_for(database, tmp_path, source__uri=uri)
    strict = settings.model_copy(update={"on_table_refused": "error"})
    shelf = PositionedShelf()

    def refused(settings: Settings, error: type[WalflowError]) -> None:
        with pytest.raises(error), running(settings, spark, destination=shelf):
            pytest.fail("it started")
        # Nothing is left behind, and the next start is the first.
        assert not settings.log_folder.exists()
        assert database.execute("SELECT slot_name FROM pg_replication_slots") == []

    # With no table at all there is nothing to start with, and one mistake is told once.
    refused(settings, ReservedColumnName)
    database.execute("ALTER PUBLICATION walflow ADD TABLE steady")
    refused(strict, ReservedColumnName)
    with running(settings, spark, destination=shelf) as pipeline, writing(database):
        wait_phase(pipeline, "steady", Phase.READY)
        for table, code, hint in (
            ("reserved", "ReservedColumnName", "RENAME COLUMN"),
            ("secret", "NoSelectRight", "GRANT SELECT"),
            ("hidden", "NoSelectRight", "BYPASSRLS"),
        ):
            error = wait_phase(pipeline, table, Phase.ERRORED).error
            assert error is not None
            assert (error.code, hint in error.hint) == (code, True)
        # To try it before it is mended changes nothing.
        pipeline.retry(named("secret"))
        wait_for(
            lambda: (find(pipeline, "secret") or pytest.fail("gone")).attempts == 2,
            WAIT,
            "tried again",
            pipeline.check,
        )
        wait_phase(pipeline, "secret", Phase.ERRORED)
        with pytest.raises(TablesSetAside, match=r"(?s)public\.hidden.*reserved.*secret"):
            pipeline.wait(until_caught_up=True)
        database.execute(f'GRANT SELECT ON secret TO "{role}"')
        pipeline.retry(named("secret"))
        assert wait_phase(pipeline, "secret", Phase.READY).error is None
    # A later start does not mind them either, whatever the setting, and sees what is mended.
    with running(strict, spark, destination=shelf) as pipeline:
        wait_phase(pipeline, "hidden", Phase.ERRORED)
        database.execute(
            f'ALTER ROLE "{role}" BYPASSRLS', "ALTER TABLE reserved RENAME COLUMN _lsn TO lsn"
        )
        for table in ("hidden", "reserved"):
            mended = wait_phase(pipeline, table, Phase.READY)
            assert (mended.error, mended.attempts) == (None, 0)
        assert_follows(pipeline, shelf, database, "steady", "secret", "hidden", "reserved")
    assert_never_copied_again(shelf, "steady", "secret", "hidden", "reserved")


def test_tables_change_while_they_are_copied(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    settings = settings.model_copy(update={"max_table_sync_workers": 8})
    tables = ("leaving", "renamed", "republished", "narrowed", "redone")
    for table in (*tables, "sign"):
        make(database, table)
    database.execute("CREATE PUBLICATION walflow FOR TABLE steady")
    shelf, go_on = PositionedShelf(), threading.Event()
    shelf.before_copy = lambda table: None if table == named("steady") else _hold(go_on)
    with running(settings, spark, destination=shelf) as pipeline:
        with writing(database, *tables):
            database.execute(f"ALTER PUBLICATION walflow ADD TABLE {', '.join(tables)}")
            for table in tables:
                wait_phase(pipeline, table, Phase.FINISHED_COPY)
            database.execute(
                "ALTER PUBLICATION walflow DROP TABLE leaving",
                "ALTER TABLE renamed RENAME TO renamed_since",
                "ALTER PUBLICATION walflow DROP TABLE republished",
                "UPDATE republished SET v = 'while away' WHERE id = 1",
                "ALTER PUBLICATION walflow ADD TABLE republished",
                "ALTER PUBLICATION walflow DROP TABLE narrowed",
                "ALTER PUBLICATION walflow ADD TABLE narrowed WHERE (id < 10)",
                "ALTER TABLE redone DROP COLUMN v, ADD COLUMN v text",
                "ALTER PUBLICATION walflow ADD TABLE sign",
            )
            wait_for(lambda: find(pipeline, "sign") is not None, WAIT, "all is seen")
            go_on.set()
            for table in ("renamed_since", "republished", "narrowed", "redone"):
                wait_phase(pipeline, table, Phase.READY)
        database.execute(
            "DELETE FROM narrowed WHERE id >= 10", "DELETE FROM redone WHERE v IS NULL"
        )
        assert_follows(
            pipeline,
            shelf,
            database,
            *("steady", "renamed_since", "republished", "narrowed", "redone", "sign"),
        )
    assert_never_copied_again(shelf, "steady", "sign")
    assert on_shelf(shelf, "leaving")


def test_a_column_is_made_anew_before_anyone_looked(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    """The stream's only word of the table could be of either column: the copy says which it is."""
    make(database, "redone")
    database.execute("CREATE PUBLICATION walflow FOR TABLE steady")
    shelf = PositionedShelf()
    with running(settings, spark, destination=shelf) as pipeline:
        wait_phase(pipeline, "steady", Phase.READY)
    database.execute(
        "ALTER PUBLICATION walflow ADD TABLE redone",
        "UPDATE redone SET v = 'former' WHERE id = 1",
        "ALTER TABLE redone DROP COLUMN v, ADD COLUMN v text",
        "UPDATE redone SET v = 'before the copy' WHERE id = 1",
    )
    with running(settings, spark, destination=shelf) as pipeline:
        with writing(database, "redone"):
            wait_phase(pipeline, "redone", Phase.READY)
            database.execute("UPDATE redone SET v = 'after it' WHERE id = 2")
        assert_follows(pipeline, shelf, database, "steady", "redone")
    assert_never_copied_again(shelf, "steady", "redone")


def _hold(event: threading.Event) -> None:
    assert event.wait(HOLD)


def test_a_table_that_leaves_breaks_its_copy_off(
    spark: SparkSession, settings: Settings, database: Database, tmp_path: Path
) -> None:
    settings = settings_for(database, tmp_path, copy__range_bytes=131072)
    database.execute(
        "CREATE TABLE large (id int PRIMARY KEY, v text)",
        "INSERT INTO large SELECT i, repeat('x', 1000) FROM generate_series(1, 2000) i",
        "CREATE PUBLICATION walflow FOR TABLE steady",
    )
    shelf = PositionedShelf()
    # Until the table has left: what was read is then dropped.
    set_failpoints("copy.range[public.large]=hold")
    with running(settings, spark, destination=shelf) as pipeline:
        with writing(database):
            database.execute("ALTER PUBLICATION walflow ADD TABLE large")
            wait_for(lambda: bool((find(pipeline, "large") or _none()).rows_copied), WAIT)
            database.execute("ALTER PUBLICATION walflow DROP TABLE large")
            wait_for(lambda: told_to_end(pipeline), WAIT, "taken off", pipeline.check)
            set_failpoints("")
            wait_for(lambda: find(pipeline, "large") is None, WAIT, "gone", pipeline.check)
            assert not list((settings.log_folder / "copy").iterdir())
            # And at once again: nothing of the first copy is used.
            database.execute(
                "UPDATE large SET v = 'while away' WHERE id < 10",
                "ALTER PUBLICATION walflow ADD TABLE large",
            )
            wait_phase(pipeline, "large", Phase.READY)
        assert_follows(pipeline, shelf, database, "steady", "large")
    assert_never_copied_again(shelf, "steady", "large")


def _none() -> TableState:
    return TableState.new(TableSchema(0, named("none"), (), ()), named("none"))


def test_a_table_is_renamed_while_it_catches_up(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    for table in ("a", "b", "c", "free", "sign"):
        make(database, table)
    database.execute("CREATE PUBLICATION walflow FOR TABLE steady, free")
    held = {named("a"), named("b"), named("c")}
    shelf, go_on = PositionedShelf(), threading.Event()
    shelf.before_batch = lambda table: _hold(go_on) if table in held else None

    def touch(table: TableName) -> None:
        # Whatever the writer does meanwhile, there is something to catch up on.
        if table in held:
            database.execute(f"UPDATE {table.name} SET v = 'since the snapshot' WHERE id = 1")

    shelf.before_copy = touch
    with running(settings, spark, destination=shelf) as pipeline:
        with writing(database, "a", "b", "c"):
            database.execute("ALTER PUBLICATION walflow ADD TABLE a, b, c")
            for table in ("a", "b", "c"):
                wait_phase(pipeline, table, Phase.CATCHUP)
            database.execute(
                # One that nothing keeps takes the place of one that is at work.
                "BEGIN; ALTER TABLE c RENAME TO c_old; ALTER TABLE free RENAME TO c; COMMIT",
                "ALTER TABLE a RENAME TO a_since",
                "ALTER TABLE b RENAME TO b_since",
                "ALTER PUBLICATION walflow ADD TABLE sign",
            )
            wait_for(lambda: find(pipeline, "sign") is not None, WAIT, "all is seen")
            # One goes back before anything could be done about it.
            database.execute("ALTER TABLE b_since RENAME TO b")
            go_on.set()
            wait_phase(pipeline, "a_since", Phase.READY)
            wait_phase(pipeline, "b", Phase.READY)
            wait_phase(pipeline, "c_old", Phase.READY)
        assert_follows(pipeline, shelf, database, "steady", "a_since", "b", "c", "c_old", "sign")
    assert_never_copied_again(shelf, "steady", "sign")


def test_a_snapshot_is_not_used_for_what_has_changed_since(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    make(database, "holds")
    make(database, "redone")
    database.execute(
        # The largest is copied first.
        "INSERT INTO holds SELECT i, repeat('x', 1000) FROM generate_series(1000, 1300) i",
        "CREATE PUBLICATION walflow FOR TABLE steady",
    )
    settings = settings.model_copy(update={"max_table_sync_workers": 1})
    shelf, go_on = PositionedShelf(), threading.Event()
    shelf.before_copy = lambda table: _hold(go_on) if table == named("holds") else None
    with running(settings, spark, destination=shelf) as pipeline:
        database.execute("ALTER PUBLICATION walflow ADD TABLE holds, redone")
        wait_phase(pipeline, "holds", Phase.FINISHED_COPY)
        wait_phase(pipeline, "redone", Phase.INIT)
        # The snapshot was taken, and waits for the next table. What it shows of that one, and what
        # the log has of it since, do not go together.
        database.execute(
            "UPDATE redone SET v = 'of the former column' WHERE id = 1",
            "ALTER TABLE redone DROP COLUMN v, ADD COLUMN v text",
        )
        go_on.set()
        assert_follows(pipeline, shelf, database, "steady", "holds", "redone")
    assert_never_copied_again(shelf, "steady", "holds", "redone")


def test_a_snapshot_is_lost_in_the_middle(
    spark: SparkSession, settings: Settings, database: Database, tmp_path: Path
) -> None:
    settings = settings_for(database, tmp_path, copy__range_bytes=131072)
    database.execute(
        "CREATE TABLE large (id int PRIMARY KEY, v text)",
        "INSERT INTO large SELECT i, repeat('x', 1000) FROM generate_series(1, 2000) i",
        "CREATE PUBLICATION walflow FOR TABLE steady, large",
    )
    shelf = PositionedShelf()
    set_failpoints("copy.range[public.large]=hold")
    with running(settings, spark, destination=shelf, caught_up=False) as pipeline:
        with writing(database, "large"):
            wait_for(lambda: bool((find(pipeline, "large") or _none()).rows_copied), WAIT)
            killed = database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE '%snapshot'"
            )
            assert killed == [(True,)]
            set_failpoints("")
            wait_phase(pipeline, "large", Phase.READY)
        assert_follows(pipeline, shelf, database, "steady", "large")
    assert_never_copied_again(shelf, "steady", "large")


def test_the_source_restarts(
    spark: SparkSession, start_postgres: ServerFactory, tmp_path: Path
) -> None:
    server = start_postgres(None)
    for database in fresh_database(server):
        make(database, "steady")
        database.execute(
            "CREATE TABLE large (id int PRIMARY KEY, v text)",
            "INSERT INTO large SELECT i, repeat('x', 1000) FROM generate_series(1, 2000) i",
            "CREATE PUBLICATION walflow FOR TABLE steady, large",
        )
        settings = settings_for(database, tmp_path, copy__range_bytes=131072)
        shelf = PositionedShelf()
        set_failpoints("copy.range[public.large]=hold")
        with running(settings, spark, destination=shelf, caught_up=False) as pipeline:
            wait_for(lambda: bool((find(pipeline, "large") or _none()).rows_copied), WAIT)
            server.restart()
            set_failpoints("")
            database.execute("UPDATE large SET v = 'after the restart' WHERE id % 7 = 0")
            wait_phase(pipeline, "large", Phase.READY)
            assert_follows(pipeline, shelf, database, "steady", "large")
            server.crash()
            server.start()
            make(database, "made")
            database.execute(
                "ALTER PUBLICATION walflow ADD TABLE made",
                "UPDATE large SET v = 'after the crash' WHERE id % 5 = 0",
                "UPDATE made SET v = 'after the crash' WHERE id % 5 = 0",
            )
            assert_follows(pipeline, shelf, database, "steady", "large", "made")
        assert_never_copied_again(shelf, "steady", "large", "made")
