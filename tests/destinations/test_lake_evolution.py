"""Tables that are brought after their source's form, against the row-by-row reference."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.destinations.conftest import OWNER, Metastore
from tests.destinations.reference import (
    Inexact,
    Row,
    Source,
    assert_same,
    copy_of,
    iceberg_lake,
    reading_session,
    stored_rows,
)
from walflow.config.lake import Mode
from walflow.destinations.base import FormerChanges, TableChanges
from walflow.destinations.iceberg import IcebergFormat, table_identifier
from walflow.destinations.iceberg.bridge import Bridge, open_bridge
from walflow.destinations.lake import LakeDestination, Metadata, TablePlan
from walflow.destinations.lake.table_schema import lake_table_schema
from walflow.errors import DestinationError
from walflow.evolution import Evolution, NotFollowed
from walflow.model import Column, Lsn, PgType, Span, TableName, TableSchema
from walflow.testing.sources import way_to

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("way")]

NAME = TableName("public", "t")
IDENTIFIER = table_identifier(NAME)


def form(columns: Mapping[str, str], key: Sequence[str] = ("id",)) -> TableSchema:
    """Columns by name: attribute number and type."""
    return TableSchema(
        oid=1,
        name=NAME,
        columns=tuple(
            Column(name, PgType("any", 0, 0), kind, name not in key, int(number))
            for name, (number, kind) in ((n, c.split(" ", 1)) for n, c in columns.items())
        ),
        key=tuple(key),
    )


class Evolving:
    """A source whose form changes, its table, and the way from one to the other."""

    def __init__(
        self, spark: SparkSession, folder: Path, schema: TableSchema, plan: TablePlan
    ) -> None:
        (folder / "log").mkdir()
        self.spark = spark
        self.source = Source(schema, folder / "log")
        self.warehouse = folder / "warehouse"
        self.plan = plan
        self.destination = self.opened()
        self.session = reading_session(spark, self.warehouse)

    def opened(self) -> LakeDestination:
        format = IcebergFormat(str(self.warehouse))
        return LakeDestination(self.spark, format, OWNER, lambda _: self.plan)

    def copy(self, *rows: Row, overflow: bool = False) -> None:
        with self.source.transaction():
            for row in rows:
                self.source.insert(**row)
        self.adopt(overflow=overflow)

    def adopt(self, *, overflow: bool = False) -> None:
        self.source.events(self.spark)
        files = [self.source.copy_file(overflow)]
        self.destination.copy(copy_of(self.source.schema, files, self.source.position, overflow))

    def evolve(self, after: TableSchema, **missing: object) -> Evolution:
        """The source gets another form."""
        before, self.source.schema = self.source.schema, after
        was = {column.attnum: column.name for column in before.columns}
        self.source.rows = [
            {
                c.name: row[was[c.attnum]] if c.attnum in was else missing.get(c.name)
                for c in after.columns
            }
            for row in self.source.rows
        ]
        return way_to(before, after, missing)

    def follow(self, after: TableSchema, **missing: object) -> None:
        """So does its table, which is the same after a second time."""
        evolution = self.evolve(after, **missing)
        position = self.destination.applied(after)
        self.destination.evolve(evolution)
        self.check()
        versions = self.versions()
        self.opened().evolve(evolution)
        assert self.versions() == versions
        assert self.destination.applied(after) == position
        assert self.opened().applied(after) == position

    def batch(self) -> None:
        self.destination.apply(self.source.events(self.spark))
        self.check()

    def check(self) -> None:
        assert_same(stored_rows(self.session, self.source.schema), self.source.rows)

    def versions(self) -> list[str]:
        entries = self.session.sql(f"SELECT file FROM {IDENTIFIER}.metadata_log_entries")
        return [row["file"] for row in entries.collect()]

    def columns(self) -> list[str]:
        return [name for name in self.session.table(IDENTIFIER).columns if name not in METADATA]


METADATA = ["_CHANGE_TYPE", "_LSN", "_TIMESTAMP"]
MakeEvolving = Callable[..., Evolving]


@pytest.fixture
def evolving(spark: SparkSession, tmp_path: Path) -> Iterator[MakeEvolving]:
    made: list[Evolving] = []

    def make(schema: TableSchema, plan: TablePlan | None = None) -> Evolving:
        made.append(Evolving(spark, tmp_path, schema, plan or TablePlan()))
        return made[0]

    yield make
    for one in made:
        one.destination.shutdown()


ABC = form({"id": "1 bigint", "a": "2 string", "b": "3 string", "n": "4 int"})
ROWS = [{"id": i, "a": f"a{i}", "b": f"b{i}", "n": i} for i in range(4)]

WAYS: Mapping[str, list[tuple[dict[str, str], dict[str, object]]]] = {
    "dropped and made anew": [
        ({"id": "1 bigint", "a": "5 string", "b": "3 string", "n": "4 int"}, {}),
        ({"id": "1 bigint", "a": "6 string", "b": "3 string", "n": "4 int"}, {"a": "new"}),
        ({"id": "1 bigint", "b": "3 string", "a": "7 array<int>", "n": "8 string"}, {"a": [1]}),
    ],
    "swapped and wider": [
        ({"id": "1 bigint", "b": "2 string", "a": "3 string", "n": "4 bigint"}, {}),
        ({"id": "1 bigint", "n": "2 string", "b": "3 string", "a": "4 bigint"}, {}),
    ],
    "moved up, and the first made anew": [
        ({"id": "1 bigint", "b": "2 string", "c": "3 string", "a": "5 int"}, {"a": 5}),
        ({"ID": "1 bigint", "a.`b": "2 string", "C": "3 string", "c": "6 int"}, {"c": 1}),
        ({"ID": "1 bigint", "C": "2 string", "a.`b": "7 string"}, {"a.`b": "x"}),
    ],
}


@pytest.mark.parametrize("forms", WAYS.values(), ids=WAYS.keys())
def test_forms_that_follow_each_other(
    evolving: MakeEvolving, forms: list[tuple[dict[str, str], dict[str, object]]]
) -> None:
    pair = evolving(ABC)
    pair.copy(*ROWS)
    for number, (columns, missing) in enumerate(forms, 10):
        key = next(iter(columns))
        pair.follow(form(columns, [key]), **missing)
        assert pair.columns() == list(columns)
        source = pair.source
        with source.transaction():
            names = [n for n, c in columns.items() if c.endswith("string")]
            source.insert(**{key: number}, **dict.fromkeys(names, "late"))
            source.update(
                source.find(**{key: 1}), unsent=names[:1], **dict.fromkeys(names[1:], "x")
            )
            source.update(source.find(**{key: number - 10}), (), **{names[0]: None})
        pair.batch()


def test_columns_of_every_type_have_their_values(evolving: MakeEvolving) -> None:
    noon = datetime.datetime(2026, 11, 15, 12, 0, 0, 123456)
    values: dict[str, tuple[str, Any]] = {
        "ok": ("boolean", False),
        "i": ("int", -(2**31)),
        "l": ("bigint", 2**63 - 1),
        "small": ("bigint", 7),
        "f": ("double", 0.1),
        "inf": ("double", float("-inf")),
        "n": ("decimal(12,2)", Decimal("-1234567890.10")),
        "t": ("string", "it's \\ \u2603\U0001f600"),
        "empty": ("string", ""),
        "bin": ("binary", b"\x00\xff"),
        "d": ("date", datetime.date(1, 1, 1)),
        "tz": ("timestamp", noon.replace(tzinfo=datetime.UTC)),
        "ntz": ("timestamp_ntz", noon),
        "arr": ("array<int>", [1, None, 3]),
        "none": ("array<int>", []),
        "nothing": ("string", None),
    }
    pair = evolving(form({"id": "1 bigint"}))
    pair.copy({"id": 1}, {"id": 2})
    columns = {n: f"{number} {kind}" for number, (n, (kind, _)) in enumerate(values.items(), 2)}
    missing = {name: value for name, (_, value) in values.items() if value is not None}
    pair.follow(form({"id": "1 bigint", **columns}), **missing)
    assert pair.columns() == ["id", *columns]
    source = pair.source
    with source.transaction():
        source.insert(id=3)
        source.update(source.find(id=1), unsent=["t", "bin", "n", "arr"], i=None)
    pair.batch()
    # Also where files are passed over, or rows counted, by what is known of them.
    table = pair.session.table(IDENTIFIER)
    found = table.where("l = 9223372036854775807 AND t LIKE 'it%' AND ntz IS NOT NULL")
    assert sorted(row["id"] for row in found.select("id").collect()) == [1, 2]
    counted = table.selectExpr("count(l)", "min(small)", "max(l)", "count(*)").collect()
    assert tuple(counted[0]) == (2, 7, 2**63 - 1, 3)
    assert table.where("l IS NULL OR t <> 'other' OR i IS NULL").count() == 3


@pytest.mark.parametrize("swapped", [True, False])
def test_overflow_texts_go_with_their_columns(evolving: MakeEvolving, swapped: bool) -> None:
    pair = evolving(form({"id": "1 bigint", "d": "2 date", "e": "3 decimal(12,2)", "f": "4 date"}))
    never, not_a_number = Inexact(None, "infinity"), Inexact(None, "NaN")
    day = datetime.date(2026, 1, 1)
    pair.copy(
        {"id": 1, "d": never, "e": not_a_number, "f": never},
        {"id": 2, "d": day, "e": not_a_number, "f": day},
        {"id": 3, "f": never},
        {"id": 4, "d": day, "e": Decimal("1.00")},
        overflow=True,
    )
    names = ("e", "d", "f") if swapped else ("x", "y", "z")
    columns = {names[0]: "2 date", names[1]: "3 decimal(12,2)", names[2]: "5 date"}
    pair.follow(form({"id": "1 bigint", **columns}), **{names[2]: day})
    source = pair.source
    with source.transaction():
        source.update(source.find(id=2), unsent=[names[1]], **{names[0]: never})
    pair.batch()


def test_what_is_kept_stays_and_steps_aside(evolving: MakeEvolving) -> None:
    pair = evolving(ABC, TablePlan(on_column_dropped="keep"))
    pair.copy(*ROWS)
    pair.follow(form({"id": "1 bigint", "b": "3 string", "n": "4 int"}))
    assert pair.columns() == ["id", "a", "b", "n"]
    source = pair.source
    with source.transaction():
        source.insert(id=7, b="b7", n=7)
        source.update(source.find(id=1), b="changed")
        source.delete(source.find(id=2))
    pair.batch()
    with source.transaction():
        source.insert(id=8, b="b8", n=8)
    pair.batch()

    def kept(name: str) -> dict[int, str | None]:
        rows = pair.session.table(IDENTIFIER).select("id", name).collect()
        return {row["id"]: row[name] for row in rows}

    assert kept("a") == {0: "a0", 1: "a1", 3: "a3", 7: None, 8: None}
    # Twice again: the second is kept beside the first.
    pair.follow(form({"id": "1 bigint", "a": "5 int", "b": "3 string", "n": "4 int"}), a=5)
    assert kept("a__dropped_2") == {0: "a0", 1: "a1", 3: "a3", 7: None, 8: None}
    pair.follow(form({"id": "1 bigint", "b": "3 string", "n": "4 int"}))
    with source.transaction():
        source.truncate()
        source.insert(id=9, b="b9", n=9)
    pair.batch()
    assert kept("a") == {9: None}
    pair.follow(form({"id": "1 bigint", "a": "3 string", "n": "4 int"}))
    assert kept("a__dropped_5") == {9: None}


def test_a_key_may_become_another(evolving: MakeEvolving) -> None:
    pair = evolving(ABC)
    pair.copy(*ROWS)
    columns = {"id": "1 bigint", "a": "2 string", "b": "3 string", "n": "4 int"}
    pair.follow(form(columns, ["n"]))
    source = pair.source
    with source.transaction():
        source.insert(n=9)
        source.update(source.find(n=1), id=None, n=11)
    pair.batch()
    pair.follow(form(columns, []))
    with source.transaction():
        source.delete(source.find(n=11))
        source.update(source.find(n=2), a=None)
    pair.batch()


@pytest.mark.parametrize("way", ["bridge"], indirect=True)
def test_deleted_rows_that_another_key_cannot_tell_apart(evolving: MakeEvolving) -> None:
    columns = {"id": "1 bigint", "a": "2 string"}
    pair = evolving(form(columns, []), TablePlan(mode="soft_delete"))
    pair.copy({"id": 1, "a": "x"}, {"id": 2, "a": "y"}, {"id": None, "a": "x"}, {"id": None})
    source, destination = pair.source, pair.destination
    with source.transaction():
        for row in [row for row in source.rows if row["id"] is None]:
            source.delete(row)
    destination.apply(source.events(pair.spark))
    # Rows without a key are no rows of one key.
    destination.evolve(pair.evolve(form(columns)))
    destination.evolve(pair.evolve(form(columns, [])))
    with source.transaction():
        source.update(source.find(id=1), a="x2")
    destination.apply(source.events(pair.spark))
    way = pair.evolve(form(columns))
    with pytest.raises(DestinationError, match="several rows with one key") as refused:
        destination.evolve(way)
    assert not refused.value.retry
    # So, too, if it was copied again for it.
    with source.transaction():
        source.insert(id=3)
    with pytest.raises(DestinationError, match="several rows with one key"):
        pair.adopt()


def test_a_key_that_is_dropped_and_kept(evolving: MakeEvolving) -> None:
    pair = evolving(ABC, TablePlan(on_column_dropped="keep"))
    pair.copy(*ROWS)
    pair.follow(form({"a": "2 string", "b": "3 string", "n": "4 int"}, ["n"]))
    with pair.source.transaction():
        pair.source.insert(n=9, a="late")
    pair.batch()


def test_former_snapshots_have_their_own_columns(evolving: MakeEvolving) -> None:
    pair = evolving(ABC)
    pair.copy(*ROWS)
    former = pair.session.sql(f"SELECT snapshot_id FROM {IDENTIFIER}.snapshots").collect()[0][0]
    before = pair.session.table(IDENTIFIER).orderBy("id").toArrow()
    as_of = f"SELECT * FROM {IDENTIFIER} VERSION AS OF {former} ORDER BY id"
    columns = {"id": "1 bigint", "b": "2 string", "a": "3 string", "n": "5 bigint"}
    pair.follow(form(columns), n=1)
    assert pair.session.sql(as_of).toArrow().equals(before)
    # A copy has the columns in files again, under names that were others'.
    pair.adopt()
    pair.check()
    assert pair.session.sql(as_of).toArrow().equals(before)
    pair.follow(form({"id": "1 bigint", "c": "2 string", "b": "3 string"}))
    assert pair.session.sql(as_of).toArrow().equals(before)
    pair.adopt()
    pair.check()
    assert pair.session.sql(as_of).toArrow().equals(before)


def test_a_history_keeps_what_was_dropped(evolving: MakeEvolving) -> None:
    pair = evolving(ABC, TablePlan(mode="history"))
    pair.copy(*ROWS)
    after = form({"id": "1 bigint", "a": "5 int", "c": "3 string", "n": "4 int"})
    pair.destination.evolve(way_to(ABC, after, {"a": 5}))
    rows = pair.session.table(IDENTIFIER).select("a__dropped_2", "a", "c").collect()
    assert sorted(map(tuple, rows)) == [(f"a{i}", 5, f"b{i}") for i in range(4)]


@pytest.mark.parametrize("way", ["bridge"], indirect=True)
@pytest.mark.parametrize("mode", ["mirror", "soft_delete", "history", "scd2"])
def test_values_from_before_a_drop_that_come_with_changes_from_after_it(
    evolving: MakeEvolving, mode: Mode
) -> None:
    pair = evolving(ABC, TablePlan(mode=mode, on_column_dropped="keep"))
    pair.copy(*ROWS)
    source = pair.source
    with source.transaction():
        source.update(source.find(id=0), a="before", n=100)
        source.update(source.find(id=1), a="before", n=100)
        source.update(source.find(id=2), unsent=["a"], n=100)
        source.insert(id=7, a="before", b="b", n=100)
    first = source.events(pair.spark)
    # One keeps its name, the other must give it to a new column.
    pair.evolve(form({"id": "1 bigint", "a": "2 string", "b": "3 string"}))
    with source.transaction():
        source.update(source.find(id=2), unsent=["a"], b="between")
        source.insert(id=8, a="between", b="b")
    second = source.events(pair.spark)
    evolution = pair.evolve(form({"id": "1 bigint", "b": "3 string", "a": "5 int"}))
    with source.transaction():
        source.update(source.find(id=1), b="after")
        source.update(source.find(id=3), b="after")
        source.update(source.find(id=7), b="after")
        source.insert(id=9, b="after", a=9)
    third = source.events(pair.spark)
    whole = way_to(ABC, source.schema, {})
    pair.destination.evolve(whole)
    pair.destination.apply(together((first, whole), (second, evolution), third))

    rows = pair.session.table(IDENTIFIER).where("_CHANGE_TYPE <> 'copy'")
    found = sorted(map(tuple, rows.select("id", "b", "a__dropped_2", "n").collect()), key=str)
    if mode in ("mirror", "soft_delete"):
        pair.check()
        assert found == [
            (0, "b0", "before", 100),
            (1, "after", "before", 100),
            (2, "between", "a2", 100),
            (3, "after", "a3", 3),
            (7, "after", "before", 100),
            (8, "b", "between", None),
            (9, "after", None, None),
        ]
    else:
        # What is new has nothing in columns that are no more.
        assert found == [
            (0, "b0", "before", 100),
            (1, "after", None, None),
            (1, "b1", "before", 100),
            (2, "b2", "a2", 100),
            (2, "between", "a2", None),
            (3, "after", None, None),
            (7, "after", None, None),
            (7, "b", "before", 100),
            (8, "b", "between", None),
            (9, "after", None, None),
        ]


def together(
    first: tuple[TableChanges, Evolution],
    second: tuple[TableChanges, Evolution],
    last: TableChanges,
) -> TableChanges:
    """Changes of three schemas as one batch."""
    parts = (first, second)
    return replace(
        last,
        stats=sum((part.stats for part, _ in parts), last.stats),
        former=tuple(FormerChanges(part.files, evolution) for part, evolution in parts),
        span=Span(first[0].span.after, last.span.upto),
    )


def test_a_table_without_rows(evolving: MakeEvolving) -> None:
    pair = evolving(ABC)
    pair.copy()
    pair.follow(form({"id": "1 bigint", "a": "3 string", "l": "5 array<int>"}), l=[1])
    with pair.source.transaction():
        pair.source.insert(id=1, a="a", l=[2])
    pair.batch()


def test_it_goes_on_from_wherever_it_broke_off(
    evolving: MakeEvolving, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    never = Inexact(None, "infinity")
    before = form({"id": "1 bigint", "a": "2 date", "b": "3 date", "c": "4 int", "d": "5 date"})
    rows = [{"id": i, "a": never, "b": datetime.date(2026, 1, i), "c": i} for i in (1, 2)]
    columns = {"ID": "1 bigint", "b": "2 date", "a": "3 date", "c": "6 int", "e": "4 bigint"}
    after = form({**columns, "l": "7 array<int>", "d": "8 string"}, ["e"])
    pair = evolving(before)
    with pair.source.transaction():
        for row in rows:
            pair.source.insert(**row)
    full = list(pair.source.rows)
    breaking = Breaking()
    breaking.install(monkeypatch)
    for step in itertools.count(1):
        pair.source.schema, pair.source.rows = before, list(full)
        pair.adopt(overflow=True)
        evolution = pair.evolve(after, l=[1, 2])
        change = partial(pair.opened().evolve, evolution)
        if not breaking.at(step, change):
            break
        if step % 2 and way == "sql":
            # Who goes on may have the other way.
            with monkeypatch.context() as other:
                other.setattr("walflow.destinations.iceberg.format.open_bridge", open_bridge)
                pair.opened().evolve(evolution)
        else:
            pair.opened().evolve(evolution)
        pair.check()
        assert pair.columns()[:-1] == list(after.column_names)
    pair.check()
    assert step > (5 if way == "bridge" else 12)


class Breaking:
    """Ends what is done before one of its steps, and so after the one before."""

    def __init__(self) -> None:
        self._left = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sql, change_columns = SparkSession.sql, Bridge.change_columns

        def breaking_sql(session: SparkSession, query: str) -> Any:
            if not query.startswith(("ALTER", "UPDATE")):
                return sql(session, query)
            return self._step(lambda: sql(session, query))

        def breaking_change(bridge: Bridge, *of: Any) -> None:
            self._step(lambda: change_columns(bridge, *of))

        monkeypatch.setattr(SparkSession, "sql", breaking_sql)
        monkeypatch.setattr(Bridge, "change_columns", breaking_change)

    def at(self, step: int, action: Callable[[], None]) -> bool:
        """Whether it came to this step."""
        self._left = step
        try:
            action()
        except DestinationError as error:
            if not isinstance(error.__cause__, BrokenOffError):
                raise
            return True
        finally:
            self._left = 0
        return False

    def _step(self, action: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left == 0:
            raise BrokenOffError
        return action()


class BrokenOffError(Exception):
    pass


@pytest.mark.parametrize("way", ["bridge"], indirect=True)
def test_files_that_were_adopted_keep_their_names_by_sql_alone(
    evolving: MakeEvolving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table may be adopted over a bridge, and looked after through Spark Connect later."""
    pair = evolving(ABC)
    pair.copy(*ROWS)
    monkeypatch.setattr("walflow.destinations.iceberg.format.open_bridge", lambda *_: None)
    pair.destination = pair.opened()
    pair.follow(form({"id": "1 bigint", "b": "2 string", "c": "3 string", "a": "5 int"}), a=5)
    pair.follow(form({"id": "1 bigint", "a": "2 string", "b": "3 string", "n": "6 array<int>"}))
    with pair.source.transaction():
        pair.source.update(pair.source.find(id=1), unsent=["a", "b"], n=[1])
    pair.batch()


