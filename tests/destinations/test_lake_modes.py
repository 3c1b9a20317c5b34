"""What each mode makes of changes, against a model of it that goes row by row."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.destinations.reference import (
    Inexact,
    Row,
    Source,
    assert_same,
    make_schema,
    reading_session,
)
from walflow.config.settings import Mode
from walflow.destinations.base import Events
from walflow.destinations.iceberg import IcebergFormat, table_identifier
from walflow.destinations.lake import EXACT, LakeDestination, Metadata, Owner, TablePlan
from walflow.errors import DestinationError
from walflow.model import Lsn, Span, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

OWNER = Owner("shop", "7300000000000000001", 1)
KEYED = make_schema({"id": "bigint", "a": "string", "b": "string", "n": "int"}, ["id"])
KEYLESS = make_schema({"a": "string", "n": "int"}, [])
COPY_TIME = None
"""The models' time of a copy: when it is, nobody knows before."""


@dataclass(frozen=True, slots=True)
class Note:
    """One change, with all that the source knows of it."""

    kind: str
    lsn: int
    seq: int
    time: datetime.datetime
    new: Row | None = None
    old: Row | None = None


class NotedSource(Source):
    """A source whose transactions have times, and which remembers all that happened."""

    def __init__(self, schema: TableSchema, folder: Path) -> None:
        super().__init__(schema, folder)
        self.notes: list[Note] = []

    def insert(self, **row: Any) -> None:
        super().insert(**row)
        self._remember("insert", new=self.rows[-1])

    def update(self, old: Row, unsent: Sequence[str] = (), **changed: Any) -> Row:
        new = super().update(old, unsent, **changed)
        self._remember("update", new=new, old=old)
        return new

    def delete(self, row: Row) -> None:
        super().delete(row)
        self._remember("delete", old=row)

    def truncate(self) -> None:
        super().truncate()
        self._remember("truncate")

    def _remember(self, kind: str, new: Row | None = None, old: Row | None = None) -> None:
        written = self._log[-1]
        # Later than any copy that a test makes.
        time = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
        time += datetime.timedelta(seconds=written["_lsn"])
        written["_timestamp"] = time
        self.notes.append(Note(kind, written["_lsn"], written["_seq"], time, new, old))


# The models: from the rows that were copied, and what happened since, to the table's rows.

Copied = tuple[Sequence[Row], int]


def _key(schema: TableSchema, row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in (schema.key or schema.column_names))


def _told(kind: str, lsn: int, time: datetime.datetime | None) -> Row:
    return {"_CHANGE_TYPE": kind, "_LSN": lsn, "_TIMESTAMP": time}


def _first_of(schema: TableSchema, rows: Sequence[Row], sought: Row) -> Row:
    """Of equal rows that are not deleted, the one that came first."""
    found = [
        row
        for row in rows
        if _key(schema, row) == _key(schema, sought) and not row.get("_DELETED", False)
    ]
    return min(found, key=lambda row: (row["_LSN"], row["_CHANGE_TYPE"]))


def mirrored(schema: TableSchema, copied: Copied, notes: Sequence[Note]) -> list[Row]:
    table = [{**row, **_told("copy", copied[1], COPY_TIME)} for row in copied[0]]
    for note in notes:
        if note.kind == "truncate":
            table = []
        if note.old is not None:
            gone = _first_of(schema, table, note.old)
            table = [row for row in table if row is not gone]
        if note.new is not None:
            table.append({**note.new, **_told(note.kind, note.lsn, note.time)})
    return table


def soft_deleted(schema: TableSchema, copied: Copied, notes: Sequence[Note]) -> list[Row]:
    table = [{**row, **_told("copy", copied[1], COPY_TIME), "_DELETED": False} for row in copied[0]]
    for note in notes:
        if note.kind == "truncate":
            for row in table:
                if not row["_DELETED"]:
                    row |= {**_told("truncate", note.lsn, note.time), "_DELETED": True}
        if note.old is not None:
            gone = _first_of(schema, table, note.old)
            gone |= {**_told("delete", note.lsn, note.time), "_DELETED": True}
        if note.new is not None:
            if schema.key:
                there = _key(schema, note.new)
                table = [row for row in table if _key(schema, row) != there]
            told = _told(note.kind, note.lsn, note.time)
            table.append({**note.new, **told, "_DELETED": False})
    return table


