"""The change log's rows, read by Arrow, all in the table's present schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from walflow.arrow_types import arrow_type
from walflow.destinations.base import TableChanges
from walflow.destinations.lake.netting.comparable import spread
from walflow.destinations.lake.netting.overflow import OVERFLOW, own_and_old_texts
from walflow.destinations.lake.table_schema import EXACT
from walflow.evolution import Evolution
from walflow.model import ChangeType, Column, TableSchema

__all__ = ["ORIGIN", "LogRows", "read_log"]

ORIGIN = ("_change_type", "_lsn", "_timestamp")
"""The columns that identify the change a row comes from."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LogRows:
    """Changes of rows since the last truncate, in their order."""

    origins: pa.Table
    """The columns of ORIGIN."""
    seq: npt.NDArray[np.int64]
    rows: pa.Table
    """The source's columns, and if some row may have overflow texts, these."""
    old: pa.Table
    """The row's identity before the change, where the log has it."""
    had_old: Mask
    unsent: Mapping[str, Mask]
    """By column, the changes that it was not sent with; columns of which there are none are not
    there."""
    truncated: bool
    """Whether nothing is left of what was there before."""

    def is_kind(self, kind: ChangeType) -> Mask:
        return np.asarray(pc.equal(self.origins["_change_type"], kind.value), dtype=bool)


def read_log(changes: TableChanges, *, overflow: bool) -> LogRows:
    """``overflow``: whether rows are to have a column of overflow texts."""
    schema = changes.schema
    ways = [(part.files, part.evolution) for part in changes.former]
    ways.append((changes.files, Evolution(schema, schema)))
    parts = [
        _in_schema(_read_file(path, evolution.before, changes), evolution, overflow)
        for files, evolution in ways
        for path in files
    ]
    flat = pa.concat_tables(parts, promote_options="default")
    if changes.after:
        flat = flat.filter(pc.greater_equal(flat["_lsn"], int(changes.after)))
    flat = _in_order(flat)
    emptied = np.flatnonzero(
        np.asarray(pc.equal(flat["_change_type"], ChangeType.TRUNCATE.value), dtype=bool)
    )
    if len(emptied):
        flat = flat.slice(int(emptied[-1]) + 1)
    flat = flat.combine_chunks()
    return LogRows(
        flat.select(list(ORIGIN)),
        flat["_seq"].to_numpy(),
        _columns(flat, "", schema, schema.columns),
        _columns(flat, "old ", schema, schema.identity_columns),
        _mask(flat, "had old"),
        {c.name: mask for c, mask in _unsent(flat, schema) if mask.any()},
        bool(len(emptied)),
    )


def _columns(
    flat: pa.Table, prefix: str, schema: TableSchema, columns: Sequence[Column]
) -> pa.Table:
    have = {column.name: n for n, column in enumerate(schema.columns)}
    arrays = {
        column.name: _one(flat, f"{prefix}{have[column.name]}", arrow_type(column.spark_type))
        for column in columns
    }
    if f"{prefix}texts" in flat.column_names:
        arrays[EXACT] = _one(flat, f"{prefix}texts", OVERFLOW)
    return pa.table(list(arrays.values()), names=list(arrays))


