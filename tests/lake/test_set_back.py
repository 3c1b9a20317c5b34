"""Somebody sets tables back while a pipeline follows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Database
from tests.lake.equality import CURRENT, FORMATS, Lake, Sought, assert_equal, format_of
from tests.pipeline.capturing import wait_for
from tests.pipeline.following import wait_all_ready
from tests.pipeline.running import WAIT, catch_up, running, settings_for
from walflow.model import TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("lake_format", FORMATS)
def test_tables_that_are_set_back_lose_nothing(
    spark: SparkSession, database: Database, tmp_path: Path, lake_format: str
) -> None:
    tables = ("keyed", "keyless", "rekeyed")
    database.execute(
        "CREATE TABLE keyed (id int PRIMARY KEY, v text)",
        "CREATE TABLE keyless (id int, v text)",
        "CREATE TABLE rekeyed (id int PRIMARY KEY, v text, code int NOT NULL DEFAULT 0)",
        "ALTER TABLE keyless REPLICA IDENTITY FULL",
        *(f"INSERT INTO {t} SELECT i, 'v' || i FROM generate_series(1, 60) i" for t in tables),
        "UPDATE rekeyed SET code = -id",
        "CREATE PUBLICATION walflow FOR TABLE keyed, keyless, rekeyed",
    )
    settings = settings_for(database, tmp_path, destination__uri=f"{lake_format}://{tmp_path}/lake")
    lake = Lake(spark, settings)
    with running(settings, spark) as pipeline:
        wait_all_ready(pipeline)
        for number in range(3):
            for table in tables:
                database.execute(
                    f"UPDATE {table} SET v = 'changed' WHERE id BETWEEN {number * 14} AND 60",
                    f"DELETE FROM {table} WHERE id = {number + 1}",
                )
            if number == 1:
                # What came before it is of no use to a table that has the new key.
                database.execute(
                    "ALTER TABLE rekeyed DROP CONSTRAINT rekeyed_pkey, ADD PRIMARY KEY (code)"
                )
            catch_up(pipeline)
        format, session = format_of(settings), lake.session
        for table in tables:
            name = TableName("public", table)
            copy = next(one.id for one in format.versions(session, name) if one.position)
            if lake_format == "iceberg":
                session.sql(f"CALL lake.system.rollback_to_snapshot('public.{table}', {copy})")
            else:
                session.sql(f"RESTORE TABLE {format.identifier(name)} TO VERSION AS OF {copy}")
        for table in tables:
            database.execute(f"UPDATE {table} SET v = 'late' WHERE id = 20")
        catch_up(pipeline)
        assert_equal(database, lake, [Sought(table) for table in tables])
        wait_all_ready(pipeline)


def columns(session: SparkSession, identifier: str) -> list[str]:
    return session.sql(f"SELECT * FROM {identifier}").columns


@pytest.mark.parametrize("lake_format", FORMATS)
def test_a_table_that_is_set_back_over_a_change_of_its_columns(
    spark: SparkSession, database: Database, tmp_path: Path, lake_format: str
) -> None:
    """While nobody looks: the rows that no later change touches have their new values all the
    same. A list is no default that Iceberg knows, so it is written into them."""
    tables = ("changed_since", "unchanged_since", "versions")
    sought = [Sought("versions", CURRENT), Sought("changed_since"), Sought("unchanged_since")]
    database.execute(
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, v text)" for t in tables),
        *(f"INSERT INTO {t} SELECT i, 'v' || i FROM generate_series(1, 60) i" for t in tables),
        f"CREATE PUBLICATION walflow FOR TABLE {', '.join(tables)}",
    )
    settings = settings_for(
        database,
        tmp_path,
        destination__uri=f"{lake_format}://{tmp_path}/lake",
        apply__tables=json.dumps({"public.versions": {"mode": "scd2"}}),
    )
    lake = Lake(spark, settings)
    past = "SELECT id, v FROM ({}) WHERE NOT _CURRENT"
    format, session = format_of(settings), lake.session
    with running(settings, spark) as pipeline:
        for table in tables:
            database.execute(f"UPDATE {table} SET v = 'changed' WHERE id < 5")
        catch_up(pipeline)
        versions = set(lake.rows(past.format(lake.query("versions"))))
        assert versions == {(number, f"v{number}") for number in range(1, 5)}
        before = {t: format.versions(session, TableName("public", t))[-1].id for t in tables}
        for table in tables:
            database.execute(f"ALTER TABLE {table} ADD COLUMN tags text[] DEFAULT '{{x,y}}'")
        identifiers = [format.identifier(TableName("public", table)) for table in tables]
        wait_for(lambda: all("tags" in columns(session, one) for one in identifiers), WAIT)
        database.execute("UPDATE changed_since SET v = 'since' WHERE id < 3")
        catch_up(pipeline)
        assert_equal(database, lake, sought)
    for table, version in before.items():
        if lake_format == "iceberg":
            session.sql(f"CALL lake.system.rollback_to_snapshot('public.{table}', {version})")
        else:
            identifier = format.identifier(TableName("public", table))
            restored = f"VERSION AS OF {version}"
            if table == "versions":
                # This way it does not say which version it is now.
                history = session.sql(f"DESCRIBE HISTORY {identifier}")
                time = history.where(f"version = {version}").collect()[0].timestamp
                restored = f"TIMESTAMP AS OF '{time}'"
            session.sql(f"RESTORE TABLE {identifier} TO {restored}")
    with running(settings, spark) as pipeline:
        for table in tables:
            database.execute(f"UPDATE {table} SET v = 'late' WHERE id = 20")
        catch_up(pipeline)
        assert_equal(database, lake, sought)
        # What it is replaced by has no past.
        assert set(lake.rows(past.format(lake.query("versions")))) >= versions
        wait_all_ready(pipeline)