def historical(schema: TableSchema, copied: Copied, notes: Sequence[Note]) -> list[Row]:
    table = [{**row, **_told("copy", copied[1], COPY_TIME), "_SEQ": -1} for row in copied[0]]
    nothing = dict.fromkeys(schema.column_names)
    for note in notes:
        told, row = _told(note.kind, note.lsn, note.time), note.new or {}
        if note.old is not None:
            identity = {n: note.old[n] for n in schema.key or schema.column_names}
            if note.new is None:
                row = note.old if note.seq < 0 else identity
            elif not schema.key or _key(schema, note.old) != _key(schema, note.new):
                left = {**nothing, **identity, **told, "_CHANGE_TYPE": "delete"}
                table.append({**left, "_SEQ": 2 * note.seq})
        table.append({**nothing, **row, **told, "_SEQ": 2 * note.seq + 1})
    return table


def versioned(schema: TableSchema, copied: Copied, notes: Sequence[Note]) -> list[Row]:
    def version(row: Row, kind: str, lsn: int, time: datetime.datetime | None) -> Row:
        span = {"_VALID_FROM": time, "_VALID_TO": None, "_CURRENT": True}
        return {**row, **_told(kind, lsn, time), **span}

    past: list[Row] = []
    now = {_key(schema, row): version(row, "copy", copied[1], COPY_TIME) for row in copied[0]}
    for _, changes in itertools.groupby(notes, lambda note: note.lsn):
        seen, before = list(changes), dict(now)
        for note in seen:
            if note.kind == "truncate":
                now.clear()
            if note.old is not None:
                del now[_key(schema, note.old)]
            if note.new is not None:
                now[_key(schema, note.new)] = version(note.new, note.kind, note.lsn, note.time)
        for key, row in before.items():
            if now.get(key) is not row:
                past.append({**row, "_VALID_TO": seen[0].time, "_CURRENT": False})
    return past + list(now.values())


MODELS: Mapping[Mode, Callable[[TableSchema, Copied, Sequence[Note]], list[Row]]] = {
    "mirror": mirrored,
    "soft_delete": soft_deleted,
    "history": historical,
    "scd2": versioned,
}


# A lake of each format.


@dataclass(slots=True)
class Lake:
    spark: SparkSession
    folder: Path
    open: list[LakeDestination] = field(default_factory=list)

    def destination(self, plan: TablePlan, name: str) -> LakeDestination:
        """One with a folder of its own."""
        format = IcebergFormat(str(self.folder / name))
        made = LakeDestination(self.spark, format, OWNER, lambda table: plan)
        self.open.append(made)
        return made

    def rows(self, schema: TableSchema, name: str) -> list[Row]:
        """With our columns, and the times of copies left out."""
        session = reading_session(self.spark, self.folder / name)
        table = session.table(table_identifier(schema.name)).toArrow()
        return [_as_in_models(row) for row in table.to_pylist()]

    def columns(self, schema: TableSchema, name: str) -> list[str]:
        session = reading_session(self.spark, self.folder / name)
        return session.table(table_identifier(schema.name)).columns

    def commits(self, schema: TableSchema, name: str) -> int:
        session = reading_session(self.spark, self.folder / name)
        return session.table(f"{table_identifier(schema.name)}.snapshots").count()


def _as_in_models(row: Row) -> Row:
    row = {
        name: v.astimezone(datetime.UTC) if isinstance(v, datetime.datetime) and v.tzinfo else v
        for name, v in row.items()
    }
    texts = dict(row.pop(EXACT, None) or [])
    if row.get("_CHANGE_TYPE") == "copy":
        row |= {name: COPY_TIME for name in ("_TIMESTAMP", "_VALID_FROM") if name in row}
    return {n: Inexact(v, texts[n]) if n in texts else v for n, v in row.items()}


