"""Net changes in columns: Arrow reads the log's files and settles them in this process.

A job of Spark's costs some tenths of a second, and a MERGE goes through rows; mostly, what a key
comes to is just its last change, and that is found in columns for a tenth of the CPU. Whatever else
can happen is left to Spark (see walflow.spark.net).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from walflow.destinations.base import TableChanges
from walflow.destinations.lake.table_schema import LakeTableSchema
from walflow.model import ChangeType, Column
from walflow.spark.row_identity import may_be_inexact

__all__ = ["ColumnarChanges", "are_plain", "columnar_changes"]

_MOST_ROWS = 4_000_000
_MOST_BYTES = 1 << 30
"""Of a round in memory; what is larger is left to Spark, which can put it on disk."""

_ORIGIN = ("_change_type", "_lsn", "_timestamp")

_COMPARABLE = ("boolean", "tinyint", "smallint", "int", "bigint", "string", "binary")
"""Types whose values are the same key exactly if they have the same bytes."""
_INEXACT_COMPARABLE = ("date", "timestamp", "timestamp_ntz", "decimal")


@dataclass(frozen=True, slots=True)
class ColumnarChanges:
    """What changes come to: none of the rows with the keys is left, and the rows come."""

    keys: pa.Table
    """The key's columns, of every row that was touched; empty if nothing was there before."""
    rows: pa.Table
    """All columns of the source."""
    origins: pa.Table
    """``_change_type``, ``_lsn`` and ``_timestamp`` of the rows' last change."""
    unsent: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    """By column, the rows whose value no change tells: it is the one that the table has."""


def columnar_changes(changes: TableChanges) -> ColumnarChanges:
    """What the changes, which are plain, come to."""
    table = _in_order(_read(changes))
    return _inserted(table, changes) if _only_inserts(changes) else _settled(table, changes)


def are_plain(changes: TableChanges, lake_schema: LakeTableSchema) -> bool:
    """Whether every change tells a row under the key that it has from first to last, or whole, or
    the key of one that is gone; and all of them fit into memory."""
    stats = changes.stats
    return (
        bool(changes.schema.key)
        and all(_is_comparable(column, lake_schema) for column in changes.schema.key_columns)
        and bool(changes.files)
        and not (changes.former or stats.truncates or stats.overflow or stats.incomplete)
        # Values that stay may have exact texts that stay with them.
        and not (stats.unchanged and (stats.key_changes or lake_schema.overflow))
        and stats.rows <= _MOST_ROWS
        and _bytes(changes) <= _MOST_BYTES
    )


def _is_comparable(column: Column, lake_schema: LakeTableSchema) -> bool:
    kind = column.spark_type.partition("(")[0]
    if kind in _INEXACT_COMPARABLE:
        # Two keys that the type cannot hold look the same.
        return not (lake_schema.overflow and may_be_inexact(column))
    return kind in _COMPARABLE


def _only_inserts(changes: TableChanges) -> bool:
    return changes.stats.inserts == changes.stats.rows and not changes.stats.unchanged


def _bytes(changes: TableChanges) -> int:
    """About what they need in memory, where a null takes as much as a number."""
    files = map(pq.read_metadata, changes.files)
    groups = (file.row_group(number) for file in files for number in range(file.num_row_groups))
    width = 8 * len(changes.schema.columns)
    return sum(max(group.total_byte_size, group.num_rows * width) for group in groups)


def _read(changes: TableChanges) -> pa.Table:
    wanted = [*_ORIGIN, "_seq", *changes.schema.column_names]
    if changes.stats.key_changes:
        wanted.append("_old")
    if changes.stats.unchanged:
        wanted.append("_unchanged")
    read = pa.concat_tables(
        [_read_columns(file, wanted) for file in changes.files], promote_options="permissive"
    )
    if changes.after:
        read = read.filter(pc.greater_equal(read["_lsn"], int(changes.after)))
    return read


def _read_columns(path: str, names: Sequence[str]) -> pa.Table:
    """Columns that the file lacks are null."""
    with pq.ParquetFile(path) as file:
        read = file.read(columns=list(names))
    have = set(read.column_names)
    columns = [read[name] if name in have else pa.nulls(read.num_rows) for name in names]
    return pa.table(columns, names=list(names))


def _in_order(changes: pa.Table) -> pa.Table:
    """The log is written in order, file by file; that is cheap to make sure of."""
    lsn, seq = changes["_lsn"].to_numpy(), changes["_seq"].to_numpy()
    step, tie = np.diff(lsn), np.diff(seq)
    if np.all((step > 0) | ((step == 0) & (tie > 0))):
        return changes
    return changes.take(np.lexsort((seq, lsn)))


def _inserted(table: pa.Table, changes: TableChanges) -> ColumnarChanges:
    """The position proves that none of them is there yet."""
    keys = table.slice(0, 0).select(list(changes.schema.key))
    return ColumnarChanges(keys, _rows(table, changes), table.select(list(_ORIGIN)))