def _one(flat: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    if name not in flat.column_names:
        return pa.nulls(flat.num_rows, kind)
    return flat[name].combine_chunks()


def _unsent(flat: pa.Table, schema: TableSchema) -> Iterator[tuple[Column, Mask]]:
    for number, column in enumerate(schema.columns):
        if f"unsent {number}" in flat.column_names:
            yield column, _mask(flat, f"unsent {number}")


def _mask(flat: pa.Table, name: str) -> Mask:
    if name not in flat.column_names:
        return np.zeros(flat.num_rows, dtype=bool)
    return np.asarray(flat[name].combine_chunks().fill_null(False), dtype=bool)


def _read_file(path: str, schema: TableSchema, changes: TableChanges) -> pa.Table:
    """Columns that the file lacks are not there."""
    stats = changes.stats
    wanted = [*ORIGIN, "_seq", *schema.column_names]
    wanted += ["_old"] if stats.key_changes else []
    wanted += ["_unchanged"] if stats.unchanged else []
    wanted += ["_exact"] if stats.overflow else []
    with pq.ParquetFile(path) as file:
        read = file.read(columns=wanted)
    return read.combine_chunks()


def _in_order(flat: pa.Table) -> pa.Table:
    """The log is written in order, file by file; that is cheap to make sure of."""
    lsn, seq = flat["_lsn"].to_numpy(), flat["_seq"].to_numpy()
    step, tie = np.diff(lsn), np.diff(seq)
    if np.all((step > 0) | ((step == 0) & (tie > 0))):
        return flat
    return flat.take(np.lexsort((seq, lsn)))


# In the present schema. The columns have numbers as names: those of the source may be anything.


def _in_schema(read: pa.Table, evolution: Evolution, overflow: bool) -> pa.Table:
    """The rows as if the table had always had its present schema: as walflow.spark.schema_changes
    says it for Spark."""
    after = evolution.after
    was = _former(evolution)
    kind = read["_change_type"]
    has_row = pc.not_equal(kind, ChangeType.TRUNCATE.value)
    if after.key:
        # A delete tells the key only.
        has_row = pc.and_(has_row, pc.not_equal(kind, ChangeType.DELETE.value))
    flat = {name: read[name] for name in (*ORIGIN, "_seq")}
    for number, column in enumerate(after.columns):
        type, former = arrow_type(column.spark_type), was[number]
        if former is None:
            value = pa.scalar(evolution.missing.get(column.name), type)
            flat[f"{number}"] = pc.if_else(has_row, value, pa.scalar(None, type))
        elif former.name in read.column_names:
            flat[f"{number}"] = read[former.name].cast(type)
    have = set(read.column_names) - set(evolution.before.column_names)
    if "_old" in have:
        flat |= _old(read["_old"].combine_chunks(), evolution, was)
    unsent = _left_out(read["_unchanged"].combine_chunks()) if "_unchanged" in have else {}
    for number, (column, former) in enumerate(zip(after.columns, was, strict=True)):
        if former is not None and former.name in unsent:
            flat[f"unsent {number}"] = pa.array(unsent[former.name])
        elif former is None and column.attnum in after.unpublished:
            # Where it is not published, an update leaves it as it is.
            flat[f"unsent {number}"] = pc.equal(kind, ChangeType.UPDATE.value)
    if "_exact" in have:
        names: dict[str, str | None] = {column.name: None for column in evolution.dropped}
        names |= {old.name: new.name for old, new in evolution.renamed}
        texts = read["_exact"].combine_chunks()
        flat["texts"], flat["old texts"] = own_and_old_texts(texts.cast(OVERFLOW), names)
    elif overflow:
        flat["texts"] = flat["old texts"] = pa.nulls(read.num_rows, OVERFLOW)
    return pa.table(list(flat.values()), names=list(flat))


def _former(evolution: Evolution) -> list[Column | None]:
    """For each column, which it was."""
    if evolution.before is evolution.after:
        return list(evolution.after.columns)
    by_number = {column.attnum: column for column in evolution.before.columns}
    return [by_number.get(column.attnum) for column in evolution.after.columns]


def _old(
    old: pa.StructArray, evolution: Evolution, was: Sequence[Column | None]
) -> dict[str, pa.Array]:
    valid = old.is_valid()
    flat = {"had old": valid}
    identity = {column.name for column in evolution.after.identity_columns}
    for number, (column, former) in enumerate(zip(evolution.after.columns, was, strict=True)):
        if column.name not in identity:
            continue
        type = arrow_type(column.spark_type)
        if former is None:
            value = pa.scalar(evolution.missing.get(column.name), type)
            flat[f"old {number}"] = pc.if_else(valid, value, pa.scalar(None, type))
        else:
            # By number: a name may look like a path.
            place = old.type.get_field_index(former.name)
            flat[f"old {number}"] = pc.struct_field(old, [place]).cast(type)
    return flat


def _left_out(unchanged: pa.Array) -> dict[str, Mask]:
    """By column, the changes that it was not sent with."""
    owners, inner = spread(unchanged)
    names = unchanged.values.take(pa.array(inner))
    found = {}
    for name in names.unique().to_pylist():
        found[name] = np.zeros(len(unchanged), dtype=bool)
        found[name][owners[np.asarray(pc.equal(names, name))]] = True
    return found
