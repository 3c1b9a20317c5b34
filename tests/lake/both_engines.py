"""A destination that is two lakes: what one engine writes to one, the other writes to the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.lake.equality import Lake, format_of
from walflow.config import Settings
from walflow.config.lake import EngineChoice, TablePlan
from walflow.destinations.base import ConsistentCut, Destination, TableChanges, TableCopy, Written
from walflow.destinations.lake import LakeDestination, Owner
from walflow.destinations.lake.table_schema import EXACT
from walflow.evolution import Evolution
from walflow.model import Lsn, TableName, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BothEngines", "assert_engines_agree", "spark_settings"]


def spark_settings(settings: Settings) -> Settings:
    """Of the lake that only Spark writes."""
    uri = f"{settings.destination.uri}-by-spark"
    return settings.model_copy(
        update={"destination": settings.destination.model_copy(update={"uri": uri})}
    )


class BothEngines(Destination):
    """The first lake is the one of the settings."""

    name = "both"
    capabilities = replace(LakeDestination.capabilities, checks=False)

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.lakes = (
            _lake(spark, settings, "auto"),
            _lake(spark, spark_settings(settings), "spark"),
        )
        self.written: list[Written] = []

    def shutdown(self) -> None:
        for lake in self.lakes:
            lake.shutdown()

    def copy(self, copy: TableCopy) -> None:
        for lake in self.lakes:
            lake.copy(copy)

    def applied(self, table: TableSchema) -> Lsn | None:
        first, second = (lake.applied(table) for lake in self.lakes)
        return None if first is None or second is None else min(first, second)

    def apply(self, changes: TableChanges) -> Written | None:
        first, _ = (lake.apply(changes) for lake in self.lakes)
        if first is not None:
            self.written.append(first)
        return first

    def evolve(self, evolution: Evolution) -> None:
        for lake in self.lakes:
            lake.evolve(evolution)

    def maintenance_due(self, table: TableSchema) -> bool:
        first, second = self.lakes
        return first.maintenance_due(table) or second.maintenance_due(table)

    def maintain(self, table: TableSchema) -> None:
        for lake in self.lakes:
            lake.maintain(table)

    def rename(self, table: TableSchema, name: TableName) -> bool:
        first, second = (lake.rename(table, name) for lake in self.lakes)
        return first and second

    def drop(self, table: TableSchema) -> None:
        for lake in self.lakes:
            lake.drop(table)

    def own_tables(self) -> Iterable[TableName]:
        return self.lakes[0].own_tables()

    def keep_cut(self, cut: ConsistentCut) -> bool:
        return self.lakes[0].keep_cut(cut)


def _lake(spark: SparkSession, settings: Settings, engine: EngineChoice) -> LakeDestination:
    def plan(name: TableName) -> TablePlan:
        return settings.apply.plan_of(str(name))

    owner = Owner(settings.name, "the source")
    return LakeDestination(spark, format_of(settings), owner, plan, engine=engine)


def assert_engines_agree(lake: Lake, settings: Settings, tables: Iterable[str]) -> None:
    """Value by value, what walflow adds included; but a copy's time is that of each lake's own."""
    other = Lake(lake.session, spark_settings(settings))
    for table in tables:
        first, second = (_rows(one, table) for one in (lake, other))
        assert first == second, f"{table}: {first - second}, by Spark alone {second - first}"


def _rows(lake: Lake, table: str) -> Counter[str]:
    frame = lake.session.sql(lake.query(table))
    values = []
    for field in sorted(frame.schema.fields, key=lambda field: field.name):
        name = f"`{field.name.replace('`', '``')}`"
        if field.name == "_TIMESTAMP":
            name = f"CASE WHEN _CHANGE_TYPE <> 'copy' THEN {name} END"
        elif field.dataType.typeName() == "map":
            # Maps have no order.
            name = f"array_sort(map_entries({name}))"
            if field.name == EXACT:
                # A table may have the column and no text in it.
                name = f"coalesce({name}, array())"
        values.append(f"to_json(array({name}))")
    if EXACT not in frame.columns:
        values.insert(0, "'[[]]'")
    query = f"SELECT concat_ws(' ', {', '.join(values)}) FROM ({lake.query(table)})"
    return Counter(row[0] for row in lake.session.sql(query).collect())
