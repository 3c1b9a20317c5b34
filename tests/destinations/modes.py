"""What each mode is to make of changes, row by row; and tables to hold against it."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.destinations.reference import (
    Inexact,
    Row,
    Source,
    assert_same,
    copy_of,
    make_schema,
    reading_session,
)
from walflow.config.lake import Mode
from walflow.destinations.base import TableChanges
from walflow.destinations.iceberg import IcebergFormat, table_identifier
from walflow.destinations.lake import EXACT, LakeDestination, Owner, TablePlan
from walflow.model import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        self.states: list[tuple[datetime.datetime, list[Row]]] = []
        """What a reader saw after each transaction, and when."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with super().transaction():
            yield
        if self.notes:
            self.states.append((self.notes[-1].time, list(self.rows)))

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
    sessions: dict[str, SparkSession] = field(default_factory=dict)
    version: int = 3
    """Of Iceberg's format."""

    def destination(self, plan: TablePlan, name: str) -> LakeDestination:
        """One with a folder of its own."""
        format = IcebergFormat(str(self.folder / name), version=self.version)
        made = LakeDestination(self.spark, format, OWNER, lambda table: plan)
        self.open.append(made)
        return made

    def session(self, name: str) -> SparkSession:
        """One that reads the folder."""
        if name not in self.sessions:
            self.sessions[name] = reading_session(self.spark, self.folder / name)
        return self.sessions[name]

    def rows(self, schema: TableSchema, name: str) -> list[Row]:
        """With our columns, and the times of copies left out."""
        table = self.session(name).table(table_identifier(schema.name)).toArrow()
        return [_as_in_models(row) for row in table.to_pylist()]

    def columns(self, schema: TableSchema, name: str) -> list[str]:
        return self.session(name).table(table_identifier(schema.name)).columns

    def commits(self, schema: TableSchema, name: str) -> int:
        return self.session(name).table(f"{table_identifier(schema.name)}.snapshots").count()


def _as_in_models(row: Row) -> Row:
    row = {
        name: v.astimezone(datetime.UTC) if isinstance(v, datetime.datetime) and v.tzinfo else v
        for name, v in row.items()
    }
    texts = dict(row.pop(EXACT, None) or [])
    if row.get("_CHANGE_TYPE") == "copy":
        row |= {name: COPY_TIME for name in ("_TIMESTAMP", "_VALID_FROM") if name in row}
    return {n: Inexact(v, texts[n]) if n in texts else v for n, v in row.items()}


class Told:
    """A story, applied to a table in batches."""

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

    def copy(self, overflow: bool = False) -> None:
        self.source.events(self.lake.spark)
        self.copied = ([dict(row) for row in self.source.rows], int(self.source.position))
        self.source.notes.clear()
        self.source.states.clear()
        files = [self.source.copy_file(overflow)]
        self.destination.copy(copy_of(self.schema, files, self.source.position, overflow))

    def batch(self) -> TableChanges:
        events = self.source.events(self.lake.spark)
        self.destination.apply(events)
        return events

    def rows(self) -> list[Row]:
        return self.lake.rows(self.schema, self.name)

    def columns(self) -> list[str]:
        return self.lake.columns(self.schema, self.name)

    def expected(self) -> list[Row]:
        return MODELS[self.mode](self.schema, self.copied, self.source.notes)

    def check(self) -> None:
        assert_same(self.rows(), self.expected())


def begun(lake: Lake, schema: TableSchema, mode: Mode, name: str) -> Told:
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
