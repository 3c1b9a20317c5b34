"""A batch's rows as the table has them: with what no change tells, and the copies that stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from walflow.destinations.iceberg.columnar.arrow_schema import Field, arrow_schema
from walflow.destinations.iceberg.columnar.key_index import Found
from walflow.destinations.iceberg.columnar.reading import read_places
from walflow.destinations.iceberg.columnar.table_view import TableView
from walflow.destinations.lake.fallback import FallBackToSpark, Reason
from walflow.destinations.lake.netting.completing import completed
from walflow.destinations.lake.netting.net_changes import ColumnarChanges, Ints, first_of_each
from walflow.destinations.lake.netting.overflow import OVERFLOW, texts_map
from walflow.destinations.lake.table_schema import EXACT, LakeTableSchema

__all__ = ["copies_that_go", "in_table_order", "table_rows", "with_overflow"]

_MOST_READ_BYTES = 256 << 20
"""Of values that the table has, and that rows of a batch need."""


def table_rows(
    view: TableView, lake_schema: LakeTableSchema, changes: ColumnarChanges, found: Sequence[Found]
) -> tuple[pa.Table, pa.MapArray | None]:
    """The rows that come, with the table's columns but that of overflow texts; and these, if there
    are some. What the rows lack is taken from those that were found."""
    values = {name: changes.rows[name] for name in lake_schema.schema.column_names}
    if (ours := lake_schema.metadata) is not None:
        origins = changes.origins
        values[ours.change_type] = origins["_change_type"]
        values[ours.lsn] = origins["_lsn"]
        values[ours.timestamp] = origins["_timestamp"]
    fields = [field for field in view.fields if field["name"] != EXACT]
    rows = _cast(pa.table(values), fields)
    texts = dict(changes.overflow)
    if changes.unsent:
        rows = _completed(view, rows, changes, found, texts)
    if all(column.null_count == len(column) for column in texts.values()):
        return rows, None
    return rows, texts_map(texts, rows.num_rows)


def with_overflow(view: TableView, rows: pa.Table, texts: pa.MapArray | None) -> pa.Table:
    """The rows with their overflow texts, with the table's columns in its order."""
    if not any(field["name"] == EXACT for field in view.fields):
        return in_table_order(view, rows)
    if texts is None:
        texts = pa.nulls(rows.num_rows, OVERFLOW)
    return in_table_order(view, rows.append_column(EXACT, texts))


def in_table_order(view: TableView, rows: pa.Table) -> pa.Table:
    """With the table's types, in its order."""
    return _cast(rows, view.fields)


def _cast(rows: pa.Table, fields: Sequence[Field]) -> pa.Table:
    schema = arrow_schema(fields)
    return pa.table([rows[field.name].cast(field.type) for field in schema], schema=schema)


def _completed(
    view: TableView,
    rows: pa.Table,
    changes: ColumnarChanges,
    found: Sequence[Found],
    texts: dict[str, pa.Array],
) -> pa.Table:
    """The rows, with what no change tells of them. Their overflow texts get into ``texts``."""
    lacking = np.logical_or.reduce(list(changes.unsent.values()))
    wanted = np.zeros(changes.keys.num_rows, dtype=bool)
    wanted[changes.base[lacking]] = True
    names = [*changes.unsent, EXACT]
    there, numbers = _read(view, names, found, wanted)
    # Each once: a key that the table has twice does not tell which row it is.
    if not np.array_equal(np.sort(numbers), np.flatnonzero(wanted)):
        raise FallBackToSpark(
            "it lacks a row whose unchanged columns a change relies on", Reason.MISSING
        )
    return completed(rows, changes, there, numbers, texts)


def _read(
    view: TableView, names: Sequence[str], found: Sequence[Found], wanted: np.ndarray
) -> tuple[pa.Table, Ints]:
    """These columns, as far as the table has them, of the rows whose numbers are wanted; and their
    numbers."""
    fields = [field for field in view.fields if field["name"] in names]
    parts = [arrow_schema(fields).empty_table()]
    numbers = [np.zeros(0, dtype=np.int64)]
    for one in found:
        which = wanted[one.numbers]
        if not which.any():
            continue
        parts.append(read_places(one.file.path, fields, view.names, one.places[which]))
        numbers.append(one.numbers[which])
        if sum(part.nbytes for part in parts) > _MOST_READ_BYTES:
            raise FallBackToSpark("much of it would have to be read", Reason.SIZE)
    return pa.concat_tables(parts), np.concatenate(numbers)


def copies_that_go(
    view: TableView, lake_schema: LakeTableSchema, changes: ColumnarChanges, found: Sequence[Found]
) -> tuple[list[Found], ColumnarChanges]:
    """Of equal rows, as many as must go: those that were found, the one that came first goes first,
    and then those that come, which do not come then."""
    assert changes.removals is not None
    counts = np.zeros(len(changes.removals), dtype=np.int64)
    for one in found:
        counts += np.bincount(one.numbers, minlength=len(counts))
    if (counts > changes.removals).any():
        found = _first(view, lake_schema, changes.removals, counts, found)
    rest = changes.without_removed(counts)
    if rest is None:
        raise FallBackToSpark("it lacks rows that were removed from its source", Reason.MISSING)
    return list(found), rest


def _first(
    view: TableView,
    lake_schema: LakeTableSchema,
    removals: Ints,
    counts: Ints,
    found: Sequence[Found],
) -> list[Found]:
    """Of the rows that were found, the first ones of each number."""
    chosen = counts > removals
    whole = sorted(found, key=lambda one: one.file.location)
    numbers = np.concatenate([one.numbers for one in whole])
    # Those of numbers that all go need not be looked at.
    came = np.full((2, len(numbers)), -1, dtype=np.int64)
    if (ours := lake_schema.metadata) is not None:
        contested = chosen[numbers]
        rows, read = _read(view, (ours.lsn, ours.change_type), whole, chosen)
        assert np.array_equal(read, numbers[contested])
        came[0, contested] = rows[ours.lsn].fill_null(-1).to_numpy()
        kinds = pc.rank(rows[ours.change_type].fill_null(""), tiebreaker="dense")
        came[1, contested] = kinds.to_numpy(zero_copy_only=False)
    goes = first_of_each(numbers, removals, (came[0], came[1]))
    ends = np.cumsum([len(one.numbers) for one in whole])
    parts = zip(whole, np.split(goes, ends[:-1]), strict=True)
    return [
        Found(one.file, one.places[part], one.numbers[part]) for one, part in parts if part.any()
    ]