@pytest.fixture(params=["iceberg"])
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    lake = Lake(spark, tmp_path)
    yield lake
    for destination in lake.open:
        destination.shutdown()


class Told:
    """A story, told to a table in rounds."""

    def __init__(
        self,
        lake: Lake,
        schema: TableSchema,
        mode: Mode,
        name: str,
        plan: TablePlan | None = None,
    ) -> None:
        self.lake, self.schema, self.mode, self.name = lake, schema, mode, name
        self.destination = lake.destination(plan or TablePlan(mode=mode), name)
        log = lake.folder / f"{name}-log"
        log.mkdir()
        self.source = NotedSource(schema, log)
        self.copied: Copied = ([], 0)

    def copy(self, exact: bool = False) -> None:
        self.source.events(self.lake.spark)
        self.copied = ([dict(row) for row in self.source.rows], int(self.source.position))
        self.source.notes.clear()
        files = [self.source.copy_file(exact)]
        self.destination.adopt_files(self.schema, files, self.source.position, exact)

    def round(self) -> Events:
        events = self.source.events(self.lake.spark)
        self.destination.write_events(events)
        return events

    def rows(self) -> list[Row]:
        return self.lake.rows(self.schema, self.name)

    def columns(self) -> list[str]:
        return self.lake.columns(self.schema, self.name)

    def expected(self) -> list[Row]:
        return MODELS[self.mode](self.schema, self.copied, self.source.notes)

    def check(self) -> None:
        assert_same(self.rows(), self.expected())


Story = Callable[[NotedSource], Iterator[None]]


def keyed_story(source: NotedSource) -> Iterator[None]:
    """After each transaction it may be time for a round."""
    find = source.find
    with source.transaction():
        source.insert(id=5, a="a5", b="b5", n=5)
        source.update(find(id=1), unsent=["a", "b"], n=11)
        source.delete(find(id=2))
    yield
    with source.transaction():
        source.update(find(id=3), unsent=["a", "b"], id=30)
        source.insert(id=2, a="again", b=None, n=None)
        source.update(find(id=2), unsent=["a"], n=0)
    yield
    with source.transaction():
        source.update(find(id=30), unsent=["a", "b"], id=31)
        source.update(find(id=31), unsent=["b"], id=32, a="moved")
        source.update(find(id=32), unsent=["a", "b"], n=32)
        source.update(find(id=1), n=12, unsent=["a"])
        source.update(find(id=1), n=13, unsent=["b"])
    yield
    with source.transaction():
        source.insert(id=6, a="a6", b="b6", n=6)
        source.delete(find(id=6))
        source.insert(id=7, a="a7", b="b7", n=7)
        source.delete(find(id=4))
        source.insert(id=4, a=None, b=None, n=4)
    yield
    with source.transaction():
        source.update(find(id=7), unsent=["a", "b"], n=77)
        source.delete(find(id=7))
        source.update(find(id=5), unsent=["a"], b="new")
        source.update(find(id=5), unsent=["a", "b"], id=3)
    yield
    with source.transaction():
        source.update(find(id=1), unsent=["a", "b"], id=100)
        source.update(find(id=2), unsent=["a", "b"], id=1)
        source.update(find(id=100), unsent=["a", "b"], id=2)
    yield


def truncating_story(source: NotedSource) -> Iterator[None]:
    find = source.find
    with source.transaction():
        source.update(find(id=1), unsent=["b"], a="late")
        source.insert(id=9, a="a9", b="b9", n=9)
        source.delete(find(id=2))
    yield
    with source.transaction():
        source.insert(id=10, a="a10", b="b10", n=10)
        source.truncate()
        source.insert(id=1, a="new", b="new", n=1)
        source.insert(id=11, a="a11", b="b11", n=11)
    yield
    with source.transaction():
        source.update(find(id=1), unsent=["a", "b"], id=12)
        source.delete(find(id=11))
    with source.transaction():
        source.insert(id=13, a=None, b="b13", n=None)
    with source.transaction():
        source.truncate()
    with source.transaction():
        source.insert(id=13, a="anew", b=None, n=None)
        source.insert(id=14, a=None, b=None, n=None)
    yield


