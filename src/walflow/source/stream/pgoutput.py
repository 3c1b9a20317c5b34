"""Converts pgoutput messages to Arrow, in columns.

A hand-over of frames holds many messages of many tables and transactions. They are not processed
one by one: array arithmetic finds the types, tables, transactions and positions of all, and each
table's tuples are read column by column, all rows at once. Only rare messages are read singly:
relations and truncates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from walflow.errors import NoReplicaIdentity, ProtocolError
from walflow.model import ChangeStats, ChangeType, Lsn, TableSchema
from walflow.source.codec.cells import Positions
from walflow.source.codec.sparse import names_list, overflow_map
from walflow.source.stream.relation import Relation, parse_relation
from walflow.source.stream.tuples import Image, changed_keys, table_columns, walk
from walflow.source.wire.frames import Frames
from walflow.source.wire.protocol import POSTGRES_EPOCH

__all__ = ["Decoded", "Decoder", "Describe", "TableBatch"]

_BEGIN, _COMMIT, _RELATION, _TYPE, _ORIGIN, _MESSAGE, _TRUNCATE = b"BCRYOMT"
_INSERT, _UPDATE, _DELETE = b"IUD"
_NEW = ord("N")
_MESSAGE_TYPES = np.zeros(256, bool)
_MESSAGE_TYPES[list(b"BCRYOMTIUD")] = True
_ROW_CHANGE = np.zeros(256, bool)
_ROW_CHANGE[list(b"IUD")] = True

_CHANGE_TYPES = pa.array([kind.value for kind in ChangeType])
_CODE = np.zeros(256, np.int8)
_CODE[_INSERT], _CODE[_UPDATE], _CODE[_DELETE], _CODE[_TRUNCATE] = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class TableBatch:
    """Changes of one table in one schema version, in order, as rows of the change log."""

    schema: TableSchema
    batch: pa.RecordBatch
    stats: ChangeStats


@dataclass(frozen=True, slots=True)
class Decoded:
    """The result of one hand-over."""

    tables: tuple[TableBatch, ...]
    changes: int
    messages: int
    transactions: int
    """How many transactions ended in it."""
    position: Lsn | None
    """The end of the last transaction that ended in it."""
    commit_time: int
    """When that transaction committed, in microseconds since 1970."""
    in_transaction: bool
    """Whether a transaction is open after the last message."""


@dataclass(frozen=True, slots=True)
class _Transactions:
    """The transactions in a hand-over, and which of them each message belongs to."""

    of_message: npt.NDArray[np.int64]
    xid: npt.NDArray[np.int64]
    lsn: npt.NDArray[np.int64]
    time: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Open:
    """A transaction whose commit has not come yet."""

    xid: int
    lsn: int
    time: int
    changes: int


Describe = Callable[[Relation, Lsn, TableSchema | None], TableSchema | None]


class Decoder:
    """Turns frames into batches. Keeps the protocol's state: tables' schemas, and the open
    transaction.

    One decoder serves one connection at a time: ``reset`` it after reconnecting.
    """

    def __init__(self, describe: Describe) -> None:
        """``describe`` gives the schema for a relation message in the transaction that commits at
        the given position. Its third argument is the table's schema so far on this connection.
        None: the table's changes are skipped until the next relation message."""
        self._describe = describe
        self._schemas: dict[int, TableSchema | None] = {}
        self._open: _Open | None = None

    def reset(self) -> None:
        """Start with a new connection: it sends relations again, and starts with a whole
        transaction."""
        self._schemas.clear()
        self._open = None

    def decode(self, frames: Frames) -> Decoded:
        types = frames.data[frames.start]
        if not _MESSAGE_TYPES[types].all():
            index = int(np.flatnonzero(~_MESSAGE_TYPES[types])[0])
            raise ProtocolError(
                f"unknown message of type {chr(types[index])!r} in the replication stream",
                hint="Please report this with the server's version.",
            )
        wide = _Wide(frames.data)
        transactions = self._transactions(frames, types, wide)
        is_change = _ROW_CHANGE[types] | (types == _TRUNCATE)
        seq = self._sequence(types, is_change, transactions)
        tables = self._tables(frames, types, wide, transactions, seq)
        commits = np.flatnonzero(types == _COMMIT)
        position, commit_time = None, 0
        if len(commits):
            at = frames.start[commits[-1]]
            position = Lsn(int(wide.int64[at + 10]))
            commit_time = int(wide.int64[at + 18]) + POSTGRES_EPOCH
        self._keep_open(types, transactions, seq, is_change)
        return Decoded(
            tables=tuple(tables),
            changes=int(is_change.sum()),
            messages=len(frames),
            transactions=len(commits),
            position=position,
            commit_time=commit_time,
            in_transaction=self._open is not None,
        )

    def _transactions(
        self, frames: Frames, types: npt.NDArray[np.uint8], wide: _Wide
    ) -> _Transactions:
        begins = types == _BEGIN
        at = frames.start[begins]
        of_message = np.cumsum(begins) - 1
        lsn, time, xid = wide.int64[at + 1], wide.int64[at + 9], wide.int32[at + 17]
        if self._open is not None:
            of_message += 1
            lsn = np.concatenate([[self._open.lsn], lsn])
            time = np.concatenate([[self._open.time], time])
            xid = np.concatenate([[self._open.xid], xid])
        elif len(of_message) and of_message[0] < 0 and _ROW_CHANGE[types[0]]:
            raise ProtocolError("a change came outside any transaction")
        return _Transactions(
            of_message,
            xid.astype(np.int64) & 0xFFFFFFFF,
            lsn.astype(np.int64),
            time.astype(np.int64),
        )

    def _sequence(
        self,
        types: npt.NDArray[np.uint8],
        is_change: npt.NDArray[np.bool_],
        transactions: _Transactions,
    ) -> npt.NDArray[np.int64]:
        """The order of each change inside its transaction, counted from 0."""
        counted: npt.NDArray[np.int64] = np.cumsum(is_change)
        base: npt.NDArray[np.int64] = counted[types == _BEGIN]
        if self._open is not None:
            base = np.concatenate([[-self._open.changes], base])
        if not len(base):
            return counted - 1
        order: npt.NDArray[np.int64] = counted - 1 - base[transactions.of_message]
        return order

    def _keep_open(
        self,
        types: npt.NDArray[np.uint8],
        transactions: _Transactions,
        seq: npt.NDArray[np.int64],
        is_change: npt.NDArray[np.bool_],
    ) -> None:
        borders = np.flatnonzero((types == _BEGIN) | (types == _COMMIT))
        if len(borders) and types[borders[-1]] == _COMMIT:
            self._open = None
            return
        if not len(transactions.lsn):
            return
        last = len(transactions.lsn) - 1
        changes = np.flatnonzero(is_change & (transactions.of_message == last))
        if len(changes):
            count = int(seq[changes[-1]]) + 1
        else:
            count = self._open.changes if self._open is not None and last == 0 else 0
        self._open = _Open(
            int(transactions.xid[last]),
            int(transactions.lsn[last]),
            int(transactions.time[last]),
            count,
        )

    def _tables(
        self,
        frames: Frames,
        types: npt.NDArray[np.uint8],
        wide: _Wide,
        transactions: _Transactions,
        seq: npt.NDArray[np.int64],
    ) -> list[TableBatch]:
        rows = np.flatnonzero(_ROW_CHANGE[types])
        oids = wide.int32[frames.start[rows] + 1].astype(np.int64) & 0xFFFFFFFF
        truncates = self._truncates(frames, types)
        schemas = self._schemas_in_order(frames, types, transactions)
        order = np.argsort(oids, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(oids[order])) + 1) if len(order) else []
        batches = []
        by_table = {int(oids[group[0]]): rows[group] for group in groups}
        for oid in dict.fromkeys([*by_table, *truncates]):
            messages = by_table.get(oid, np.empty(0, np.int64))
            truncated = np.array(truncates.get(oid, []), np.int64)
            versions = schemas.get(oid)
            if versions is None:
                raise ProtocolError(f"a change of table {oid} came before its description")
            for place, (first, schema) in enumerate(versions):
                until = versions[place + 1][0] if place + 1 < len(versions) else len(types)
                part = messages[(messages >= first) & (messages < until)]
                emptied = truncated[(truncated >= first) & (truncated < until)]
                if schema is not None and (len(part) or len(emptied)):
                    batches.append(
                        _table_batch(schema, frames, types, wide, transactions, seq, part, emptied)
                    )
        return batches

    def _schemas_in_order(
        self, frames: Frames, types: npt.NDArray[np.uint8], transactions: _Transactions
    ) -> dict[int, list[tuple[int, TableSchema | None]]]:
        """For each table, which schema applies from which message on."""
        schemas: dict[int, list[tuple[int, TableSchema | None]]] = {
            oid: [(-1, schema)] for oid, schema in self._schemas.items()
        }
        for index in np.flatnonzero(types == _RELATION):
            relation = parse_relation(frames.message(int(index)))
            former = self._schemas.get(relation.oid)
            lsn = Lsn(int(transactions.lsn[transactions.of_message[index]]))
            # Also if the message is the same again: a column that was dropped and made anew looks
            # like the former one.
            schema = self._describe(relation, lsn, former)
            if (
                former is not None
                and schema is not None
                and schema.version == lsn <= former.version
                and schema != former
            ):
                # A second schema in one transaction needs a version of its own.
                schema = replace(schema, version=Lsn(former.version + 1))
            if relation.oid not in self._schemas or former != schema:
                schemas.setdefault(relation.oid, []).append((int(index), schema))
            self._schemas[relation.oid] = schema
        return schemas

    def _truncates(self, frames: Frames, types: npt.NDArray[np.uint8]) -> dict[int, list[int]]:
        """For each table, the messages that truncate it (one message may name several)."""
        truncates: dict[int, list[int]] = {}
        for index in np.flatnonzero(types == _TRUNCATE):
            message = frames.message(int(index))
            count = int.from_bytes(message[1:5], "big")
            for place in range(count):
                oid = int.from_bytes(message[6 + 4 * place : 10 + 4 * place], "big")
                truncates.setdefault(oid, []).append(int(index))
        return truncates


