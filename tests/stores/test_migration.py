"""The tables of a database: made, left alone, refused; and shipped with the package."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import tests.conftest
from walflow.errors import StoreError, StoreForeign
from walflow.model import Phase
from walflow.stores import migrations
from walflow.stores.sql import SqlStore
from walflow.stores.sql_database import Database
from walflow.stores.sql_postgres import PostgresDatabase
from walflow.stores.sql_sqlite import SqliteDatabase
from walflow.stores.sql_tables import metadata, migrate
from walflow.testing.store_samples import state_of

ROOT = Path(__file__).parents[2]
MakeDatabase = Callable[[], Database]


@pytest.fixture(params=["sqlite", "postgresql"])
def make_database(request: pytest.FixtureRequest, tmp_path: Path) -> MakeDatabase:
    if request.param == "sqlite":
        return lambda: SqliteDatabase(tmp_path / "state.db")
    server: tests.conftest.Database = request.getfixturevalue("database")
    return lambda: PostgresDatabase(server.uri, "walflow")


def run(database: Database, *statements: str) -> None:
    with database.writing("be prepared for a test") as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def names(database: Database) -> set[str]:
    with database.reading("be looked at") as connection:
        return set(sa.inspect(connection).get_table_names(schema=database.schema))


def test_the_known_revisions_are_those_that_there_are() -> None:
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert tuple(s.revision for s in scripts.walk_revisions())[::-1] == migrations.REVISIONS
    assert scripts.get_heads() == [migrations.HEAD]


def test_migrations_end_at_the_tables_that_are_used(make_database: MakeDatabase) -> None:
    database = make_database()
    migrate(database)
    assert names(database) == {*metadata.tables, migrations.VERSION_TABLE}
    with database.reading("be compared") as connection:
        if database.schema is not None:
            connection.exec_driver_sql(f"SET search_path = {database.schema}")
        options = {"version_table": migrations.VERSION_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
    database.close()


def test_what_was_there_before_stays(make_database: MakeDatabase) -> None:
    database = make_database()
    if database.schema is not None:
        run(database, f"CREATE SCHEMA {database.schema}")
    place = f"{database.schema}." if database.schema else ""
    run(database, f"CREATE TABLE {place}theirs (a int)", f"INSERT INTO {place}theirs VALUES (1)")
    for step in range(2):
        store = SqlStore(make_database(), "shop")
        assert len(store.get_table_replication_history(1)) == step
        store.update_table_replication_state(1, state_of(Phase.INIT, step))
        store.close()
    with database.reading("be looked at") as connection:
        assert connection.exec_driver_sql(f"SELECT a FROM {place}theirs").scalar_one() == 1
    database.close()


@pytest.mark.parametrize("version", ["0001", "9999"])
def test_a_store_of_another_version_is_refused(make_database: MakeDatabase, version: str) -> None:
    database = make_database()
    migrate(database)
    place = f"{database.schema}." if database.schema else ""
    run(database, f"UPDATE {place}{migrations.VERSION_TABLE} SET version_num = '{version}'")
    with pytest.raises(
        StoreForeign, match=f"version {version}, made by another walflow"
    ) as refused:
        SqlStore(make_database(), "shop")
    assert "--upgrade" in refused.value.hint
    assert not refused.value.retry
    database.close()


def test_tables_of_another_program_are_refused(make_database: MakeDatabase) -> None:
    database = make_database()
    if database.schema is not None:
        run(database, f"CREATE SCHEMA {database.schema}")
    place = f"{database.schema}." if database.schema else ""
    run(database, f"CREATE TABLE {place}requests (a int)")
    with pytest.raises(StoreForeign, match="did not make: requests"):
        SqlStore(make_database(), "shop")
    assert names(database) == {"requests"}
    database.close()


def test_an_entry_that_cannot_be_read_is_refused(make_database: MakeDatabase) -> None:
    store = SqlStore(make_database(), "shop")
    store.update_table_replication_state(1, state_of(Phase.INIT))
    database = make_database()
    place = f"{database.schema}." if database.schema else ""
    run(database, f"""UPDATE {place}table_states SET state = '{{"phase": "Levitating"}}'""")
    with pytest.raises(StoreForeign, match="cannot read"):
        store.load_table_replication_states()
    assert store.get_table_replication_state(1) == state_of(Phase.INIT)
    store.close()
    database.close()


def test_a_migration_is_all_or_nothing(make_database: MakeDatabase) -> None:
    database = make_database()
    # An index of that name is the last thing that a migration makes.
    place = "" if database.schema is None else f"{database.schema}."
    if database.schema is not None:
        run(database, f"CREATE SCHEMA {database.schema}")
    run(database, f"CREATE TABLE {place}t (a int)", f"CREATE INDEX requests_by_age ON {place}t (a)")
    with pytest.raises(StoreError, match="requests_by_age"):
        SqlStore(make_database(), "shop")
    assert names(database) == {"t"}
    run(database, f"DROP TABLE {place}t")
    SqlStore(make_database(), "shop").close()
    database.close()


def test_the_store_in_a_file_survives_a_power_loss(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "state.db")
    with database.writing("be looked at") as connection:
        full = 2
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == full
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        # While one writes, others read.
        with sqlite3.connect(tmp_path / "state.db", timeout=0) as other:
            other.execute("SELECT * FROM sqlite_master")
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
        other.close()
    database.close()


def test_the_wheel_has_the_migrations(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = tmp_path.glob("walflow-*.whl")
    folder = Path(migrations.__file__).parent
    expected = {
        f"walflow/stores/migrations/{file.relative_to(folder).as_posix()}"
        for file in folder.rglob("*.py")
    }
    assert len(expected) >= 2 + len(migrations.REVISIONS)
    assert expected <= set(zipfile.ZipFile(wheel).namelist())