def copies_story(source: NotedSource) -> Iterator[None]:
    """Of a table without a key."""

    def one(**row: Any) -> Row:
        return source.find(**row)

    with source.transaction():
        source.insert(a="x", n=1)
        source.delete(one(a="x", n=1))
        source.update(one(a="y", n=None), n=1)
    yield
    with source.transaction():
        source.insert(a="x", n=1)
        source.insert(a="x", n=1)
        source.update(one(a="y", n=1), a="x")
    with source.transaction():
        source.delete(one(a="x", n=1))
        source.delete(one(a="x", n=1))
        source.insert(a="z", n=0)
        source.delete(one(a="z", n=0))
    yield
    with source.transaction():
        source.update(one(a="x", n=1), a="x")
        source.insert(a="w", n=0)
    yield
    with source.transaction():
        source.delete(one(a="w", n=0))
        source.insert(a="w", n=0)
        source.truncate()
        source.insert(a="w", n=0)
        source.insert(a="w", n=0)
        source.delete(one(a="w", n=0))
    with source.transaction():
        source.insert(a="x", n=1)
    yield


def _begun(lake: Lake, schema: TableSchema, mode: Mode, name: str) -> Told:
    told = Told(lake, schema, mode, name)
    with told.source.transaction():
        if schema.key:
            for number in (1, 2, 3, 4):
                told.source.insert(id=number, a=f"a{number}", b=f"b{number}", n=number)
        else:
            for row in ({"a": "x", "n": 1}, {"a": "x", "n": 1}, {"a": "y"}, {"a": "y"}):
                told.source.insert(**row)
    told.copy()
    return told


def _tell(told: Told, story: Story, every: int) -> list[Events]:
    """In rounds of so many parts of the story."""
    rounds = []
    for number, _ in enumerate(story(told.source), 1):
        if number % every == 0:
            rounds.append(told.round())
    rounds.append(told.round())
    return rounds


@pytest.mark.parametrize(
    ("schema", "story"),
    [
        pytest.param(KEYED, keyed_story, id="keyed"),
        pytest.param(KEYED, truncating_story, id="truncates"),
        pytest.param(KEYLESS, copies_story, id="keyless"),
    ],
)
@pytest.mark.parametrize("mode", MODELS)
def test_a_story_in_one_round_and_in_several(
    lake: Lake, schema: TableSchema, story: Story, mode: Mode
) -> None:
    if mode == "scd2" and not schema.key:
        with pytest.raises(DestinationError, match="no key") as caught:
            _begun(lake, schema, mode, "refused")
        assert not caught.value.retry
        return
    whole = _begun(lake, schema, mode, "whole")
    rounds = _tell(whole, story, every=1000)
    whole.check()
    commits = lake.commits(schema, "whole")

    parts = _begun(lake, schema, mode, "parts")
    several = _tell(parts, story, every=2)
    parts.check()

    # What was applied comes again, alone and as the first part of a round.
    whole.destination.write_events(rounds[0])
    parts.destination.write_events(several[0])
    overlapping = replace(rounds[0], span=Span(rounds[0].span.after, several[-1].span.upto))
    parts.destination.write_events(overlapping)
    parts.check()
    whole.check()
    assert lake.commits(schema, "whole") == commits


PAST: tuple[Mode, ...] = ("soft_delete", "history", "scd2")
_TIMES = ("_TIMESTAMP", "_VALID_FROM", "_VALID_TO")


def _without_times(rows: Sequence[Row]) -> list[Row]:
    return [{n: v for n, v in row.items() if n not in _TIMES} for row in rows]


def _noted(told: Told, kind: str, new: Row | None = None, old: Row | None = None) -> None:
    """What a new copy finds is a change at its position, before all others."""
    time = datetime.datetime.now(datetime.UTC)
    told.source.notes.append(Note(kind, int(told.source.position), -1, time, new, old))


