"""Tables whose form changes while they are followed, and while nobody looks."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import Database
from tests.pipeline.capturing import wait_for
from tests.pipeline.following import find, named, on_shelf, wait_phase
from tests.pipeline.running import HOLD, QUICK, WAIT, running, settings_for
from tests.pipeline.shelf import FollowingShelf, RenamingShelf, Shelf
from walflow.config import Settings
from walflow.errors import DestinationError
from walflow.evolution import Evolution, NotFollowed
from walflow.failpoints import set_failpoints
from walflow.model import Phase
from walflow.observe.metrics import Metrics
from walflow.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LONG = "repeat(md5(random()::text), 400)"
"""Large enough to lie outside the row, also when compressed."""


@pytest.fixture(autouse=True)
def _no_failpoints_left() -> Iterator[None]:
    yield
    set_failpoints("")


def make(database: Database, *tables: str, columns: str = "id int PRIMARY KEY, v text") -> None:
    for table in tables:
        # At once: one that is noticed while it is empty is copied before its rows come.
        database.execute(
            f"BEGIN; CREATE TABLE {table} ({columns});"
            f" INSERT INTO {table} SELECT i, 'v' || i FROM generate_series(1, 5) i; COMMIT",
        )


def publish(database: Database) -> None:
    database.execute("CREATE PUBLICATION walflow FOR ALL TABLES")


def in_columns(rows: Any) -> list[Any]:
    return sorted((tuple(row) for row in rows), key=repr)


def assert_followed(
    pipeline: Pipeline,
    shelf: Shelf,
    database: Database,
    tables: Mapping[str, int] | tuple[str, ...],
) -> None:
    """The tables are soon as the source's, columns and rows, and were copied so often (once)."""
    copies = tables if isinstance(tables, Mapping) else dict.fromkeys(tables, 1)
    for table in copies:
        assert_as_in_source(pipeline, shelf, database, table)
    for table, count in copies.items():
        wait_phase(pipeline, table, Phase.READY)
        assert (table, shelf.copies[named(table)]) == (table, count)


def assert_as_in_source(pipeline: Pipeline, shelf: Shelf, database: Database, table: str) -> None:
    wait_for(
        lambda: _is_as_in_source(shelf, database, table),
        WAIT,
        f"{table} is as in the source: {on_shelf(shelf, table)}",
        pipeline.check,
    )


def _is_as_in_source(shelf: Shelf, database: Database, table: str) -> bool:
    with database.connect() as connection:
        found = connection.execute(f"SELECT * FROM {table}")
        assert found.description is not None
        names = tuple(column.name for column in found.description)
        rows = found.fetchall()
    form = shelf.forms.get(named(table))
    return (
        form is not None
        and form.column_names == names
        and in_columns(on_shelf(shelf, table) or ()) == in_columns(rows)
    )


