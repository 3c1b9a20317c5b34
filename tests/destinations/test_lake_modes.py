"""What each mode makes of changes, against a model of it that goes row by row."""

from __future__ import annotations

import datetime
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
from walflow.destinations.lake import EXACT, LakeDestination, Owner, TablePlan
from walflow.errors import DestinationError
from walflow.model import Span, TableSchema

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


MODELS: Mapping[Mode, Callable[[TableSchema, Copied, Sequence[Note]], list[Row]]] = {
    "mirror": mirrored,
    "soft_delete": soft_deleted,
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