def _copied_again(told: Told, schema: TableSchema | None = None) -> None:
    told.source.events(told.lake.spark)
    files, position = [told.source.copy_file()], told.source.position
    told.destination.adopt_files(schema or told.schema, files, position, False)


@pytest.mark.parametrize("mode", PAST)
def test_a_new_copy_keeps_the_past(lake: Lake, mode: Mode) -> None:
    told = _begun(lake, KEYED, mode, "again")
    source = told.source
    with source.transaction():
        source.update(source.find(id=1), n=11)
        source.insert(id=5, a="a5", b="b5", n=5)
        source.delete(source.find(id=2))
    told.round()
    seen = list(source.notes)
    # The log of this is lost.
    with source.transaction():
        source.delete(source.find(id=3))
        source.update(source.find(id=4), a=None)
        source.insert(id=6, a="a6", b="b6", n=6)
        source.insert(id=2, a="again", b=None, n=None)
    source.notes[:] = seen
    for name, old in (("delete", 3), ("update", 4)):
        before = next(row for row in told.copied[0] if row["id"] == old)
        _noted(told, name, source.find(id=4) if name == "update" else None, before)
    _noted(told, "insert", source.find(id=6))
    _noted(told, "insert", source.find(id=2))
    commits = lake.commits(KEYED, "again")
    _copied_again(told)
    assert lake.commits(KEYED, "again") == commits + 1
    assert told.destination.applied(KEYED) == source.position
    assert_same(_without_times(told.rows()), _without_times(told.expected()))
    # Nothing has changed since, and the position is told again.
    _copied_again(told)
    assert_same(_without_times(told.rows()), _without_times(told.expected()))
    with source.transaction():
        source.update(source.find(id=4), unsent=["a", "b"], id=40)
        source.update(source.find(id=6), unsent=["a"], b="new")
        source.delete(source.find(id=2))
    told.round()
    assert_same(_without_times(told.rows()), _without_times(told.expected()))
    for row in told.rows() if mode == "scd2" else ():
        assert row["_CURRENT"] == (row["_VALID_TO"] is None)
        assert (
            row["_CURRENT"] or row["_VALID_FROM"] is None or row["_VALID_TO"] >= row["_VALID_FROM"]
        )


@pytest.mark.parametrize("mode", ["soft_delete", "history"])
def test_a_new_copy_without_a_key_counts(lake: Lake, mode: Mode) -> None:
    told = _begun(lake, KEYLESS, mode, "again")
    source = told.source
    with source.transaction():
        source.delete(source.find(a="x"))
        source.update(source.find(a="y"), a="z")
    told.round()
    with source.transaction():
        source.insert(a="x", n=1)
        source.insert(a="x", n=1)
        source.delete(source.find(a="y"))
    source.notes[-3:] = []
    _noted(told, "insert", {"a": "x", "n": 1})
    _noted(told, "insert", {"a": "x", "n": 1})
    _noted(told, "delete", old={"a": "y", "n": None})
    _copied_again(told)
    with source.transaction():
        source.delete(source.find(a="x"))
    told.round()
    assert_same(_without_times(told.rows()), _without_times(told.expected()))


def test_a_new_copy_of_another_form(lake: Lake) -> None:
    told = _begun(lake, KEYED, "history", "form")
    added = make_schema(
        {"id": "bigint", "a": "string", "bb": "string", "n": "bigint", "c": "int"}, ["id"]
    )
    source = NotedSource(added, lake.folder / "form-log")
    source._lsn = 2000
    with source.transaction():
        for number in (1, 2, 3):
            source.insert(
                id=number, a=f"a{number}", bb=f"b{number}", n=number, c=number % 2 or None
            )
    told.destination.adopt_files(added, [source.copy_file()], source.position, False)
    newest = {row["id"]: row for row in sorted(told.rows(), key=lambda row: row["_LSN"])}
    told_of = {n: (row["_CHANGE_TYPE"], row["bb"], row["c"]) for n, row in newest.items()}
    assert told_of == {
        1: ("update", "b1", 1),
        2: ("copy", "b2", None),
        3: ("update", "b3", 1),
        4: ("delete", "b4", None),
    }
    rows = told.rows()
    other = make_schema(
        {"id": "bigint", "a": "int", "bb": "string", "n": "bigint", "c": "int"}, ["id"]
    )
    source = NotedSource(other, lake.folder / "form-log")
    source._lsn = 3000
    with pytest.raises(DestinationError, match="column a was string, and is int") as caught:
        told.destination.adopt_files(other, [source.copy_file()], source.position, False)
    assert not caught.value.retry
    assert "DROP TABLE" in caught.value.hint
    # Nor is it taken for the table's future what was before it.
    with pytest.raises(DestinationError, match="set back"):
        told.destination.adopt_files(added, [source.copy_file()], Lsn(1500), False)
    assert_same(told.rows(), rows)


