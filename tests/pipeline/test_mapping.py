"""What the destination calls the source's tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from tests.conftest import Database
from tests.pipeline.capturing import wait_for
from tests.pipeline.running import WAIT, running, settings_for
from tests.pipeline.shelf import PositionedShelf
from walflow.config import MappingSettings
from walflow.errors import MappingConflict
from walflow.mapping import NamedTables, TableMapping, check_distinct
from walflow.model import TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def mapped(source: TableName, **settings: object) -> TableName:
    return TableMapping(MappingSettings.model_validate(settings)).destination(source)


def test_schema_and_table_stay_apart_by_default() -> None:
    assert mapped(TableName("a", "t")) == TableName("a", "t")
    assert mapped(TableName("a.b", "c")) != mapped(TableName("a", "b.c"))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("lake.{schema}__{table}", TableName("lake", "sales__orders")),
        ("{schema}_raw.{table}", TableName("sales_raw", "orders")),
        ("one.{table}", TableName("one", "orders")),
    ],
)
def test_templates(template: str, expected: TableName) -> None:
    assert mapped(TableName("sales", "orders"), template=template) == expected


def test_explicit_names_win() -> None:
    names = {"sales.orders": "mart.o"}
    assert mapped(TableName("sales", "orders"), tables=names) == TableName("mart", "o")
    assert mapped(TableName("sales", "other"), tables=names) == TableName("sales", "other")


def test_names_with_dots_can_be_named() -> None:
    assert mapped(TableName("a", "b.c"), tables={"a.b.c": "mart.o"}) == TableName("mart", "o")


def warned_of(named: NamedTables, *published: TableName) -> dict[str, str]:
    with capture_logs() as logs:
        named.warn_of_unused(published)
    return {entry["table"]: entry["hint"] for entry in logs if entry["log_level"] == "warning"}


def test_explicit_names_of_no_published_table_are_warned_of() -> None:
    named = NamedTables("mapping.tables", ["sales.orders", "Sales.Items", "qqq.zzz"])
    orders, items = TableName("sales", "orders"), TableName("sales", "items")
    warned = warned_of(named, orders, items)
    assert warned.keys() == {"Sales.Items", "qqq.zzz"}
    assert warned["Sales.Items"].startswith("Did you mean sales.items? ")
    assert warned["qqq.zzz"].startswith("The names are those of: SELECT ")
    # Once, until it is published and no longer is.
    assert not warned_of(named, orders, items)
    assert warned_of(named, items).keys() == {"sales.orders"}
    assert not warned_of(named, orders, items)
    assert warned_of(named, items).keys() == {"sales.orders"}


@pytest.mark.spark
def test_a_pipeline_warns_at_its_start_and_when_the_publication_changes(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "CREATE PUBLICATION walflow FOR TABLE a, b",
    )
    names = {"public.a": "mart.a", "public.bb": "mart.b"}
    modes = {"public.b": {"mode": "history"}, "public.aa": {"mode": "history"}}
    settings = settings_for(database, tmp_path, mapping__tables=names, apply__tables=modes)
    with capture_logs() as logs:

        def warned(setting: str = "mapping.tables") -> list[str]:
            told = f"{setting} names a table that is not followed"
            return [entry["table"] for entry in logs if entry["event"] == told]

        with running(settings, spark, destination=PositionedShelf()):
            assert warned() == ["public.bb"]
            assert warned("apply.tables") == ["public.aa"]
            database.execute("ALTER PUBLICATION walflow DROP TABLE a")
            wait_for(lambda: warned() == ["public.bb", "public.a"], WAIT)


def test_two_sources_on_one_name_are_refused_with_both_names() -> None:
    one, other = TableName("a", "t"), TableName("b", "t")
    check_distinct({one: one, other: other})
    with pytest.raises(MappingConflict, match=r"a\.t and b\.t .* lake\.t"):
        check_distinct({one: TableName("lake", "t"), other: TableName("lake", "t")})