DDL: dict[str, tuple[str, ...]] = {
    "added": (
        "ALTER TABLE added ADD COLUMN n int",
        "UPDATE added SET n = 7 WHERE id = 1",
        "INSERT INTO added VALUES (10, 'ten', 10)",
    ),
    # What rows from before have in it is only in the catalog.
    "filled": (
        "ALTER TABLE filled ADD COLUMN n numeric(10,2) DEFAULT 1.5",
        "ALTER TABLE filled ADD COLUMN t text NOT NULL DEFAULT 'it''s \\'",
        "ALTER TABLE filled ADD COLUMN a int[] DEFAULT '{1,NULL}'",
        "ALTER TABLE filled ALTER COLUMN t SET DEFAULT 'another'",
        "INSERT INTO filled (id, v) VALUES (10, 'ten')",
        "UPDATE filled SET v = 'changed' WHERE id = 2",
        "DELETE FROM filled WHERE id = 3",
    ),
    "renamed": (
        "ALTER TABLE renamed RENAME COLUMN v TO w",
        "UPDATE renamed SET w = 'by the new name' WHERE id = 1",
    ),
    "renamed_key": (
        "ALTER TABLE renamed_key RENAME COLUMN id TO key",
        "UPDATE renamed_key SET key = 100 WHERE key = 1",
        "DELETE FROM renamed_key WHERE key = 2",
    ),
    "swapped": (
        "BEGIN; ALTER TABLE swapped RENAME COLUMN v TO tmp;"
        " ALTER TABLE swapped RENAME COLUMN w TO v; ALTER TABLE swapped RENAME COLUMN tmp TO w;"
        " UPDATE swapped SET w = 'w' WHERE id = 1; COMMIT",
        "UPDATE swapped SET v = 'v' WHERE id = 2",
    ),
    "dropped": (
        "ALTER TABLE dropped DROP COLUMN v",
        "INSERT INTO dropped VALUES (10)",
    ),
    "in_between": (
        "BEGIN; UPDATE in_between SET v = 'before' WHERE id < 3;"
        " ALTER TABLE in_between ADD COLUMN n int DEFAULT 5;"
        " UPDATE in_between SET v = 'after', n = 6 WHERE id = 2;"
        " INSERT INTO in_between VALUES (10, 'ten', 10);"
        " ALTER TABLE in_between RENAME COLUMN n TO m;"
        " DELETE FROM in_between WHERE id = 4; UPDATE in_between SET m = 8 WHERE id = 5; COMMIT",
    ),
    "several": (
        "UPDATE several SET v = 'first' WHERE id = 1",
        "ALTER TABLE several ADD COLUMN a int DEFAULT 1",
        "UPDATE several SET a = 2 WHERE id = 2",
        "ALTER TABLE several RENAME COLUMN a TO b",
        "INSERT INTO several VALUES (10, 'ten', 3)",
        "ALTER TABLE several DROP COLUMN v",
        "UPDATE several SET b = 4 WHERE id = 4",
        "ALTER TABLE several ADD COLUMN v int",
        "UPDATE several SET v = 5 WHERE id = 5",
        "DELETE FROM several WHERE id = 3",
    ),
    "roomier": (
        "ALTER TABLE roomier ALTER COLUMN w TYPE varchar(40)",
        "INSERT INTO roomier VALUES (10, 'ten', repeat('x', 40))",
    ),
    "toasted": (
        "UPDATE toasted SET id = 11 WHERE id = 1",
        "ALTER TABLE toasted RENAME COLUMN v TO large",
        "UPDATE toasted SET n = 1 WHERE id = 11",
        "ALTER TABLE toasted ADD COLUMN m int DEFAULT 2",
        "UPDATE toasted SET n = 2 WHERE id = 2",
    ),
    "keyless": (
        "UPDATE keyless SET v = 'twice' WHERE id = 1",
        "DELETE FROM keyless WHERE id = 5",
        "ALTER TABLE keyless ADD COLUMN n int DEFAULT 3",
        "DELETE FROM keyless WHERE id = 2",
        "UPDATE keyless SET n = 4 WHERE id = 3",
        "ALTER TABLE keyless RENAME COLUMN v TO w",
        "ALTER TABLE keyless DROP COLUMN id",
        "INSERT INTO keyless VALUES ('last', 9)",
    ),
}
QUIET = {
    # Nothing is written to these: only the catalog knows.
    "quiet_added": ("ALTER TABLE quiet_added ADD COLUMN n int DEFAULT 9",),
    "quiet_dropped": ("ALTER TABLE quiet_dropped DROP COLUMN v",),
    "quiet_key": ("ALTER TABLE quiet_key DROP CONSTRAINT quiet_key_pkey, ADD PRIMARY KEY (id, v)",),
    "nullability": ("ALTER TABLE nullability ALTER COLUMN v SET NOT NULL",),
}
COPIED_AGAIN = {
    # Postgres writes these anew, with values that it does not log.
    "widened": ("ALTER TABLE widened ALTER COLUMN id TYPE bigint",),
    "retyped": (
        "ALTER TABLE retyped ALTER COLUMN v TYPE int USING length(v)",
        "UPDATE retyped SET v = 3 WHERE id = 1",
    ),
    "random": ("ALTER TABLE random ADD COLUMN n float8 DEFAULT random()",),
}