@pytest.mark.parametrize("way", ["sql"], indirect=True)
def test_names_of_ours_are_refused(evolving: MakeEvolving) -> None:
    pair = evolving(ABC)
    pair.copy(*ROWS)
    columns = {"id": "1 bigint", "a": "2 string", "b": "3 string", "n": "4 int", "_LSN": "5 bigint"}
    with pytest.raises(DestinationError, match="has a column _LSN") as refused:
        pair.destination.evolve(way_to(ABC, form(columns), {}))
    assert not refused.value.retry
    assert refused.value.hint
    pair.check()
    twice = TablePlan(mode="scd2", metadata=Metadata(timestamp="_VALID_FROM"))
    with pytest.raises(DestinationError, match="have the name _VALID_FROM"):
        lake_table_schema(ABC, twice, overflow=False)


@pytest.mark.parametrize("way", ["sql"], indirect=True)
def test_what_cannot_be_followed_changes_nothing(evolving: MakeEvolving) -> None:
    pair = evolving(ABC)
    after = form({"id": "1 bigint", "extra": "3 string", "n": "4 int"})
    with pytest.raises(NotFollowed, match="no complete copy"):
        pair.destination.evolve(way_to(ABC, after, {}))
    pair.copy(*ROWS)
    pair.session.sql(f"ALTER TABLE {IDENTIFIER} ADD COLUMN extra int")
    with pytest.raises(NotFollowed, match="has a column extra already"):
        pair.destination.evolve(way_to(ABC, after, {}))
    other = form({"id": "1 bigint", "a": "3 string"})
    with pytest.raises(NotFollowed, match="neither schema"):
        pair.destination.evolve(way_to(other, after, {}))
    pair.check()


