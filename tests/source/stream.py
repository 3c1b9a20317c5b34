"""A recorded stream of a real server, and a second decoder, a row at a time, to compare with.

The second decoder is written from the protocol's documentation ("Logical Replication Message
Formats"), shares nothing with walflow's own, and is as plain as can be.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np

from tests.conftest import Database
from walflow.config import TypeSettings
from walflow.model import Lsn, TableSchema
from walflow.source.catalog.published_tables import describe_relation
from walflow.source.catalog.types import TypeCatalog
from walflow.source.codec.cells import pad
from walflow.source.connection import Session
from walflow.source.stream.pgoutput import Decoded, Decoder, Describe
from walflow.source.stream.relation import Relation
from walflow.source.wire.frames import Frames

Row = dict[str, Any]

EPOCH = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
META = ("_change_type", "_lsn", "_seq", "_timestamp", "_xid", "_unchanged", "_old", "_exact")


class Recorder:
    """A slot on a database; ``messages`` takes what was written since the last call."""

    def __init__(self, database: Database, publication: str = "p", slot: str = "recorder") -> None:
        self._database = database
        self._publication = publication
        self._slot = f"{slot}_{database.name}"
        database.execute(f"SELECT pg_create_logical_replication_slot('{self._slot}', 'pgoutput')")

    def messages(self, **options: str) -> list[bytes]:
        wanted = {"proto_version": "1", "publication_names": self._publication, **options}
        flat = ", ".join(f"'{part}'" for option in wanted.items() for part in option)
        rows = self._database.execute(
            f"SELECT data FROM pg_logical_slot_get_binary_changes('{self._slot}', NULL, NULL,"
            f" {flat})"
        )
        return [bytes(row[0]) for row in rows]


def frames_of(messages: Sequence[bytes]) -> Frames:
    """Frames as a connection delivers them: other bytes lie before each message."""
    data = bytearray()
    start, end = [], []
    for message in messages:
        data += b"\xffheader"
        start.append(len(data))
        data += message
        end.append(len(data))
    return Frames(pad(data), np.array(start, np.int64), np.array(end, np.int64))


def describer(session: Session) -> Describe:
    types = TypeCatalog(session)

    def describe(relation: Relation, lsn: Lsn, known: TableSchema | None) -> TableSchema:
        described = describe_relation(
            session, relation, types, TypeSettings(), version=lsn, before=known
        )
        return known if known is not None and known.same_columns(described) else described

    return describe


@dataclass(slots=True)
class Rows:
    """Decoded changes as Python rows, table by table; and checks on what was decoded."""

    of_table: dict[str, list[Row]] = field(default_factory=dict)
    versions: dict[str, list[int]] = field(default_factory=dict)
    """For each row the version of its schema."""
    position: Lsn | None = None
    transactions: int = 0
    messages: int = 0
    changes: int = 0

    def add(self, decoded: Decoded) -> None:
        self.position = decoded.position or self.position
        self.transactions += decoded.transactions
        self.messages += decoded.messages
        self.changes += decoded.changes
        for table in decoded.tables:
            table.batch.validate(full=True)
            rows = [as_row(row) for row in table.batch.to_pylist()]
            assert rows, "an empty batch"
            name = table.schema.name.name
            self.of_table.setdefault(name, []).extend(rows)
            self.versions.setdefault(name, []).extend([int(table.schema.version)] * len(rows))
            check_stats(table.stats, rows)


def as_row(raw: Row) -> Row:
    """A row of the log with all optional columns, and maps as dictionaries."""
    row = {name: raw.get(name) for name in META} | {
        name: value for name, value in raw.items() if name not in META
    }
    if row["_exact"] is not None:
        row["_exact"] = dict(row["_exact"])
    return row


def check_stats(stats: Any, rows: list[Row]) -> None:
    kinds = [row["_change_type"] for row in rows]
    assert stats.rows == len(rows)
    assert stats.inserts == kinds.count("insert")
    assert stats.updates == kinds.count("update")
    assert stats.deletes == kinds.count("delete")
    assert stats.truncates == kinds.count("truncate")
    assert stats.key_changes == sum(row["_old"] is not None for row in rows)
    assert stats.unchanged == any(row["_unchanged"] for row in rows)
    assert stats.overflow == any(row["_exact"] for row in rows)
    last = [(r["_lsn"], r["_seq"]) for r in rows if r["_change_type"] == "truncate"]
    assert stats.last_truncate == (last[-1] if last else None)


def decode_pieces(decoder: Decoder, pieces: Iterable[Sequence[bytes]]) -> Rows:
    rows = Rows()
    for piece in pieces:
        rows.add(decoder.decode(frames_of(piece)))
    return rows


# -- the second decoder ---------------------------------------------------------------------------


@dataclass(slots=True)
class _Table:
    name: str
    identity: str
    columns: list[tuple[str, int, bool]]


@dataclass(slots=True)
class _Reader:
    data: bytes
    at: int = 1

    def take(self, form: str) -> Any:
        (value,) = struct.unpack_from("!" + form, self.data, self.at)
        self.at += struct.calcsize("!" + form)
        return value

    def text(self) -> str:
        end = self.data.index(b"\0", self.at)
        value = self.data[self.at : end].decode()
        self.at = end + 1
        return value

    def letter(self) -> str:
        return str(self.take("c").decode())

    def cells(self) -> list[tuple[str, str | None]]:
        found: list[tuple[str, str | None]] = []
        for _ in range(self.take("h")):
            kind = self.letter()
            if kind == "t":
                size = self.take("i")
                found.append(("t", self.data[self.at : self.at + size].decode()))
                self.at += size
            else:
                assert kind in "nu"
                found.append((kind, None))
        return found


_VALUES: dict[int, Callable[[str], Any]] = {
    16: lambda text: text == "t",
    20: int,
    21: int,
    23: int,
    1700: Decimal,
    17: lambda text: bytes.fromhex(text[2:]),
}


class ReferenceDecoder:
    """Rows as the change log has them. ``key_of`` names a table's key columns if whole rows are
    logged (the stream does not tell them then)."""

    def __init__(self, key_of: Callable[[str], Sequence[str]] = lambda name: ()) -> None:
        self._key_of = key_of
        self._tables: dict[int, _Table] = {}
        self._lsn = self._time = self._xid = self._seq = 0
        self.rows: dict[str, list[Row]] = {}

    def feed(self, messages: Iterable[bytes]) -> None:
        for message in messages:
            kind, reader = chr(message[0]), _Reader(message)
            if kind == "B":
                self._lsn, self._time, self._xid = (reader.take(f) for f in "QqI")
                self._seq = 0
            elif kind == "R":
                self._relation(reader)
            elif kind == "T":
                self._truncate(reader)
            elif kind in "IUD":
                self._change(kind, reader)
                self._seq += 1
            else:
                assert kind in "CYOM", kind

    def _relation(self, reader: _Reader) -> None:
        oid = reader.take("I")
        reader.text()
        table = _Table(reader.text(), reader.letter(), [])
        for _ in range(reader.take("h")):
            flags = reader.take("b")
            name = reader.text()
            type_oid = reader.take("I")
            reader.take("i")
            table.columns.append((name, type_oid, bool(flags & 1)))
        self._tables[oid] = table

    def _truncate(self, reader: _Reader) -> None:
        count = reader.take("i")
        reader.take("b")
        for _ in range(count):
            table = self._tables[reader.take("I")]
            self._emit(table, "truncate", [("n", None)] * len(table.columns))
        self._seq += 1

    def _change(self, kind: str, reader: _Reader) -> None:
        table = self._tables[reader.take("I")]
        if kind == "I":
            assert reader.letter() == "N"
            self._emit(table, "insert", reader.cells())
        elif kind == "D":
            assert reader.letter() in "KO"
            self._emit(table, "delete", reader.cells())
        else:
            mark = reader.letter()
            old = None
            if mark in "KO":
                old = reader.cells()
                mark = reader.letter()
            assert mark == "N"
            new = reader.cells()
            if old is not None:
                new = [
                    o if n[0] == "u" and o[0] == "t" else n for n, o in zip(new, old, strict=True)
                ]
            self._emit(table, "update", new, old)
        assert reader.at == len(reader.data)

    def _emit(
        self,
        table: _Table,
        kind: str,
        cells: list[tuple[str, str | None]],
        old: list[tuple[str, str | None]] | None = None,
    ) -> None:
        names = [name for name, _, _ in table.columns]
        if table.identity == "f":
            key = [name for name in names if name in self._key_of(table.name)]
        else:
            key = [name for name, _, in_key in table.columns if in_key]
        values = self._values(table, cells)
        unchanged = [name for name, (kind_, _) in zip(names, cells, strict=True) if kind_ == "u"]
        replaced = None
        if old is not None:
            before = self._values(table, old)
            if not key or any(before[name] != values[name] for name in key):
                replaced = {name: before[name] for name in (key or names)}
        row: Row = {
            "_change_type": kind,
            "_lsn": self._lsn,
            "_seq": self._seq,
            "_timestamp": EPOCH + datetime.timedelta(microseconds=self._time),
            "_xid": self._xid,
            "_unchanged": unchanged or None,
            "_old": replaced,
            "_exact": None,
        }
        self.rows.setdefault(table.name, []).append(row | values)

    @staticmethod
    def _values(table: _Table, cells: list[tuple[str, str | None]]) -> Row:
        return {
            name: None if text is None else _VALUES.get(type_oid, str)(text)
            for (name, type_oid, _), (_, text) in zip(table.columns, cells, strict=True)
        }
