"""``walflow view``: SQL to paste where the catalog keeps no views."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.commands import Room
from tests.destinations.conftest import OWNER
from tests.destinations.reference import (
    Source,
    assert_same,
    make_schema,
    reading_session,
    rows_of,
)
from walflow.destinations.iceberg import IcebergFormat
from walflow.destinations.lake import LakeDestination, TablePlan
from walflow.errors import UnknownTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def arguments(room: Room, table: str) -> list[str]:
    return [
        *("view", table, "--from", "postgresql://nobody@127.0.0.1:1/nothing"),
        *("--to", f"iceberg://{room.path / 'lake'}", "--log", str(room.path / "log")),
        *("--set", "mapping.template=lake_{schema}.{table}"),
    ]


@pytest.mark.spark
def test_what_it_prints_shows_the_table(spark: SparkSession, room: Room) -> None:
    schema = make_schema({"id": "bigint", "order": "string"}, ["id"], "Or`ders", "lake_shop")
    lake = room.path / "lake"
    format = IcebergFormat(str(lake))
    destination = LakeDestination(spark, format, OWNER, lambda _: TablePlan(freshness="view"))
    source = Source(schema, room.path)
    with source.transaction():
        source.insert(id=1, order="first")
        source.insert(id=2, order="second")
    source.events(spark)
    destination.adopt_files(schema, [source.copy_file()], source.position, overflow=False)
    with source.transaction():
        source.update(source.find(id=1), order="again")
        source.delete(source.find(id=2))
        source.insert(id=3, order=None)
    destination.write_events(source.events(spark))
    destination.shutdown()

    ran = room.run(*arguments(room, 'shop."Or`ders"'))
    assert ran.returncode == 0, ran.stderr
    # That it takes a while, and nothing else.
    assert [line.partition(" to ")[0] for line in ran.stderr.splitlines()] == ["Starting Spark"]
    statement, semicolon, rest = ran.stdout.rpartition(";")
    assert (semicolon, rest) == (";", "\n")
    session = reading_session(spark, lake)
    session.sql(statement)
    assert_same(rows_of(session.table("`Or``ders`"), schema), source.rows)


def test_what_is_no_name(room: Room) -> None:
    ran = room.run(*arguments(room, 'shop."'))
    assert ran.returncode == UnknownTable.exit_code
    assert "is not the name of a table" in ran.stderr
