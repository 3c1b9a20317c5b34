"""Rounds of changes on real Delta tables, against the row-by-row reference."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.destinations.conftest import OWNER
from tests.destinations.reference import (
    Inexact,
    Row,
    Source,
    _as_reference,
    assert_same,
    make_schema,
)
from tests.destinations.test_iceberg_rounds import _random_change, _together
from walflow.destinations.base import Events
from walflow.destinations.delta import DeltaFormat, table_folder, table_identifier
from walflow.destinations.delta.commits import readable_commits
from walflow.destinations.lake import EXACT, LakeDestination, Owner
from walflow.destinations.lake.sessions import lake_session
from walflow.errors import DestinationError
from walflow.model import TableSchema
from walflow.spark.net import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

KEYED = make_schema({"id": "bigint", "a": "string", "b": "string", "n": "int"}, ["id"])


def delta_lake(spark: SparkSession, warehouse: Path, owner: Owner = OWNER) -> LakeDestination:
    return LakeDestination(spark, DeltaFormat(str(warehouse)), owner)


def delta_rows(session: SparkSession, warehouse: Path, schema: TableSchema) -> list[Row]:
    """The table's rows in the reference's form, without what only the lake has."""
    table = session.table(table_identifier(warehouse, schema.name))
    names = [*schema.column_names, *({EXACT} & set(table.columns))]
    rows = table.select(*map(quoted, names)).toArrow().to_pylist(maps_as_pydicts=None)
    return [_as_reference(row) for row in rows]


class Pair:
    """A source, its table, and the way from one to the other."""

    def __init__(self, spark: SparkSession, folder: Path, schema: TableSchema) -> None:
        (folder / "log").mkdir()
        self.spark = spark
        self.source = Source(schema, folder / "log")
        self.warehouse = folder / "ware house%20"
        self.format = DeltaFormat(str(self.warehouse))
        self.destination = delta_lake(spark, self.warehouse)
        self.session = lake_session(spark, self.format.session_conf)

    def copy(self, *, exact: bool = False) -> None:
        """Start from the source's rows."""
        self.source.events(self.spark)
        files = [self.source.copy_file(exact)]
        self.destination.adopt_files(self.source.schema, files, self.source.position, exact)

    def round(self, pieces: int = 1) -> Events:
        """Apply what was done, and look."""
        events = self.source.events(self.spark, pieces)
        before = self.commits()
        self.destination.write_events(events)
        self.check()
        assert self.positions()[-1] == self.source.position
        assert self.positions()[before:].count(self.source.position) == 1
        return events

    def check(self) -> None:
        rows = delta_rows(self.session, self.warehouse, self.source.schema)
        assert_same(rows, self.source.rows)

    def positions(self) -> list[int | None]:
        folder = table_folder(self.warehouse, self.source.schema.name)
        return [commit.position for commit in readable_commits(folder)]

    def commits(self) -> int:
        return len(self.positions())


MakePair = Callable[[TableSchema], Pair]


@pytest.fixture
def make_pair(spark: SparkSession, tmp_path: Path) -> Iterator[MakePair]:
    made: list[Pair] = []

    def make(schema: TableSchema) -> Pair:
        made.append(Pair(spark, tmp_path, schema))
        return made[-1]

    yield make
    for pair in made:
        pair.destination.shutdown()


@pytest.fixture
def pair(make_pair: MakePair) -> Pair:
    """Three rows, copied: ids 1, 2, 3."""
    pair = make_pair(KEYED)
    with pair.source.transaction():
        for number in (1, 2, 3):
            pair.source.insert(id=number, a=f"a{number}", b=f"b{number}", n=number)
    pair.copy()
    return pair


