"""Tables in catalogs of several kinds, against the row-by-row reference."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

from tests.destinations.conftest import OWNER, Metastore
from tests.destinations.reference import (
    Inexact,
    Row,
    Source,
    assert_same,
    copy_of,
    make_schema,
    reading_session,
    rows_of,
)
from walflow.destinations.base import ConsistentCut, CutTable, TableChanges
from walflow.destinations.iceberg import IcebergFormat, table_identifier
from walflow.destinations.lake import LakeDestination
from walflow.errors import DestinationError
from walflow.evolution import evolution
from walflow.model import TableName, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

KEYED = make_schema({"id": "bigint", "a": "string", "b": "string", "n": "int"}, ["id"])
NAME = KEYED.name


class Lake:
    """A source, its table in a catalog, and the way from one to the other."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        options: Mapping[str, str] | None = None,
        schema: TableSchema = KEYED,
    ) -> None:
        (folder / "log").mkdir(exist_ok=True)
        self.spark = spark
        self.source = Source(schema, folder / "log")
        self.warehouse = folder / "warehouse"
        self.options = options or {}
        self.session = reading_session(spark, self.warehouse, options)
        self.start()

    def start(self) -> None:
        """As a new process does."""
        format = IcebergFormat(str(self.warehouse), self.options)
        self.destination = LakeDestination(self.spark, format, OWNER)

    def fill(self, rows: int = 3) -> None:
        with self.source.transaction():
            for n in range(1, rows + 1):
                self.source.insert(id=n, a=f"a{n}", b=f"b{n}", n=n)
        self.copy()

    def copy(self, overflow: bool = False) -> None:
        self.source.events(self.spark)
        files = [self.source.copy_file(overflow)]
        self.destination.copy(copy_of(self.source.schema, files, self.source.position, overflow))

    def batch(self, change: Callable[[Source], object], pieces: int = 1) -> TableChanges:
        with self.source.transaction():
            change(self.source)
        events = self.source.events(self.spark, pieces)
        self.destination.apply(events)
        self.check()
        return events

    def check(self) -> None:
        assert_same(self.rows(), self.source.rows)
        assert self.destination.applied(self.source.schema) == self.source.position

    def rows(self) -> list[Row]:
        name = self.source.schema.name
        return rows_of(self.session.table(table_identifier(name)), self.source.schema)

    def snapshots(self, name: TableName) -> int:
        return self.session.table(f"{table_identifier(name)}.snapshots").count()


MakeLake = Callable[..., Lake]


@pytest.fixture
def make_kept(spark: SparkSession, metastore: Metastore) -> Iterator[MakeLake]:
    """For tables in Hive's catalog, which are gone after the test."""
    made = []

    def make(schema: TableSchema = KEYED) -> Lake:
        made.append(Lake(spark, metastore.folder, metastore.options, schema))
        return made[-1]

    yield make
    for lake in made:
        lake.destination.drop(lake.source.schema)
        assert not list(lake.warehouse.rglob("*.parquet"))


@pytest.fixture
def kept(make_kept: MakeLake) -> Lake:
    """Three rows, copied: ids 1, 2, 3; in Hive's catalog."""
    lake = make_kept()
    lake.fill()
    return lake


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """Three rows, copied: ids 1, 2, 3; in folders."""
    lake = Lake(spark, tmp_path)
    lake.fill()
    return lake


def insert_update_delete(source: Source) -> None:
    source.insert(id=4, a=None, b="b4", n=4)
    source.update(source.find(id=1), a=None, n=11)
    source.delete(source.find(id=2))


def all_on_one_key(source: Source) -> None:
    source.insert(id=2, a="x", b="x", n=0)
    source.update(source.find(id=2), n=1)
    source.delete(source.find(id=2))
    source.delete(source.find(id=1))
    source.insert(id=1, a="again", b=None, n=None)


def unsent(source: Source) -> None:
    """Values that are in the base, in the changes, and in the batch."""
    source.update(source.find(id=3), unsent=["a", "b"], n=33)
    source.update(source.find(id=4), unsent=["b"], a="a44")
    source.insert(id=5, a="a5", b=None, n=4)
    source.update(source.find(id=5), unsent=["a", "b"], n=44)


def keys_change(source: Source) -> None:
    moved = source.update(source.find(id=3), unsent=["a", "b"], id=30)
    source.update(moved, unsent=["b"], id=31, a="new")
    source.update(source.find(id=4), unsent=["a", "b"], id=3)
    source.update(source.find(id=5), id=4, n=None)


def truncate(source: Source) -> None:
    source.insert(id=8, a="lost", b=None, n=None)
    source.truncate()
    source.insert(id=1, a="kept", b=None, n=None)
    source.insert(id=9, a="moved", b="b", n=None)
    source.update(source.find(id=9), unsent=["b"], id=10)


def nothing(source: Source) -> None:
    """A transaction that other tables are concerned with."""


BATCHES = (insert_update_delete, all_on_one_key, unsent, nothing, keys_change, truncate)


def test_every_kind_of_batch_is_one_commit(lake: Lake, way: str) -> None:
    for number, change in enumerate(BATCHES):
        before = lake.snapshots(NAME)
        events = lake.batch(change, pieces=2)
        lake.destination.apply(events)
        assert lake.snapshots(NAME) == before + 1, change.__name__
        if number % 2:
            # A process that knows nothing yet.
            lake.start()
            lake.destination.apply(events)
            lake.check()


