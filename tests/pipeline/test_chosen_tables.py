"""Tables that patterns choose: the others are not followed, whatever they are called meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Database
from tests.pipeline.capturing import wait_for
from tests.pipeline.following import assert_follows, find, named, on_shelf, wait_phase
from tests.pipeline.running import WAIT, catch_up, running, settings_for
from tests.pipeline.shelf import DroppingShelf
from walflow.model import Phase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def oid_of(database: Database, table: str) -> int:
    ((oid,),) = database.execute(f"SELECT '{table}'::regclass::oid")
    return int(oid)


def test_only_chosen_tables_are_followed(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    for table in ("steady", "audit_1", "away"):
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} SELECT i, 'old' FROM generate_series(1, 20) i",
        )
    database.execute("CREATE SCHEMA other", "CREATE TABLE other.t (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION walflow FOR ALL TABLES")
    settings = settings_for(
        database, tmp_path, tables__include="public.*", tables__exclude="*.audit_*"
    )
    shelf = DroppingShelf()
    with running(settings, spark, destination=shelf) as pipeline:
        # Those that are there, and those that come.
        database.execute(
            "CREATE TABLE audit_2 (id int PRIMARY KEY, v text)",
            "CREATE TABLE made (id int PRIMARY KEY, v text)",
        )
        for table in ("steady", "audit_1", "audit_2", "made"):
            database.execute(
                f"INSERT INTO {table} VALUES (100, 'new')", f"UPDATE {table} SET v = 'newer'"
            )
        database.execute("TRUNCATE audit_2, away", "INSERT INTO other.t VALUES (1)")
        wait_phase(pipeline, "made", Phase.READY)
        assert_follows(pipeline, shelf, database, "steady", "made", "away")
        followed = {state.name.name for state in pipeline.status().tables}
        assert followed == {"steady", "made", "away"}
        for table in ("audit_1", "audit_2", "other.t"):
            assert pipeline._log.latest_schema(oid_of(database, table)) is None

        # Under a name that is not chosen, for less time than anybody can see.
        with database.connect(autocommit=False) as session:
            session.execute("ALTER TABLE steady RENAME TO audit_steady")
            session.execute("UPDATE audit_steady SET v = 'meanwhile' WHERE id < 5")
            session.execute("ALTER TABLE audit_steady RENAME TO steady")
            session.commit()
        database.execute("INSERT INTO steady VALUES (200, 'after')")
        assert_follows(pipeline, shelf, database, "steady", "made", "away")
        assert shelf.copies[named("steady")] == 1

        # For good, and back.
        database.execute("ALTER TABLE steady RENAME TO audit_steady")
        wait_for(lambda: find(pipeline, "steady") is None, WAIT, check=pipeline.check)
        catch_up(pipeline)
        rows = on_shelf(shelf, "steady")
        database.execute("UPDATE audit_steady SET v = 'unseen'")
        catch_up(pipeline)
        assert on_shelf(shelf, "steady") == rows
        database.execute("ALTER TABLE audit_steady RENAME TO steady")
        # One that never was.
        database.execute("ALTER TABLE audit_1 RENAME TO seen", "UPDATE seen SET v = 'seen'")
        for table in ("steady", "seen"):
            wait_phase(pipeline, table, Phase.READY)
        database.execute("DELETE FROM seen WHERE id = 3", "DELETE FROM steady WHERE id = 3")
        assert_follows(pipeline, shelf, database, "steady", "seen", "made", "away")

    # A pattern that may be a mistake does not cost what the destination has.
    settings = settings_for(
        database, tmp_path, tables__exclude="*.away, *.audit_*", on_table_removed="drop"
    )
    with running(settings, spark, destination=shelf) as pipeline:
        wait_for(lambda: find(pipeline, "away") is None, WAIT, check=pipeline.check)
        database.execute("DROP TABLE made")
        wait_for(lambda: on_shelf(shelf, "made") is None, WAIT, check=pipeline.check)
        assert on_shelf(shelf, "away") is not None