def test_switching(lake: Lake) -> None:
    told = _begun(lake, KEYED, "mirror", "switched")
    destination = lake.destination(TablePlan(mode="history"), "switched")
    assert destination.applied(KEYED) is None
    told.mode, told.destination = "history", destination
    told.copy()
    told.check()
    for plan in (TablePlan(mode="mirror"), TablePlan(mode="history", metadata=Metadata(lsn="_AT"))):
        destination = lake.destination(plan, "switched")
        assert destination.applied(KEYED) is None
        told.destination = destination
        with pytest.raises(DestinationError, match="keeps rows that its source has no longer") as e:
            told.copy()
        assert not e.value.retry
    told.check()


def test_metadata_as_it_is_wanted(lake: Lake) -> None:
    own = Metadata("op", "lsn", "at")
    told = Told(lake, KEYED, "mirror", "wanted", TablePlan(metadata=None))
    with told.source.transaction():
        told.source.insert(id=1, a="a1", b="b1", n=1)
    told.copy()
    assert_same(told.rows(), told.source.rows)
    with told.source.transaction():
        told.source.insert(id=2, a="a2", b="b2", n=2)
        told.source.update(told.source.find(id=1), unsent=["a"], b=None)
    told.round()
    assert_same(told.rows(), told.source.rows)
    told.destination = lake.destination(TablePlan(metadata=own), "wanted")
    assert told.destination.applied(KEYED) is None
    told.copy()
    with told.source.transaction():
        told.source.delete(told.source.find(id=1))
    told.round()
    (row,) = told.rows()
    assert (row["op"], row["lsn"], set(row) - set(KEYED.column_names)) == (
        "copy",
        told.copied[1],
        {"op", "lsn", "at"},
    )
    clash = make_schema({"id": "bigint", "op": "string"}, ["id"], name="clash")
    with pytest.raises(DestinationError, match="has a column op") as caught:
        told.destination.adopt_files(clash, [], Lsn(1), False)
    assert not caught.value.retry

    bare = Told(lake, KEYED, "history", "bare", TablePlan(mode="history", metadata=None))
    bare.copy()
    assert {"_CHANGE_TYPE", "_LSN", "_TIMESTAMP", "_SEQ"} <= set(bare.columns())


@pytest.mark.parametrize("mode", MODELS)
def test_keys_that_their_type_cannot_hold(lake: Lake, mode: Mode) -> None:
    far = datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC)
    forever, never = Inexact(far, "infinity"), Inexact(far, "294276-01-01")
    schema = make_schema({"at": "timestamp", "big": "string", "n": "decimal(12,2)"}, ["at"])
    told = Told(lake, schema, mode, "inexact")
    source = told.source
    with source.transaction():
        for key in (far, forever, never):
            source.insert(at=key, big=f"big {key}", n=None)
    told.copy(exact=True)
    with source.transaction():
        source.update(source.find(at=far), unsent=["big"], n=Inexact(None, "NaN"))
        source.update(source.find(at=never), unsent=["big"], at=far.replace(year=2000))
        source.insert(at=never, big="new", n=None)
    told.round()
    with source.transaction():
        source.update(source.find(at=forever), unsent=["big", "n"], at=far.replace(year=2001))
        source.delete(source.find(at=never))
        source.update(source.find(at=far), unsent=["n"], big=None)
    told.round()
    told.check()
