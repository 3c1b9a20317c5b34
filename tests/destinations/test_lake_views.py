"""Tables whose rounds are appended and shown by a view, against the row-by-row reference."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

from tests.destinations.conftest import OWNER, Metastore
from tests.destinations.reference import (
    Inexact,
    Row,
    Source,
    assert_same,
    make_schema,
    reading_session,
    rows_of,
)
from walflow.destinations.base import ConsistentCut, Events, TableProgress
from walflow.destinations.iceberg import IcebergFormat, table_identifier
from walflow.destinations.lake import LakeDestination, TablePlan
from walflow.destinations.lake.freshness import base_of, changes_of
from walflow.errors import DestinationError, DestinationForeign, FailpointReached
from walflow.evolution import evolution
from walflow.failpoints import set_failpoints
from walflow.model import TableName, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

KEYED = make_schema({"id": "bigint", "a": "string", "b": "string", "n": "int"}, ["id"])
NAME = KEYED.name
VIEW, MERGE, AUTO = (TablePlan(freshness=f) for f in ("view", "merge", "auto"))


class Lake:
    """A source, its table in a catalog, and the way from one to the other."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        plan: TablePlan,
        options: Mapping[str, str] | None = None,
        schema: TableSchema = KEYED,
    ) -> None:
        (folder / "log").mkdir(exist_ok=True)
        self.spark = spark
        self.source = Source(schema, folder / "log")
        self.warehouse = folder / "warehouse"
        self.options = options or {}
        self.session = reading_session(spark, self.warehouse, options)
        self.start(plan)

    def start(self, plan: TablePlan) -> None:
        """As a new process does."""
        self.plan = plan
        format = IcebergFormat(str(self.warehouse), self.options)
        self.destination = LakeDestination(self.spark, format, OWNER, lambda _: plan)

    def fill(self, rows: int = 3) -> None:
        with self.source.transaction():
            for n in range(1, rows + 1):
                self.source.insert(id=n, a=f"a{n}", b=f"b{n}", n=n)
        self.copy()

    def copy(self, overflow: bool = False) -> None:
        self.source.events(self.spark)
        files = [self.source.copy_file(overflow)]
        self.destination.adopt_files(self.source.schema, files, self.source.position, overflow)

    def batch(self, change: Callable[[Source], object], pieces: int = 1) -> Events:
        with self.source.transaction():
            change(self.source)
        events = self.source.events(self.spark, pieces)
        self.destination.write_events(events)
        self.check()
        return events

    def fold(self) -> None:
        self.destination.fold(self.source.schema)

    def check(self) -> None:
        assert_same(self.rows(), self.source.rows)
        assert self.destination.applied(self.source.schema) == self.source.position

    def rows(self) -> list[Row]:
        name = self.source.schema.name
        if self.options:
            return rows_of(self.session.table(table_identifier(name)), self.source.schema)
        query = self.destination.reading_query(name)
        assert query is not None
        return rows_of(self.session.sql(query), self.source.schema)

    def snapshots(self, name: TableName) -> int:
        return self.session.table(f"{table_identifier(name)}.snapshots").count()

    def count(self, name: TableName) -> int:
        return self.session.table(table_identifier(name)).count()

    def is_viewed(self) -> bool:
        return "__changes" in (self.destination.reading_query(NAME) or "")


MakeLake = Callable[..., Lake]


@pytest.fixture
def make_kept(spark: SparkSession, metastore: Metastore) -> Iterator[MakeLake]:
    """For tables in that catalog, which are gone after the test."""
    made = []

    def make(plan: TablePlan, schema: TableSchema = KEYED) -> Lake:
        made.append(Lake(spark, metastore.folder, plan, metastore.options, schema))
        return made[-1]

    yield make
    for lake in made:
        lake.destination.drop_table(lake.source.schema)
        assert not list(lake.warehouse.rglob("*.parquet"))


@pytest.fixture
def kept(make_kept: MakeLake) -> Lake:
    """Three rows, copied: ids 1, 2, 3; in a catalog that keeps views."""
    lake = make_kept(VIEW)
    lake.fill()
    return lake


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """Three rows, copied: ids 1, 2, 3; in a catalog that keeps none."""
    lake = Lake(spark, tmp_path, VIEW)
    lake.fill()
    return lake