def test_rounds_of_every_kind(pair: Pair) -> None:
    source, rounds = pair.source, []
    with source.transaction():
        source.insert(id=4, a="x", b="x", n=0)
        source.update(source.find(id=4), n=1)
        source.delete(source.find(id=4))
        source.delete(source.find(id=1))
        source.insert(id=1, a="again", b=None, n=None)
        source.update(source.find(id=2), unsent=["a", "b"], n=22)
    rounds.append(pair.round())
    with source.transaction():
        # Keys that are swapped, with values that only the table has.
        one = source.update(source.find(id=1), unsent=["a", "b"], id=-1)
        source.update(source.find(id=2), unsent=["a", "b"], id=1)
        source.update(one, unsent=["a"], id=2, b="swapped")
    rounds.append(pair.round(pieces=2))
    with source.transaction():
        # It comes to nothing, and is heard of all the same.
        source.insert(id=9, a="x", b="x", n=0)
        source.delete(source.find(id=9))
    rounds.append(pair.round())
    with source.transaction():
        source.insert(id=10, a=None, b="b", n=1)
    rounds.append(pair.round())
    with source.transaction():
        source.truncate()
        source.insert(id=1, a="kept", b=None, n=None)
    rounds.append(pair.round())
    commits = pair.commits()
    again = delta_lake(pair.spark, pair.warehouse)
    assert again.applied(KEYED) == source.position
    for events in rounds:
        again.write_events(events)
        pair.destination.write_events(events)
    pair.check()
    assert pair.commits() == commits
    again.shutdown()


def test_the_changes_of_a_round_in_other_cuts(pair: Pair) -> None:
    """After a restart the same changes may come in other rounds; inserts alone are appended."""
    source, rounds = pair.source, []
    begin = source.position
    for number in range(10, 13):
        with source.transaction():
            source.insert(id=number, a=None, b="b", n=number)
        rounds.append(source.events(pair.spark))
    pair.destination.write_events(rounds[0])
    pair.destination.write_events(_together(rounds[:2], begin))
    pair.destination.write_events(_together(rounds, begin))
    pair.check()


def test_a_partial_row_without_its_base_is_an_error_and_not_null(pair: Pair) -> None:
    source = pair.source
    before = list(source.rows)
    with source.transaction():
        source.insert(id=4, a="x", b="x", n=1)
    source.events(pair.spark)
    with source.transaction():
        source.update(source.find(id=4), unsent=["a"], n=2)
    events = source.events(pair.spark)
    with pytest.raises(DestinationError) as failed:
        pair.destination.write_events(events)
    assert "lacks a row whose unchanged columns" in str(failed.value.__cause__)
    assert_same(delta_rows(pair.session, pair.warehouse, KEYED), before)


FOREVER = Inexact(datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC), "infinity")
LAST_DAY = FOREVER.near
NAN = Inexact(None, "NaN")


def test_exact_texts_and_keys_that_their_type_cannot_hold(make_pair: MakePair) -> None:
    pair = make_pair(
        make_schema({"at": "timestamp", "n": "decimal(12,2)", "v": "string"}, ["at", "n"])
    )
    source = pair.source
    zero = Decimal("0.00")
    with source.transaction():
        source.insert(at=LAST_DAY, n=zero, v="finite")
    pair.copy()
    position = source.position
    with source.transaction():
        source.insert(at=FOREVER, n=zero, v="infinite")
        source.insert(at=LAST_DAY, n=NAN, v="nan")
        source.update(source.find(v="finite"), v="finite too")
    pair.round()
    # The column for the texts came first, in a commit that says no more than was there.
    assert pair.positions() == [position, position, source.position]
    with source.transaction():
        source.delete(source.find(v="nan"))
        source.update(source.find(v="infinite"), v="infinite too")
    pair.round()


def test_random_rounds(make_pair: MakePair) -> None:
    chance = random.Random(7)
    pair = make_pair(
        make_schema(
            {"k": "int", "j": "string", "a": "string", "b": "string", "n": "int"}, ["k", "j"]
        )
    )
    source = pair.source
    with source.transaction():
        for number in range(30):
            source.insert(k=number, j="j", a=f"a{number}", b=None, n=number)
    pair.copy()
    for number in range(2):
        for _ in range(60):
            with source.transaction():
                for _ in range(chance.randint(1, 6)):
                    _random_change(source, chance, truncates=number == 1)
        pair.round(pieces=chance.randint(1, 4))
