"""Hard batches, as Spark writes them and as they are written in columns: both must end equal, value
by value, and equal the row-by-row reference. What rows tell of their changes counts, too."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.destinations.conftest import OWNER
from tests.destinations.hard_stories import KEYED, KEYLESS, change, insert
from tests.destinations.pairs import FOREVER, LAST_DAY
from tests.destinations.reference import (
    Row,
    Source,
    assert_same,
    copy_of,
    make_schema,
    rows_of,
)
from walflow.config.lake import EngineChoice
from walflow.destinations.base import FormerChanges, TableChanges
from walflow.destinations.iceberg import IcebergFormat
from walflow.destinations.lake import LakeDestination
from walflow.destinations.lake.sessions import lake_session
from walflow.evolution import Evolution
from walflow.model import Column, PgType, Span, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class BothWays:
    """One source, and a lake for each of the ways."""

    def __init__(self, spark: SparkSession, folder: Path, schema: TableSchema) -> None:
        (folder / "log").mkdir()
        self.spark = spark
        self.source = Source(schema, folder / "log")
        engines: tuple[EngineChoice, ...] = ("columnar", "spark")
        self.ways = []
        for engine in engines:
            format = IcebergFormat(str(folder / engine))
            destination = LakeDestination(spark, format, OWNER, engine=engine)
            self.ways.append((format, destination, lake_session(spark, format.session_conf)))

    def copy(self, *, overflow: bool = False) -> None:
        self.source.events(self.spark)
        for _, destination, _ in self.ways:
            file = self.source.copy_file(overflow)
            destination.copy(copy_of(self.source.schema, [file], self.source.position, overflow))

    def batch(self, changes: TableChanges) -> None:
        for _, destination, _ in self.ways:
            destination.apply(changes)
        told = []
        for format, _, session in self.ways:
            table = session.table(format.identifier(self.source.schema.name))
            assert_same(rows_of(table, self.source.schema), self.source.rows)
            names = ["_CHANGE_TYPE", "_LSN", *self.source.schema.column_names]
            rows = table.select(*(f"`{name}`" for name in names)).toArrow().to_pylist()
            told.append(sorted(map(_comparable, rows)))
        assert told[0] == told[1]

    def shutdown(self) -> None:
        for _, destination, _ in self.ways:
            destination.shutdown()


def _comparable(row: Row) -> str:
    """(Maps have no order.)"""
    return repr({n: sorted(map(repr, v)) if n == "m" and v else v for n, v in row.items()})


@pytest.fixture
def both_ways(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[TableSchema], BothWays]]:
    made: list[BothWays] = []

    def make(schema: TableSchema) -> BothWays:
        made.append(BothWays(spark, tmp_path, schema))
        return made[-1]

    yield make
    for both in made:
        both.shutdown()


@pytest.mark.parametrize("schema", [KEYED, KEYLESS], ids=["keyed", "keyless"])
def test_hard_batches_at_random(
    both_ways: Callable[[TableSchema], BothWays], schema: TableSchema
) -> None:
    both, chance = both_ways(schema), random.Random(3)
    with both.source.transaction():
        for _ in range(8):
            insert(both.source, chance)
    both.copy(overflow=True)
    for number in range(4):
        for _ in range(chance.randrange(3, 9)):
            with both.source.transaction():
                for _ in range(chance.randrange(1, 6)):
                    change(both.source, chance)
        if number == 2:
            with both.source.transaction():
                both.source.truncate()
                insert(both.source, chance)
                insert(both.source, chance)
        both.batch(both.source.events(both.spark, chance.randrange(1, 4)))


def test_the_copy_that_came_first_goes_first(
    both_ways: Callable[[TableSchema], BothWays],
) -> None:
    both = both_ways(make_schema({"a": "string"}, []))
    with both.source.transaction():
        both.source.insert(a="x")
    both.copy()
    for _ in range(2):
        with both.source.transaction():
            both.source.insert(a="y")
            both.source.update(both.source.rows[-1], a="x")
            both.source.insert(a="x")
        both.batch(both.source.events(both.spark))
    with both.source.transaction():
        for _ in range(3):
            both.source.delete(both.source.rows[0])
        both.source.insert(a="x")
    both.batch(both.source.events(both.spark))


@pytest.mark.parametrize("key", [("id",), ()], ids=["keyed", "keyless"])
def test_changes_of_former_schemas(
    both_ways: Callable[[TableSchema], BothWays], key: tuple[str, ...]
) -> None:
    def schema(columns: Mapping[str, str]) -> TableSchema:
        found = []
        for name, said in columns.items():
            number, _, kind = said.partition(" ")
            column_type = PgType("any", 0, 0)
            found.append(Column(name, column_type, kind, name not in key, int(number)))
        return TableSchema(1, make_schema({}, []).name, tuple(found), key)

    first = schema({"id": "1 int", "a": "2 string", "at": "3 timestamp", "gone": "4 date"})
    second = schema({"id": "1 bigint", "at": "2 string", "a": "3 timestamp", "v": "5 string"})
    both = both_ways(first)
    source = both.source
    with source.transaction():
        for number in range(4):
            source.insert(id=number, a=f"a{number}", at=FOREVER if number % 2 else LAST_DAY)
    both.copy(overflow=True)
    with source.transaction():
        source.update(source.find(id=1), ["a"] if key else (), gone=datetime.date(2026, 1, 1))
        source.update(source.find(id=2), ["a"] if key else (), id=20, at=FOREVER)
        source.insert(id=5, a="a5", at=FOREVER, gone=datetime.date(2026, 1, 2))
        source.delete(source.find(id=0))
    before = source.events(both.spark)
    missing = {"v": "missing"}
    evolution: Evolution = source.change_schema(second, missing)
    for _, destination, _ in both.ways:
        destination.evolve(evolution)
    with source.transaction():
        source.update(source.find(id=20), ["at"] if key else (), v="since")
        source.insert(id=1 << 40, at="text", a=FOREVER)
    after = source.events(both.spark)
    together = replace(
        after,
        stats=before.stats + after.stats,
        former=(FormerChanges(before.files, evolution),),
        span=Span(before.span.after, after.span.upto),
    )
    both.batch(together)