@pytest.fixture
def failpoints() -> Iterator[Callable[[str], None]]:
    yield set_failpoints
    set_failpoints("")


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
    """Values that are in the base, in the changes, and in the round."""
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


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("folders", marks=pytest.mark.long),
        pytest.param("by SQL alone", marks=pytest.mark.long),
        "merge",
    ],
)
def test_every_kind_of_batch_is_one_commit(
    spark: SparkSession, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "by SQL alone":
        monkeypatch.setattr("walflow.destinations.iceberg.format.open_bridge", lambda *_: None)
    lake = Lake(spark, tmp_path, MERGE if way == "merge" else VIEW)
    lake.fill()
    written = NAME if way == "merge" else changes_of(NAME)
    for number, change in enumerate(BATCHES):
        before = lake.snapshots(written)
        events = lake.batch(change, pieces=2)
        lake.destination.write_events(events)
        assert lake.snapshots(written) == before + 1, change.__name__
        if number % 2:
            lake.fold()
            lake.check()
            # A process that knows nothing yet.
            lake.start(lake.plan)
            lake.destination.write_events(events)
            lake.check()
    if way != "merge":
        # The copy and three merges.
        assert lake.snapshots(base_of(NAME)) == 4


def test_a_catalog_that_keeps_views(kept: Lake) -> None:
    for change in BATCHES:
        kept.batch(change)
    assert kept.count(changes_of(NAME))
    kept.fold()
    kept.check()
    assert not kept.count(changes_of(NAME))
    assert kept.destination.own_tables() == [NAME]
    # The view says where the table is found by names of its own catalog alone.
    text = kept.session.sql(f"SHOW CREATE TABLE {table_identifier(NAME)}").first()
    assert text is not None
    assert "FROM `public`.`t__base` " in text[0]
    kept.destination.drop_table(KEYED)
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
        if random_number.random() < 0.4:
            lake.fold()
            lake.check()


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


def test_an_ordinary_batch_does_not_read_the_base(lake: Lake) -> None:
    """It cannot: there is nothing left of the base's rows, nor of what lists them. (It looks at
    which version the base has.)"""
    base = lake.warehouse / "public" / "t__base"
    (away := lake.warehouse.parent / "away").mkdir()
    moved = [base / "data", *base.glob("metadata/*.avro")]
    assert len(moved) > 1
    for path in moved:
        shutil.move(path, away)
    with lake.source.transaction():
        insert_update_delete(lake.source)
    with lake.source.transaction():
        lake.source.update(lake.source.find(id=3), id=30, n=5)
    lake.destination.write_events(lake.source.events(lake.spark))
    for path in moved:
        shutil.move(away / path.name, path)
    lake.check()
    assert lake.count(changes_of(NAME)) == 5


def test_a_batch_that_was_appended_twice_is_shown_once(lake: Lake) -> None:
    """By a server that went on with what a client that is gone had asked for."""
    lake.batch(insert_update_delete)
    changes = table_identifier(changes_of(NAME))
    lake.session.table(changes).writeTo(changes).append()
    lake.check()
    lake.fold()
    lake.check()


def test_a_fold_that_broke_off_between_its_commits(
    lake: Lake, failpoints: Callable[[str], None]
) -> None:
    lake.batch(insert_update_delete)
    failpoints("fold.merged[public.t]@1=raise")
    with pytest.raises(FailpointReached):
        lake.fold()
    lake.check()
    assert lake.count(changes_of(NAME)) == 3
    # Changes come before it is tried again.
    lake.start(VIEW)
    lake.check()
    lake.batch(all_on_one_key)
    lake.batch(unsent)
    lake.fold()
    lake.check()
    assert not lake.count(changes_of(NAME))
    lake.start(VIEW)
    lake.check()


def test_when_it_is_time_to_fold(lake: Lake) -> None:
    lake.start(replace(VIEW, fold_seconds=3600))
    assert not lake.destination.fold_due(KEYED)
    lake.batch(insert_update_delete)
    assert not lake.destination.fold_due(KEYED)
    # By age, which counts anew in a new process; so too if nothing happened since.
    lake.start(replace(VIEW, fold_seconds=0))
    lake.check()
    assert lake.destination.fold_due(KEYED)
    lake.fold()
    assert not lake.destination.fold_due(KEYED)
    # By share, but not for a handful.
    lake.start(replace(VIEW, fold_seconds=3600))

    def insert_many(source: Source) -> None:
        for number in range(100, 10_200):
            source.insert(id=number)

    lake.batch(insert_many)
    assert lake.destination.fold_due(KEYED)
    lake.fold()
    lake.check()
    assert not lake.destination.fold_due(KEYED)


NAN = Inexact(None, "NaN")


def test_overflow_texts(make_kept: MakeLake) -> None:
    schema = make_schema({"id": "bigint", "n": "decimal(12,2)", "body": "string"}, ["id"])
    lake = make_kept(VIEW, schema)
    with lake.source.transaction():
        lake.source.insert(id=1, n=Decimal("1.00"), body="b")
        lake.source.insert(id=2, n=Decimal("1.00"), body="b")
    lake.copy()
    lake.batch(lambda source: source.update(source.find(id=1), n=NAN))
    lake.batch(lambda source: source.update(source.find(id=1), unsent=["n"], body="c"))
    lake.fold()
    lake.check()
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


def test_freshness_changes_with_a_copy(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, MERGE)
    lake.fill()
    lake.batch(insert_update_delete)
    lake.start(AUTO)
    lake.check()
    lake.start(VIEW)
    assert lake.destination.applied(KEYED) is None
    lake.copy()
    assert lake.is_viewed()
    assert lake.destination.own_tables() == [NAME]
    lake.batch(all_on_one_key)
    lake.start(AUTO)
    lake.check()
    lake.start(MERGE)
    assert lake.destination.applied(KEYED) is None
    lake.copy()
    assert not lake.is_viewed()
    assert lake.destination.own_tables() == [NAME]
    lake.check()


def test_a_view_becomes_a_table_without_a_copy(kept: Lake) -> None:
    kept.batch(insert_update_delete)
    kept.start(MERGE)
    kept.check()
    assert not kept.is_viewed()
    kept.batch(all_on_one_key)
    assert kept.destination.own_tables() == [NAME]
    # It is one that can have another name.
    other = replace(KEYED, name=TableName("public", "other"))
    assert kept.destination.rename_table(KEYED, other.name)
    assert kept.destination.applied(other) == kept.source.position
    assert kept.destination.rename_table(other, NAME)
    # And back, with one.
    kept.start(VIEW)
    assert kept.destination.applied(KEYED) is None
    kept.copy()
    assert kept.is_viewed()
    kept.batch(unsent)


def test_auto_shows_large_tables_by_a_view(
    spark: SparkSession, tmp_path: Path, make_kept: MakeLake
) -> None:
    lake = make_kept(replace(AUTO, view_from_rows=4))
    lake.fill(3)
    assert not lake.is_viewed()
    with lake.source.transaction():
        lake.source.insert(id=4)
    lake.copy()
    assert lake.is_viewed()
    lake.check()
    folders = Lake(spark, tmp_path, replace(AUTO, view_from_rows=0))
    folders.fill(3)
    assert not folders.is_viewed()


@pytest.mark.parametrize(
    "schema",
    [
        make_schema({"id": "bigint"}, []),
        make_schema({"at": "timestamp", "id": "bigint"}, ["at", "id"]),
        make_schema({"id": "bigint", "l": "array<string>"}, ["id", "l"]),
        make_schema({"id": "bigint", "_ROUND": "int"}, ["id"]),
    ],
    ids=["no key", "a key that may be inexact", "one that has a shape", "a name of ours"],
)
def test_what_no_view_can_show_is_merged(
    spark: SparkSession, tmp_path: Path, schema: TableSchema
) -> None:
    lake = Lake(spark, tmp_path, VIEW, schema=schema)
    key = {"at": datetime(2026, 1, 1, tzinfo=UTC), "l": ["a", "b"]}
    at: Mapping[str, Any] = {name: key[name] for name in schema.key if name in key}
    with lake.source.transaction():
        lake.source.insert(id=1, **at)
    lake.copy()
    lake.batch(lambda source: source.insert(id=2, **at))
    assert not lake.is_viewed()


def test_a_key_that_is_equal_and_not_the_same(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, VIEW, schema=make_schema({"f": "double", "n": "int"}, ["f"]))
    with lake.source.transaction():
        lake.source.insert(f=-0.0, n=1)
    lake.copy()
    lake.batch(lambda source: source.update(source.rows[0], f=0.0))
    assert lake.is_viewed()
    lake.fold()
    lake.check()


def test_names_that_are_taken(lake: Lake, spark: SparkSession, tmp_path: Path) -> None:
    part = make_schema({"id": "bigint"}, ["id"], name="t__base")
    with pytest.raises(DestinationError, match=r"part of public\.t") as refused:
        lake.destination.adopt_files(part, [], lake.source.position, False)
    assert not refused.value.retry
    assert "mapping.tables" in refused.value.hint
    lake.check()
    (folder := tmp_path / "other").mkdir()
    other = Lake(spark, folder, MERGE)
    other.destination.adopt_files(part, [], other.source.position, False)
    other.start(VIEW)
    with pytest.raises(DestinationError, match="t__base"):
        other.fill()
    assert other.destination.own_tables() == [part.name]
    theirs = LakeDestination(
        spark, IcebergFormat(str(lake.warehouse)), replace(OWNER, pipeline="other"), lambda _: VIEW
    )
    lake.session.sql(f"DROP TABLE {table_identifier(changes_of(NAME))}")
    with pytest.raises(DestinationForeign, match="belongs to the pipeline"):
        theirs.adopt_files(KEYED, [], lake.source.position, False)


def test_a_view_of_others_is_left_alone(make_kept: MakeLake) -> None:
    lake = make_kept(VIEW)
    view = table_identifier(NAME)
    lake.session.sql("CREATE NAMESPACE IF NOT EXISTS lake.public")
    lake.session.sql(f"CREATE VIEW {view} AS SELECT 1 AS id")
    with pytest.raises(DestinationForeign, match="not made by walflow"):
        lake.fill()
    assert lake.session.table(view).collect() == [(1,)]
    lake.session.sql(f"DROP VIEW {view}")


def test_a_copy_that_broke_off_is_none(lake: Lake, failpoints: Callable[[str], None]) -> None:
    """Between the base and the changes of it."""
    lake.batch(insert_update_delete)
    failpoints("view.copied@1=raise")
    with pytest.raises(FailpointReached):
        lake.copy()
    lake.start(VIEW)
    assert lake.destination.applied(KEYED) is None
    lake.copy()
    lake.check()


def shown_in_cut(lake: Lake) -> list[list[str]]:
    """The columns of each row in a picture that is made now."""
    at = lake.source.position
    lake.destination.record_progress(ConsistentCut(at, at, None, (TableProgress(NAME, NAME, at),)))
    found = lake.destination.as_of()
    assert found is not None
    (query,) = found.queries
    rows = lake.session.sql(query or "").collect()
    return [[name for name in row.asDict() if not name.startswith("_")] for row in rows]


def test_a_dropped_column_that_is_kept(lake: Lake) -> None:
    lake.start(replace(VIEW, on_column_dropped="keep"))
    before = replace(KEYED, filenodes=frozenset({1}))
    names = {"b": "c"}
    columns = (replace(c, name=names.get(c.name, c.name)) for c in before.columns if c.name != "a")
    after = replace(before, columns=tuple(columns))
    assert shown_in_cut(lake) == [["id", "a", "b", "n"]] * 3
    lake.destination.change_table(evolution(before, after, trust_rewrites=False))
    found = lake.destination.as_of()
    assert found is not None
    assert found.queries == (None,)
    assert shown_in_cut(lake) == [["id", "a", "c", "n"]] * 3
    source = Source(after, lake.warehouse.parent / "log")
    source._lsn, source._cut = lake.source._lsn, lake.source._cut
    source.rows = [
        {names.get(n, n): v for n, v in row.items() if n != "a"} for row in lake.source.rows
    ]
    lake.source = source

    def kept() -> dict[int, str | None]:
        query = lake.destination.reading_query(NAME)
        return {row["id"]: row["a"] for row in lake.session.sql(query or "").collect()}

    for number, start in enumerate((False, True), 4):
        lake.batch(lambda s, n=number: (s.insert(id=n), s.update(s.find(id=1), n=n)))  # type: ignore[misc]
        if start:
            lake.start(lake.plan)
        expected = {1: "a1", 2: "a2", 3: "a3"} | dict.fromkeys(range(4, number + 1))
        assert kept() == expected
        assert len(shown_in_cut(lake)) == len(expected)
        lake.fold()
        assert kept() == expected


def test_its_form_changes(kept: Lake, failpoints: Callable[[str], None]) -> None:
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
    failpoints("view.changing[public.t__changes]@1=raise")
    with pytest.raises(FailpointReached):
        kept.destination.change_table(way)
    # One of the parts has the new form.
    kept.start(VIEW)
    assert kept.destination.applied(after) == kept.source.position
    kept.destination.change_table(way)
    kept.destination.change_table(way)
    source = Source(after, kept.warehouse.parent / "log")
    source._lsn, source._cut = kept.source._lsn, kept.source._cut
    source.rows = [
        {"id": row["id"], "b": row["a"], "a": row["b"], "extra": None} for row in kept.source.rows
    ]
    kept.source = source
    kept.check()
    kept.batch(lambda s: s.update(s.find(id=3), a="swapped", extra=1))