def test_tables_in_hive(kept: Lake) -> None:
    for change in BATCHES:
        kept.batch(change)
    assert kept.destination.own_tables() == [NAME]
    other = replace(KEYED, name=TableName("public", "other"))
    assert kept.destination.rename(KEYED, other.name)
    assert kept.destination.applied(other) == kept.source.position
    assert kept.destination.rename(other, NAME)
    kept.check()
    kept.destination.drop(KEYED)
    assert kept.destination.own_tables() == []
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        kept.rows()
    assert kept.destination.applied(KEYED) is None


@pytest.mark.long
def test_batches_at_random_equal_the_source(lake: Lake) -> None:
    random_number = random.Random(20261115)
    source = lake.source
    for _ in range(6):
        for _ in range(random_number.randint(1, 4)):
            with source.transaction():
                for _ in range(random_number.randint(1, 12)):
                    do_something(source, random_number)
        lake.batch(nothing)


def do_something(source: Source, number: random.Random) -> None:
    free = next(n for n in iter(lambda: number.randint(1, 10_000), 0) if not has(source, n))
    if not source.rows or number.random() < 0.35:
        source.insert(id=free, a=f"a{free}", b=f"b{free}", n=number.randint(0, 9))
        return
    row = number.choice(source.rows)
    kind = number.random()
    if kind < 0.25:
        source.delete(row)
    elif kind < 0.5:
        source.update(row, unsent=["b"], id=free, a="moved")
    elif kind < 0.75:
        source.update(row, unsent=["a", "b"], n=number.randint(0, 9))
    elif kind < 0.97:
        source.update(row, a=str(number.random()), b=None)
    else:
        source.truncate()


def has(source: Source, id: int) -> bool:
    return any(row["id"] == id for row in source.rows)


NAN = Inexact(None, "NaN")


def test_overflow_texts(make_kept: MakeLake) -> None:
    schema = make_schema({"id": "bigint", "n": "decimal(12,2)", "body": "string"}, ["id"])
    lake = make_kept(schema)
    with lake.source.transaction():
        lake.source.insert(id=1, n=Decimal("1.00"), body="b")
        lake.source.insert(id=2, n=Decimal("1.00"), body="b")
    lake.copy()
    lake.batch(lambda source: source.update(source.find(id=1), n=NAN))
    lake.batch(lambda source: source.update(source.find(id=1), unsent=["n"], body="c"))
    lake.batch(lambda source: source.update(source.find(id=1), unsent=["n", "body"], id=3))


def test_copied_again_in_another_form(kept: Lake) -> None:
    kept.batch(insert_update_delete)
    kept.copy()
    kept.check()
    kept.batch(all_on_one_key)
    other = make_schema({"k": "string", "id": "bigint"}, ["k"])
    kept.source = Source(other, kept.warehouse.parent / "log")
    with kept.source.transaction():
        kept.source.insert(k="one", id=1)
    kept.copy()
    kept.check()
    kept.batch(lambda source: source.update(source.find(k="one"), k="two"))


def test_a_key_that_is_equal_and_not_the_same(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, schema=make_schema({"f": "double", "n": "int"}, ["f"]))
    with lake.source.transaction():
        lake.source.insert(f=-0.0, n=1)
    lake.copy()
    lake.batch(lambda source: source.update(source.rows[0], f=0.0))


def test_a_view_of_others_is_left_alone(make_kept: MakeLake) -> None:
    lake = make_kept()
    view = table_identifier(NAME)
    lake.session.sql("CREATE NAMESPACE IF NOT EXISTS lake.public")
    lake.session.sql(f"CREATE VIEW {view} AS SELECT 1 AS id")
    with pytest.raises(DestinationError, match=r"public`\.`t`"):
        lake.fill()
    assert lake.session.table(view).collect() == [(1,)]
    lake.session.sql(f"DROP VIEW {view}")


def shown_in_cut(lake: Lake) -> list[list[str]]:
    """The columns of each row in a cut that is made now."""
    at = lake.source.position
    lake.destination.keep_cut(ConsistentCut(at, at, None, (CutTable(NAME, NAME, at),)))
    found = lake.destination.as_of()
    assert found is not None
    (query,) = found.queries
    rows = lake.session.sql(query or "").collect()
    return [[name for name in row.asDict() if not name.startswith("_")] for row in rows]


def test_its_schema_changes(kept: Lake) -> None:
    kept.batch(insert_update_delete)
    columns = {c.name: c for c in KEYED.columns}
    before = replace(KEYED, filenodes=frozenset({1}))
    after = replace(
        before,
        columns=(
            columns["id"],
            replace(columns["a"], name="b"),
            replace(columns["b"], name="a"),
            replace(columns["n"], name="extra", attnum=9),
        ),
    )
    way = evolution(before, after, trust_rewrites=False)
    kept.destination.evolve(way)
    kept.start()
    assert kept.destination.applied(after) == kept.source.position
    kept.destination.evolve(way)
    source = Source(after, kept.warehouse.parent / "log")
    source._lsn, source._cut = kept.source._lsn, kept.source._cut
    source.rows = [
        {"id": row["id"], "b": row["a"], "a": row["b"], "extra": None} for row in kept.source.rows
    ]
    kept.source = source
    kept.check()
    kept.batch(lambda s: s.update(s.find(id=3), a="swapped", extra=1))