AWAY = {
    "added": (
        "ALTER TABLE added ADD COLUMN m int DEFAULT 3",
        "UPDATE added SET n = 8 WHERE id < 3",
    ),
    "renamed": (
        "UPDATE renamed SET w = 'once more' WHERE id = 3",
        "ALTER TABLE renamed RENAME COLUMN w TO x",
        "UPDATE renamed SET x = 'under a third name' WHERE id = 4",
    ),
    "dropped": (
        "DELETE FROM dropped WHERE id = 1",
        "ALTER TABLE dropped ADD COLUMN t date DEFAULT '2024-02-29'",
        "INSERT INTO dropped VALUES (20)",
    ),
    "swapped": DDL["swapped"],
    "quiet_added": ("ALTER TABLE quiet_added DROP COLUMN n",),
    "nullability": ("VACUUM FULL nullability",),
}
"""What happens while nobody looks."""


UNSURE = {
    # Its changes before and after look the same: it depends on what is seen first.
    "redone": (
        "ALTER TABLE redone DROP COLUMN v, ADD COLUMN v text DEFAULT 'anew'",
        "UPDATE redone SET v = 'set' WHERE id = 1",
    ),
}


def make_all(database: Database) -> None:
    special = {"swapped", "roomier", "toasted", "keyless"}
    plain = (DDL.keys() | QUIET.keys() | COPIED_AGAIN.keys() | UNSURE.keys()) - special
    make(database, *plain)
    make(database, "swapped", columns="id int PRIMARY KEY, v text, w text DEFAULT 'w0'")
    make(database, "roomier", columns="id int PRIMARY KEY, v text, w varchar(4) DEFAULT 'w0'")
    make(database, "toasted", columns="id int PRIMARY KEY, v text, n int")
    make(database, "keyless", columns="id int, v text")
    database.execute(
        "ALTER TABLE toasted ALTER COLUMN v SET STORAGE EXTERNAL",
        f"UPDATE toasted SET v = {LONG}",
        "ALTER TABLE keyless REPLICA IDENTITY FULL",
        "INSERT INTO keyless SELECT * FROM keyless",
    )


def steps() -> Iterator[list[str]]:
    """One statement of each table, then the next one of each."""
    groups = (DDL, QUIET, COPIED_AGAIN, UNSURE)
    each = zip_longest(*(statements for group in groups for statements in group.values()))
    return ([statement for statement in step if statement] for step in each)