class _Wide:
    """Big-endian integers at any byte position of a buffer, as array views."""

    __slots__ = ("int32", "int64")

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        self.int32: npt.NDArray[np.int32] = np.ndarray(
            (max(len(data) - 3, 0),), ">i4", data, strides=(1,)
        )
        self.int64: npt.NDArray[np.int64] = np.ndarray(
            (max(len(data) - 7, 0),), ">i8", data, strides=(1,)
        )


def _table_batch(
    schema: TableSchema,
    frames: Frames,
    types: npt.NDArray[np.uint8],
    wide: _Wide,
    transactions: _Transactions,
    seq: npt.NDArray[np.int64],
    messages: Positions,
    truncates: Positions,
) -> TableBatch:
    kinds = types[messages]
    at = frames.start[messages]
    mark = frames.data[at + 5]
    # Behind the tag and the tuple's column count: where the first cell of each row lies.
    cells_at = at + 8
    with_old = np.flatnonzero((kinds == _UPDATE) & (mark != _NEW))
    old: Image | None = None
    if len(with_old):
        old, behind = walk(frames.data, wide.int32, cells_at[with_old], len(schema.columns))
        cells_at[with_old] = behind + 3
    _check_identity(schema, kinds)
    new, _ = walk(frames.data, wide.int32, cells_at, len(schema.columns))
    if old is not None:
        new = new.filled_from(old, with_old)
    converted = table_columns(schema.columns, new)
    columns = dict(zip(schema.column_names, converted.values, strict=True))
    texts = converted.overflow
    sparse: dict[str, pa.Array] = {}
    key_changes = 0
    if old is not None:
        replaced = changed_keys(schema, old, with_old, converted, len(messages))
        if replaced is not None:
            sparse["_old"] = replaced.values
            key_changes = len(messages) - replaced.values.null_count
            texts = texts | replaced.overflow
    unchanged = names_list(schema.column_names, new.unchanged)
    if unchanged is not None:
        sparse["_unchanged"] = unchanged
    inserted = kinds == _INSERT
    incomplete = any((unsent & inserted).any() for unsent in new.unchanged.values())
    overflow = overflow_map(texts)
    if overflow is not None:
        sparse["_exact"] = overflow
    every = messages
    codes = _CODE[kinds]
    if len(truncates):
        # Truncates are rows without values; all go back into the stream's order.
        every = np.concatenate([messages, truncates])
        order = np.argsort(every, kind="stable")
        places = np.where(order < len(messages), order, -1)
        take = pa.array(places, mask=places < 0)
        columns = {name: values.take(take) for name, values in columns.items()}
        sparse = {name: values.take(take) for name, values in sparse.items()}
        codes = np.concatenate([codes, np.full(len(truncates), _CODE[_TRUNCATE])])[order]
        every = every[order]
    transaction = transactions.of_message[every]
    lsn = transactions.lsn[transaction]
    row_seq = seq[every]
    head: dict[str, pa.Array] = {
        "_change_type": pa.DictionaryArray.from_arrays(pa.array(codes), _CHANGE_TYPES),
        "_lsn": pa.array(lsn),
        "_seq": pa.array(row_seq),
        "_timestamp": pa.array(
            transactions.time[transaction] + POSTGRES_EPOCH, pa.timestamp("us", "UTC")
        ),
        "_xid": pa.array(transactions.xid[transaction]),
    }
    count = np.bincount(codes, minlength=4)
    last_truncate = None
    if len(truncates):
        last = int(np.flatnonzero(codes == _CODE[_TRUNCATE])[-1])
        last_truncate = (int(lsn[last]), int(row_seq[last]))
    stats = ChangeStats(
        rows=len(codes),
        inserts=int(count[0]),
        updates=int(count[1]),
        deletes=int(count[2]),
        truncates=int(count[3]),
        key_changes=key_changes,
        unchanged=unchanged is not None,
        overflow=overflow is not None,
        incomplete=incomplete,
        last_truncate=last_truncate,
    )
    arrays = {**head, **sparse, **columns}
    batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    return TableBatch(schema, batch, stats)


def _check_identity(schema: TableSchema, kinds: npt.NDArray[np.uint8]) -> None:
    if schema.key or schema.replica_identity == "f" or not (kinds != _INSERT).any():
        return
    raise NoReplicaIdentity(
        f"table {schema.name} has no replica identity, but an update or delete of it arrived",
        hint=f"ALTER TABLE {schema.name.quoted} REPLICA IDENTITY FULL; or give it a primary key.",
    )
