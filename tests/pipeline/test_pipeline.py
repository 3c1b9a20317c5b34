"""Whole pipelines into Iceberg tables, through what may happen between and around their runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.conftest import Database, fresh_database
from tests.pipeline.capturing import wait_for
from tests.pipeline.running import WAIT, catch_up, in_source, running, settings_for
from walflow.config import Settings
from walflow.errors import TablesSetAside
from walflow.model import Phase
from walflow.pipeline.pipeline import Pipeline
from walflow.testing.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def settings(database: Database, tmp_path: Path) -> Settings:
    return settings_for(database, tmp_path)


@pytest.fixture
def other_database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    yield from fresh_database(postgres)


def lake_reader(spark: SparkSession, settings: Settings) -> SparkSession:
    """To read past everything of ours: a session that knows the folder alone."""
    reader = spark.newSession()
    for name, value in {
        "spark.sql.catalog.other": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.other.type": "hadoop",
        "spark.sql.catalog.other.warehouse": settings.destination.uri.removeprefix("iceberg://"),
        "spark.sql.catalog.other.cache-enabled": "false",
    }.items():
        reader.conf.set(name, value)
    return reader


def in_lake(spark: SparkSession, settings: Settings, table: str) -> list[tuple[Any, ...]]:
    rows = (
        lake_reader(spark, settings)
        .table(f"other.public.{table}")
        .drop("_CHANGE_TYPE", "_LSN", "_TIMESTAMP")
    )
    return sorted(tuple(row) for row in rows.collect())


def assert_equal(spark: SparkSession, settings: Settings, database: Database, *tables: str) -> None:
    for table in tables:
        assert in_lake(spark, settings, table) == in_source(database, table)


def test_a_form_that_changed_while_nobody_looked(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "CREATE TABLE u (id int PRIMARY KEY, a text)",
        "INSERT INTO t VALUES (1, 'one'), (2, 'two')",
        "INSERT INTO u VALUES (1, 'one')",
        "CREATE PUBLICATION walflow FOR TABLE t, u",
    )
    with running(settings, spark):
        assert_equal(spark, settings, database, "t", "u")
    database.execute(
        "INSERT INTO t VALUES (3, 'three')",
        "ALTER TABLE t ADD COLUMN b int DEFAULT 7",
        "INSERT INTO t VALUES (4, 'four', 4)",
        # Another table under the same name, with rows that the destination has under it.
        "DROP TABLE u",
        "CREATE TABLE u (id int PRIMARY KEY, a text)",
        "ALTER PUBLICATION walflow ADD TABLE u",
        "INSERT INTO u VALUES (5, 'five')",
    )
    with running(settings, spark) as pipeline:
        assert_equal(spark, settings, database, "t", "u")
        database.execute("ALTER TABLE t DROP COLUMN a", "UPDATE t SET b = 8 WHERE id = 1")
        catch_up(pipeline)
        assert_equal(spark, settings, database, "t", "u")
    commits = lake_reader(spark, settings).table("other.public.t.snapshots")
    assert {row["summary"].get("walflow.timeline") for row in commits.collect()} == {"1"}
    # And nothing is copied that need not be.
    began = time.time()
    with running(settings, spark) as pipeline:
        assert all(state.since < began for state in pipeline.status().tables)


def test_tables_that_leave_and_come_back(
    spark: SparkSession,
    settings: Settings,
    database: Database,
) -> None:
    database.execute(
        "CREATE TABLE stays (id int PRIMARY KEY, a text)",
        "CREATE TABLE goes (id int PRIMARY KEY, a text)",
        "CREATE TABLE quiet (id int PRIMARY KEY)",
        "INSERT INTO goes VALUES (1, 'one')",
        "CREATE PUBLICATION walflow FOR TABLE stays, goes",
    )

    def followed(pipeline: Pipeline) -> set[str]:
        states = pipeline.status().tables
        return {state.name.name for state in states if state.phase is Phase.READY}

    with running(settings, spark) as pipeline:
        database.execute("ALTER PUBLICATION walflow DROP TABLE goes")
        wait_for(lambda: followed(pipeline) == {"stays"}, WAIT)
        database.execute("UPDATE goes SET a = 'unseen'")
        database.execute("ALTER PUBLICATION walflow ADD TABLE goes, quiet")
        wait_for(lambda: followed(pipeline) == {"stays", "goes", "quiet"}, WAIT)
        catch_up(pipeline)
        assert_equal(spark, settings, database, "stays", "goes", "quiet")
        database.execute("ALTER PUBLICATION walflow DROP TABLE goes")
        wait_for(lambda: "goes" not in followed(pipeline), WAIT)
    database.execute("UPDATE goes SET a = 'unseen again'")
    database.execute("ALTER PUBLICATION walflow ADD TABLE goes")
    with running(settings, spark):
        assert_equal(spark, settings, database, "stays", "goes", "quiet")


def test_a_row_that_enters_a_row_filter_without_its_large_value(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    if database.server.version < 15:
        pytest.skip("row filters came with Postgres 15: get one with `make postgres`")
    database.execute(
        "CREATE TABLE t (id int, active bool NOT NULL, body text, PRIMARY KEY (id, active))",
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT i, i > 1, repeat('x', 5000) FROM generate_series(1, 3) i",
        "CREATE PUBLICATION walflow FOR TABLE t WHERE (active)",
    )
    with running(settings, spark) as pipeline:
        assert len(in_lake(spark, settings, "t")) == 2
        database.execute("UPDATE t SET active = true")
        catch_up(pipeline)
        assert_equal(spark, settings, database, "t")


def test_files_of_others_stay_out(
    spark: SparkSession, settings: Settings, database: Database, tmp_path: Path
) -> None:
    stray = tmp_path / "lake" / "public" / "t" / "data" / "stray.parquet"
    stray.parent.mkdir(parents=True)
    parquet.write_table(pa.table({"id": pa.array([99], pa.int32())}), stray)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION walflow FOR TABLE t",
    )
    with running(settings, spark):
        assert_equal(spark, settings, database, "t")
    assert stray.exists()


def test_two_databases_do_not_share_tables(
    spark: SparkSession,
    settings: Settings,
    database: Database,
    tmp_path: Path,
    other_database: Database,
) -> None:
    for one in (database, other_database):
        one.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION walflow FOR TABLE t")
    database.execute("INSERT INTO t VALUES (1)")
    with running(settings, spark):
        pass
    pipeline = Pipeline(settings_for(other_database, tmp_path, "other log"), spark=spark)
    pipeline.start()
    try:
        with pytest.raises(TablesSetAside, match=r"public\.t.*another source"):
            pipeline.wait(until_caught_up=True)
    finally:
        pipeline.shutdown()
    assert_equal(spark, settings, database, "t")
