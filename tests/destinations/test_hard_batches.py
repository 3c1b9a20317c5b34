"""Hard batches, as they are written in columns, as Spark merges what Arrow has netted, and as Spark
does all of it: each must end equal, value by value, and equal the row-by-row reference. What rows
tell of their changes counts, too."""

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
from walflow.destinations.lake.modes import mirror
from walflow.destinations.lake.sessions import lake_session
from walflow.evolution import Evolution
from walflow.model import Column, PgType, Span, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


WAYS: Mapping[str, EngineChoice] = {"columnar": "columnar", "small": "spark", "spark": "spark"}


class EachWay:
    """One source, and a lake for each of the ways."""

    def __init__(self, spark: SparkSession, folder: Path, schema: TableSchema) -> None:
        (folder / "log").mkdir()
        self.spark = spark
        self.source = Source(schema, folder / "log")
        self.ways = []
        for way, engine in WAYS.items():
            format = IcebergFormat(str(folder / way))
            destination = LakeDestination(spark, format, OWNER, engine=engine)
            session = lake_session(spark, format.session_conf)
            self.ways.append((way, format, destination, session))

    def copy(self, *, overflow: bool = False) -> None:
        self.source.events(self.spark)
        for _, _, destination, _ in self.ways:
            file = self.source.copy_file(overflow)
            destination.copy(copy_of(self.source.schema, [file], self.source.position, overflow))

    def batch(self, changes: TableChanges) -> None:
        for way, _, destination, _ in self.ways:
            with pytest.MonkeyPatch.context() as patch:
                if way == "spark":
                    patch.setattr(mirror, "is_small", lambda _: False)
                elif way == "small":
                    # So that nothing is left to Spark in secret.
                    patch.setattr(mirror, "merge_keyless", None)
                    patch.setattr(mirror, "net_changes", None)
                destination.apply(changes)
        told = []
        for _, format, _, session in self.ways:
            table = session.table(format.identifier(self.source.schema.name))
            assert_same(rows_of(table, self.source.schema), self.source.rows)
            names = ["_CHANGE_TYPE", "_LSN", *self.source.schema.column_names]
            rows = table.select(*(f"`{name}`" for name in names)).toArrow().to_pylist()
            told.append(sorted(map(_comparable, rows)))
        assert told[0] == told[1] == told[2]

    def shutdown(self) -> None:
        for _, _, destination, _ in self.ways:
            destination.shutdown()


def _comparable(row: Row) -> str:
    """(Maps have no order.)"""
    return repr({n: sorted(map(repr, v)) if n == "m" and v else v for n, v in row.items()})


@pytest.fixture
def each_way(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[TableSchema], EachWay]]:
    made: list[EachWay] = []

    def make(schema: TableSchema) -> EachWay:
        made.append(EachWay(spark, tmp_path, schema))
        return made[-1]

    yield make
    for ways in made:
        ways.shutdown()


@pytest.mark.parametrize("schema", [KEYED, KEYLESS], ids=["keyed", "keyless"])
def test_hard_batches_at_random(
    each_way: Callable[[TableSchema], EachWay], schema: TableSchema
) -> None:
    ways, chance = each_way(schema), random.Random(3)
    with ways.source.transaction():
        for _ in range(8):
            insert(ways.source, chance)
    ways.copy(overflow=True)
    for number in range(4):
        for _ in range(chance.randrange(3, 9)):
            with ways.source.transaction():
                for _ in range(chance.randrange(1, 6)):
                    change(ways.source, chance)
        if number == 2:
            with ways.source.transaction():
                ways.source.truncate()
                insert(ways.source, chance)
                insert(ways.source, chance)
                ways.source.delete(ways.source.rows[0])
        ways.batch(ways.source.events(ways.spark, chance.randrange(1, 4)))


def test_the_copy_that_came_first_goes_first(
    each_way: Callable[[TableSchema], EachWay],
) -> None:
    ways = each_way(make_schema({"a": "string"}, []))
    with ways.source.transaction():
        ways.source.insert(a="x")
    ways.copy()
    for _ in range(2):
        with ways.source.transaction():
            ways.source.insert(a="y")
            ways.source.update(ways.source.rows[-1], a="x")
            ways.source.insert(a="x")
        ways.batch(ways.source.events(ways.spark))
    with ways.source.transaction():
        for _ in range(3):
            ways.source.delete(ways.source.rows[0])
        ways.source.insert(a="x")
    ways.batch(ways.source.events(ways.spark))


@pytest.mark.parametrize("key", [("id",), ()], ids=["keyed", "keyless"])
def test_changes_of_former_schemas(
    each_way: Callable[[TableSchema], EachWay], key: tuple[str, ...]
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
    ways = each_way(first)
    source = ways.source
    with source.transaction():
        for number in range(4):
            source.insert(id=number, a=f"a{number}", at=FOREVER if number % 2 else LAST_DAY)
    ways.copy(overflow=True)
    with source.transaction():
        source.update(source.find(id=1), ["a"] if key else (), gone=datetime.date(2026, 1, 1))
        source.update(source.find(id=2), ["a"] if key else (), id=20, at=FOREVER)
        source.insert(id=5, a="a5", at=FOREVER, gone=datetime.date(2026, 1, 2))
        source.delete(source.find(id=0))
    before = source.events(ways.spark)
    missing = {"v": "missing"}
    evolution: Evolution = source.change_schema(second, missing)
    for _, _, destination, _ in ways.ways:
        destination.evolve(evolution)
    with source.transaction():
        source.update(source.find(id=20), ["at"] if key else (), v="since")
        source.insert(id=1 << 40, at="text", a=FOREVER)
    after = source.events(ways.spark)
    together = replace(
        after,
        stats=before.stats + after.stats,
        former=(FormerChanges(before.files, evolution),),
        span=Span(before.span.after, after.span.upto),
    )
    ways.batch(together)
