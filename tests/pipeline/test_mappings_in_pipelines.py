"""The destination's names for tables, and tables that would share one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Database
from tests.pipeline.capturing import wait_for
from tests.pipeline.following import Writer, find, named, on_shelf, wait_phase
from tests.pipeline.running import WAIT, catch_up, in_source, running, settings_for
from tests.pipeline.shelf import PositionedShelf, Shelf
from walflow.errors import MappingConflict
from walflow.model import Phase, TableName
from walflow.pipeline import joining

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_LOOK_SECONDS", 0.5)


def make(database: Database, *tables: str) -> None:
    for table in tables:
        database.execute(
            f"CREATE SCHEMA IF NOT EXISTS {named(table).schema}",
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} SELECT i, '{table} ' || i FROM generate_series(1, 20) i",
        )


def writing(database: Database, *tables: str) -> Writer:
    return Writer(
        database,
        *(f"UPDATE {table} SET v = '{table} u{{n}}' WHERE id = {{n}} % 20 + 1" for table in tables),
    )


def assert_at(shelf: Shelf, database: Database, **places: str) -> None:
    """By the destination's name, with two underscores for the dot: the source's."""
    for place, table in places.items():
        place = place.replace("__", ".")
        wait_for(
            lambda: on_shelf(shelf, place) == in_source(database, table),  # noqa: B023
            WAIT,
            f"{place} is {table}",
        )


def test_tables_go_where_the_mapping_says(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    make(database, "a.t", "b.t", "a.u")
    database.execute("CREATE PUBLICATION walflow FOR TABLE a.t, b.t, a.u")
    shelf = PositionedShelf()
    templated = {"mapping__template": "lake.{schema}_{table}"}
    with (
        running(settings_for(database, tmp_path), spark, destination=shelf) as pipeline,
        writing(database, "a.t", "b.t", "a.u"),
    ):
        catch_up(pipeline)
    # Another template, and one name of its own.
    settings = settings_for(database, tmp_path, **templated, mapping__tables={"a.u": "mart.units"})
    with running(settings, spark, destination=shelf) as pipeline:
        with writing(database, "a.t", "b.t", "a.u"):
            wait_phase(pipeline, "a.u", Phase.READY)
        assert_at(shelf, database, lake__a_t="a.t", lake__b_t="b.t", mart__units="a.u")
    # The same again: nothing is copied. One name more, and only that one is.
    settings = settings_for(database, tmp_path, **templated)
    with running(settings, spark, destination=shelf) as pipeline:
        catch_up(pipeline)
        assert_at(shelf, database, lake__a_t="a.t", lake__b_t="b.t", lake__a_u="a.u")
    places = ("a.t", "b.t", "a.u", "lake.a_t", "lake.b_t", "mart.units", "lake.a_u")
    assert shelf.copies == {named(place): 1 for place in places}


def test_two_tables_on_one_name_are_refused_at_the_start(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    make(database, "a.t", "b.t", "c.x")
    database.execute("CREATE PUBLICATION walflow FOR TABLE a.t, b.t, c.x")
    shelf = PositionedShelf()
    settings = settings_for(database, tmp_path, mapping__template="lake.{table}")
    with (
        pytest.raises(MappingConflict, match=r"a\.t and b\.t .* lake\.t") as refused,
        running(settings, spark, destination=shelf),
    ):
        pytest.fail("it started")
    assert "mapping.template" in refused.value.hint
    assert shelf.tables == {}
    # Nothing is left behind, and the next start is the first.
    assert not settings.log_folder.exists()
    assert database.execute("SELECT slot_name FROM pg_replication_slots") == []
    settings = settings_for(database, tmp_path)
    with running(settings, spark, destination=shelf):
        assert_at(shelf, database, a__t="a.t", b__t="b.t")
    # A template that would put two that are followed on one name.
    settings = settings_for(database, tmp_path, mapping__template="lake.{table}")
    with (
        pytest.raises(MappingConflict, match=r"a\.t and b\.t .* lake\.t"),
        running(settings, spark, destination=shelf),
    ):
        pytest.fail("it started")


def test_a_table_that_joins_on_a_taken_name_waits_for_it(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    make(database, "a.t", "b.t", "c.t", "a.steady")
    database.execute("CREATE PUBLICATION walflow FOR TABLE a.t, a.steady")
    settings = settings_for(database, tmp_path, mapping__template="lake.{table}")
    shelf = PositionedShelf()
    with running(settings, spark, destination=shelf) as pipeline:
        with writing(database, "a.t", "b.t", "a.steady"):
            database.execute("ALTER PUBLICATION walflow ADD TABLE b.t, c.t")
            for table in ("b.t", "c.t"):
                state = wait_phase(pipeline, table, Phase.ERRORED)
                assert state.error is not None
                assert state.error.code == "MappingConflict"
                assert f"a.t and {table}" in state.error.reason
                assert "mapping.tables" in state.error.hint
            # Neither an operator nor a new copy of the other lets it in.
            pipeline.retry(TableName("b", "t"))
            pipeline.resync(TableName("b", "t"))
            pipeline.rollback(TableName("b", "t"))
            database.execute("ALTER TABLE a.t ADD COLUMN w int DEFAULT 7")
            wait_for(lambda: shelf.copies[TableName("lake", "t")] == 2, WAIT, "copied again")
            wait_phase(pipeline, "a.t", Phase.READY)
            assert wait_phase(pipeline, "b.t", Phase.ERRORED).error is not None
        assert_at(shelf, database, lake__t="a.t", lake__steady="a.steady")
    # It is set aside over a restart, too, as is one that came meanwhile, and the others go on.
    make(database, "d.t")
    database.execute("ALTER PUBLICATION walflow ADD TABLE d.t")
    with running(settings, spark, destination=shelf) as pipeline:
        with writing(database, "a.t", "b.t", "a.steady"):
            wait_phase(pipeline, "b.t", Phase.ERRORED)
            came = wait_phase(pipeline, "d.t", Phase.ERRORED)
            assert came.error is not None
            assert came.error.code == "MappingConflict"
            database.execute("ALTER PUBLICATION walflow DROP TABLE a.t")
            wait_for(lambda: find(pipeline, "a.t") is None, WAIT, "a.t has left", pipeline.check)
            # One of the two that wait.
            wait_phase(pipeline, "b.t", Phase.READY)
            wait_phase(pipeline, "c.t", Phase.ERRORED)
        assert_at(shelf, database, lake__t="b.t", lake__steady="a.steady")
    assert shelf.copies == {TableName("lake", "t"): 3, TableName("lake", "steady"): 1}