def _settled(table: pa.Table, changes: TableChanges) -> ColumnarChanges:
    """A key's last change is what it comes to."""
    key = list(changes.schema.key)
    keys, moments = table.select(key), _moments(table)
    if changes.stats.key_changes:
        left, when = _departures(table, moments, key)
        keys = pa.concat_tables([keys, left])
        moments = np.concatenate([moments, when])
    codes = _codes(keys)
    last = _last_of_each(codes, moments)
    moment = np.sort(moments[last])
    arrived = (moment // 2)[moment % 2 == 1]
    told = np.asarray(pc.not_equal(table["_change_type"], ChangeType.DELETE.value))
    at = arrived[told[arrived]]
    rows = _rows(table.take(at), changes)
    unsent: dict[str, npt.NDArray[np.bool_]] = {}
    if changes.stats.unchanged:
        rows, unsent = _filled(rows, table, codes, told, at)
    return ColumnarChanges(keys.take(last), rows, table.select(list(_ORIGIN)).take(at), unsent)


def _filled(
    rows: pa.Table,
    table: pa.Table,
    codes: npt.NDArray[np.int64],
    told: npt.NDArray[np.bool_],
    at: npt.NDArray[np.int64],
) -> tuple[pa.Table, dict[str, npt.NDArray[np.bool_]]]:
    """The rows, which are the changes at these places, with values that were not sent with them,
    from the newest change of the key that tells them; and where there is none.

    (A change of a row that had the key before is no newer than the insert of this one, which tells
    all of it.)
    """
    unsent = {}
    for name, left_out in _left_out(table["_unchanged"]).items():
        if not left_out[at].any():
            continue
        newest = np.full(int(codes.max()) + 1, -1, dtype=np.int64)
        tells = np.flatnonzero(told & ~left_out)
        newest[codes[tells]] = tells
        source = np.where(left_out[at], newest[codes[at]], at)
        nowhere = source < 0
        values = table[name].take(pa.array(source, mask=nowhere))
        rows = rows.set_column(rows.schema.get_field_index(name), name, values)
        if nowhere.any():
            unsent[name] = nowhere
    return rows, unsent


def _left_out(unchanged: pa.ChunkedArray) -> dict[str, npt.NDArray[np.bool_]]:
    """By column, the changes that it was not sent with."""
    if pa.types.is_null(unchanged.type):
        return {}
    lists = unchanged.combine_chunks()
    names, owners = pc.list_flatten(lists), np.asarray(pc.list_parent_indices(lists))
    found = {}
    for name in names.unique().to_pylist():
        found[name] = np.zeros(len(lists), dtype=bool)
        found[name][owners[np.asarray(pc.equal(names, name))]] = True
    return found


def _moments(table: pa.Table) -> npt.NDArray[np.int64]:
    """When each change happened. A change of key happens at both keys: at the one that the row
    leaves, a moment before."""
    return np.arange(table.num_rows, dtype=np.int64) * 2 + 1


def _last_of_each(
    codes: npt.NDArray[np.int64], moments: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """For each key, where it is with its last moment."""
    order = np.argsort(moments, kind="stable")
    last = np.zeros(int(codes.max(initial=-1)) + 1, dtype=np.int64)
    last[codes[order]] = order  # of those with the same code, the last one stays
    return last


def _codes(keys: pa.Table) -> npt.NDArray[np.int64]:
    """A number for each row: the same for the same key, from 0 on."""
    codes, *others = map(_numbered, keys.columns)
    for more in others:
        # Numbered again, so that they never grow beyond what a number can be.
        codes = _numbered(pa.chunked_array([codes * (more.max(initial=0) + 1) + more]))
    return codes


def _numbered(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    values = column.combine_chunks()
    if values.null_count:
        raise ValueError("a key has a null")
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    indices = values.dictionary_encode().indices
    return np.asarray(indices.to_numpy(zero_copy_only=False), dtype=np.int64)


def _departures(
    table: pa.Table, moments: npt.NDArray[np.int64], key: Sequence[str]
) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """The keys that rows left for another one, or for the same, and when."""
    updated = pc.equal(table["_change_type"], ChangeType.UPDATE.value)
    moved = pc.and_(updated, pc.is_valid(table["_old"])).combine_chunks()
    old = table["_old"].combine_chunks().filter(moved)
    # By number: a name may look like a path.
    columns = [
        pc.struct_field(old, [old.type.get_field_index(name)]).cast(table.schema.field(name).type)
        for name in key
    ]
    return pa.table(columns, names=list(key)), moments[moved.to_numpy(zero_copy_only=False)] - 1


def _rows(table: pa.Table, changes: TableChanges) -> pa.Table:
    return table.select(list(changes.schema.column_names))
