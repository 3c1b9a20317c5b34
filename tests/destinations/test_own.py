"""Destinations of people's own, as a pipeline calls them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from walflow.destinations.base import Capabilities, TableChanges
from walflow.destinations.lake import LakeDestination
from walflow.destinations.own import adapted, capabilities_of
from walflow.model import Lsn, TableSchema
from walflow.testing.sources import Source, make_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = make_schema({"id": "int"}, ["id"])


class Basic:
    """Notes what it is called for."""

    name = "basic"

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def truncate_table(self, table: TableSchema) -> None:
        self.calls.append(("truncate", table.name.name))

    def write_table_rows(self, table: TableSchema, rows: DataFrame) -> None:
        self.calls.append(("rows", table.name.name, rows.count()))

    def write_events(self, changes: TableChanges) -> None:
        self.calls.append(("events", changes.schema.name.name, changes.stats.rows))


class Swapping(Basic):
    def applied(self, table: TableSchema) -> Lsn | None:
        return Lsn(7)

    def mark_applied(self, table: TableSchema, position: Lsn) -> None:
        self.calls.append(("mark", table.name.name, position))

    def swap_table(self, shadow: TableSchema, table: TableSchema) -> None:
        self.calls.append(("swap", shadow.name.name, table.name.name))

    def drop_table(self, table: TableSchema) -> None:
        self.calls.append(("drop", table.name.name))


def test_what_it_can_do_is_found_by_its_methods() -> None:
    assert adapted(Basic()).capabilities == capabilities_of(Basic) == Capabilities()
    both = Capabilities(keeps_position=True, drops=True)
    assert adapted(Swapping()).capabilities == capabilities_of(Swapping) == both
    # What derives from the contract says it itself.
    assert capabilities_of(LakeDestination) is LakeDestination.capabilities


def test_what_it_has_not_is_left_out() -> None:
    called = adapted(Basic())
    called.startup()
    called.break_off()
    called.shutdown()
    assert not called.maintenance_due(SCHEMA)
    assert list(called.own_tables()) == []


@pytest.mark.spark
def test_a_copy_and_changes(spark: SparkSession, tmp_path: Path) -> None:
    source = Source(SCHEMA, tmp_path)
    with source.transaction():
        source.insert(id=1)
        source.insert(id=2)
    copy, given = source.copy(spark), Basic()
    adapted(given).copy(copy)
    with source.transaction():
        source.insert(id=3)
    adapted(given).apply(source.events(spark))
    assert given.calls == [("truncate", "t"), ("rows", "t", 2), ("events", "t", 1)]
    # With a swap, readers have the former table until the copy is complete.
    swapping = Swapping()
    adapted(swapping).copy(replace(copy, position=Lsn(9)))
    adapted(swapping).drop(SCHEMA)
    shadow = "t__walflow_new"
    assert swapping.calls == [
        ("truncate", shadow),
        ("rows", shadow, 2),
        ("mark", shadow, 9),
        ("swap", shadow, "t"),
        ("drop", "t"),
        ("drop", shadow),
    ]