def test_forms_are_followed(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    make_all(database)
    publish(database)
    settings = settings_for(database, tmp_path)
    shelf, metrics, go_on = FollowingShelf(), Metrics(), threading.Event()
    with running(settings, spark, destination=shelf, metrics=metrics) as pipeline:
        # The forms come in one by one, and are then applied all at once.
        shelf.before_batch = lambda table: hold(go_on)
        database.execute(*(f"UPDATE {table} SET v = 'held' WHERE id = 1" for table in DDL))
        for step in steps():
            database.execute(*step)
            wait_until_logged(pipeline)
        go_on.set()
        assert_followed(pipeline, shelf, database, (*DDL, *QUIET))
        assert_followed(pipeline, shelf, database, dict.fromkeys(COPIED_AGAIN, 2))
        assert_as_in_source(pipeline, shelf, database, "redone")
        # They were not brought from form to form, but to the last one at once.
        assert changes_of(metrics, "several") <= 2
        database.execute("UPDATE several SET v = 6 WHERE id = 4")
        assert_followed(pipeline, shelf, database, ("several",))
    shelf.changes.clear()
    database.execute(*(statement for statements in AWAY.values() for statement in statements))
    with running(settings, spark, destination=shelf) as pipeline:
        assert_followed(pipeline, shelf, database, (*DDL, *QUIET))
    # What had been followed before was not done again.
    assert {change.after.name.name for change in shelf.changes} == AWAY.keys() - {"nullability"}


def hold(event: threading.Event) -> None:
    assert event.wait(HOLD)


def wait_until_logged(pipeline: Pipeline) -> None:
    position = pipeline.source_position()
    wait_for(lambda: pipeline.status().log_end >= position, WAIT, "logged", pipeline.check)


def changes_of(metrics: Metrics, table: str) -> float:
    return (
        metrics.registry.get_sample_value(
            "etl_ddl_schema_changes_total", {"pipeline": "test", "table": f"public.{table}"}
        )
        or 0
    )


class Impossible(DestinationError):
    retry = False


class Hindered(RenamingShelf):
    """Refuses some forms and names."""

    def __init__(self) -> None:
        super().__init__(named("refused_since"))
        self.refuses = True
        self.before_change = self._refuse

    def _refuse(self, evolution: Evolution) -> None:
        if evolution.after.name == named("not_followed"):
            raise NotFollowed("no way for this one")
        if evolution.after.name == named("impossible") and self.refuses:
            raise Impossible("there is no such table here", hint="try another")


@pytest.fixture
def trusting(database: Database, tmp_path: Path) -> Settings:
    """What rewrites the rows is followed; what fails is tried again, and again."""
    return settings_for(
        database, tmp_path, apply__on_rewrite="trust", table_error_retry_max_attempts=50
    )


def test_what_changes_alone_do_not_tell_is_copied_again_by_the_streams_word(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    """No look at the catalog is needed for it: the next one is far away."""
    make(database, "retyped", "steady")
    publish(database)
    settings = settings_for(database, tmp_path)
    shelf, timing = FollowingShelf(), replace(QUICK, publication=100 * WAIT)
    with running(settings, spark, destination=shelf, timing=timing) as pipeline:
        database.execute(*COPIED_AGAIN["retyped"], "UPDATE steady SET v = 'x' WHERE id = 1")
        assert_followed(pipeline, shelf, database, {"retyped": 2, "steady": 1})


def test_keys_and_rewrites(spark: SparkSession, database: Database, trusting: Settings) -> None:
    make(database, "rekeyed", "rekeyed_at_once", "trusted", "vacuumed")
    publish(database)
    shelf, go_on = FollowingShelf(), threading.Event()
    once = ("rekeyed", "trusted", "vacuumed")
    with running(trusting, spark, destination=shelf) as pipeline:
        files = wait_phase(pipeline, "vacuumed", Phase.READY).schema.filenodes
        shelf.before_batch = lambda table: hold(go_on) if table == named("rekeyed") else None
        database.execute(
            "VACUUM FULL vacuumed",
            "UPDATE rekeyed SET v = 'before' WHERE id = 1",
            "ALTER TABLE rekeyed DROP CONSTRAINT rekeyed_pkey, ADD PRIMARY KEY (v)",
            "BEGIN; UPDATE rekeyed_at_once SET v = 'before' WHERE id = 1;"
            " ALTER TABLE rekeyed_at_once DROP CONSTRAINT rekeyed_at_once_pkey,"
            " ADD PRIMARY KEY (v); UPDATE rekeyed_at_once SET id = 7 WHERE v = 'before'; COMMIT",
            "ALTER TABLE trusted ALTER COLUMN id TYPE bigint",
            "UPDATE trusted SET v = 'wider' WHERE id = 1",
        )
        wait_until_logged(pipeline)
        # Rows that are told apart in different ways do not go into one batch.
        database.execute("UPDATE rekeyed SET id = 1, v = 'after' WHERE v = 'v2'")
        wait_until_logged(pipeline)
        go_on.set()
        wait_for(
            lambda: (find(pipeline, "vacuumed") or pytest.fail("gone")).schema.filenodes != files,
            WAIT,
            "it is known where the rows lie",
            pipeline.check,
        )
        database.execute("ALTER TABLE vacuumed ADD COLUMN n int")
        assert_followed(pipeline, shelf, database, once)
        assert_followed(pipeline, shelf, database, {"rekeyed_at_once": 2})
    with running(trusting, spark, destination=shelf) as pipeline:
        assert_followed(pipeline, shelf, database, once)


def test_a_form_that_changes_while_the_copy_is_handed_over(
    spark: SparkSession, database: Database, trusting: Settings
) -> None:
    publish(database)
    shelf, go_on = FollowingShelf(), threading.Event()
    with running(trusting, spark, destination=shelf) as pipeline:
        shelf.before_copy = lambda table: hold(go_on)
        make(database, "late")
        wait_phase(pipeline, "late", Phase.FINISHED_COPY)
        database.execute("UPDATE late SET v = 'before' WHERE id = 1")
        # Received while the catalog still says which columns it speaks of.
        wait_until_logged(pipeline)
        database.execute(
            "ALTER TABLE late ADD COLUMN n int DEFAULT 3",
            "UPDATE late SET v = 'after' WHERE id = 2",
            "ALTER TABLE late DROP COLUMN v",
            "DELETE FROM late WHERE id = 3",
        )
        wait_until_logged(pipeline)
        go_on.set()
        assert_followed(pipeline, shelf, database, ("late",))
    with running(trusting, spark, destination=shelf) as pipeline:
        assert_followed(pipeline, shelf, database, ("late",))


def test_forms_that_meet_with_failures(
    spark: SparkSession, database: Database, trusting: Settings
) -> None:
    given = ("not_followed", "impossible", "raised_before", "raised_after")
    make(database, *given, "interrupted", "killed")
    publish(database)
    shelf = Hindered()
    once = ("interrupted", "raised_before", "raised_after")
    set_failpoints(
        "evolve.change[public.raised_before]@1=raise; evolve.changed[public.raised_after]@1=raise;"
        " evolve.change[public.killed]@1=raise; evolve.changed[public.killed]=raise;"
        " apply.write[public.interrupted]@1=raise"
    )
    with running(trusting, spark, destination=shelf) as pipeline:
        database.execute(
            *(f"ALTER TABLE {table} ADD COLUMN n int DEFAULT 3" for table in given),
            # The table has its new form already, when both come again.
            "BEGIN; UPDATE interrupted SET v = 'before' WHERE id < 3;"
            " ALTER TABLE interrupted ADD COLUMN n int DEFAULT 3;"
            " UPDATE interrupted SET n = 4 WHERE id = 1; COMMIT",
            "ALTER TABLE killed RENAME COLUMN v TO w",
            "UPDATE killed SET w = 'under the second name' WHERE id = 2",
            *(f"INSERT INTO {table} VALUES (10, 'ten', 10)" for table in given[1:]),
        )
        assert_followed(pipeline, shelf, database, once)
        assert_followed(pipeline, shelf, database, {"not_followed": 2})
        impossible = wait_phase(pipeline, "impossible", Phase.ERRORED)
        assert impossible.error is not None
        assert impossible.error.hint == "try another"
        # What the destination refused is taken back.
        database.execute("ALTER TABLE impossible DROP COLUMN n")
        assert_followed(pipeline, shelf, database, {"impossible": 2})
        # Which fails once before the change, and then again and again after it.
        renamed = ("id", "w")
        wait_for(lambda: shelf.forms[named("killed")].column_names == renamed, WAIT, "renamed")
        wait_phase(pipeline, "killed", Phase.ERRORED)
    set_failpoints("")
    database.execute(
        "ALTER TABLE killed RENAME COLUMN w TO x",
        "UPDATE killed SET x = 'under the third name' WHERE id = 3",
    )
    with running(trusting, spark, destination=shelf) as pipeline:
        assert_followed(pipeline, shelf, database, (*once, "killed"))


def test_names_that_the_destination_follows_or_refuses(
    spark: SparkSession, database: Database, trusting: Settings
) -> None:
    make(database, "moving", "refused")
    publish(database)
    shelf = Hindered()
    with running(trusting, spark, destination=shelf) as pipeline:
        database.execute(
            "ALTER TABLE moving RENAME TO moved",
            "UPDATE moved SET v = 'under another name' WHERE id = 1",
            "ALTER TABLE refused RENAME TO refused_since",
        )
        assert_followed(pipeline, shelf, database, {"moved": 0, "refused_since": 1})
        assert find(pipeline, "moving") is None
    with running(trusting, spark, destination=shelf) as pipeline:
        assert_followed(pipeline, shelf, database, {"moved": 0})