@pytest.mark.parametrize("way", ["sql"], indirect=True)
def test_tables_in_folders_have_the_names_of_these(evolving: MakeEvolving) -> None:
    pair = evolving(ABC)
    pair.copy(*ROWS)
    before = sorted(pair.warehouse.rglob("*"))
    assert not pair.destination.rename(ABC, TableName("other", "t"))
    assert sorted(pair.warehouse.rglob("*")) == before
    pair.check()


@pytest.mark.parametrize("way", ["sql"], indirect=True)
def test_a_table_gets_another_name(
    spark: SparkSession, metastore: Metastore, tmp_path: Path
) -> None:
    warehouse, options = metastore.folder / "warehouse", metastore.options
    destination = iceberg_lake(spark, warehouse, OWNER, options)
    session = reading_session(spark, warehouse, options)
    source = Source(ABC, tmp_path)
    with source.transaction():
        for row in ROWS:
            source.insert(**row)
    destination.copy(copy_of(ABC, [source.copy_file()], source.position, overflow=False))
    source.events(spark)
    renamed = replace(ABC, name=TableName("public", "u"))
    for _ in range(2):
        assert destination.rename(ABC, renamed.name)
        assert destination.applied(ABC) is None
        assert destination.applied(renamed) == source.position
    source.schema = renamed
    with source.transaction():
        source.delete(source.find(id=1))
    destination.apply(source.events(spark))
    # Another table of the former name is another table, in a folder of its own.
    destination.copy(copy_of(ABC, [], Lsn(1)))
    assert not destination.rename(ABC, renamed.name)
    folders = {
        Path(row["file"]).parent
        for name in (ABC.name, renamed.name)
        for row in session.table(f"{table_identifier(name)}.metadata_log_entries").collect()
    }
    assert len(folders) == 2
    destination.drop(ABC)
    assert_same(stored_rows(session, renamed), source.rows)
    destination.drop(renamed)
    destination.shutdown()
