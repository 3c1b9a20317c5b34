"""Tuples of the stream: read column by column, all rows at once, and converted to Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from walflow.errors import ProtocolError
from walflow.model import OLD_EXACT, Column, TableSchema
from walflow.source.codec.cells import Cells, Positions
from walflow.source.codec.values import from_text

__all__ = ["Columns", "Image", "OldKeys", "changed_keys", "table_columns", "walk"]

_TEXT, _NULL, _UNCHANGED = b"tnu"


@dataclass(frozen=True, slots=True)
class Image:
    """Raw cells of whole rows, one column after the other."""

    cells: tuple[Cells, ...]
    unchanged: dict[int, npt.NDArray[np.bool_]]
    """By column index: the rows whose (TOASTed) value Postgres did not send."""

    def filled_from(self, old: Image, rows: Positions) -> Image:
        """These columns with unsent values taken from the old rows, where those have them. With
        replica identity full, the old row arrives whole, so no value stays unknown."""
        if not self.unchanged:
            return self
        cells = list(self.cells)
        unchanged = {}
        for place, missing in self.unchanged.items():
            mine, theirs = cells[place], old.cells[place]
            known = np.ones(len(theirs), bool) if theirs.valid is None else theirs.valid
            found = missing[rows] & known
            target = rows[found]
            start, end = mine.start.copy(), mine.end.copy()
            start[target], end[target] = theirs.start[found], theirs.end[found]
            valid = mine.valid.copy() if mine.valid is not None else np.ones(len(mine), bool)
            valid[target] = True
            cells[place] = Cells(mine.data, start, end, valid)
            still = missing.copy()
            still[target] = False
            if still.any():
                unchanged[place] = still
        return Image(tuple(cells), unchanged)


@dataclass(frozen=True, slots=True)
class Columns:
    values: tuple[pa.Array, ...]
    overflow: dict[str, pa.StringArray]
    """By column name: the overflow texts of values that the column's type cannot hold."""


@dataclass(frozen=True, slots=True)
class OldKeys:
    """For each row whose identity changed, its old identity. Null for all others."""

    values: pa.StructArray
    overflow: dict[str, pa.StringArray]
    """Overflow texts, as in Columns, under names that begin with ``OLD_EXACT``."""


def walk(
    data: npt.NDArray[np.uint8],
    int32: npt.NDArray[np.int32],
    at: Positions,
    count: int,
) -> tuple[Image, Positions]:
    """Read ``count`` cells of the rows whose first cell is ``at``. Returns the cells, and where
    each row's tuple ends."""
    cells = []
    unchanged = {}
    for place in range(count):
        kind = data[at]
        if (kind == _TEXT).all():
            start = at + 5
            end = start + int32[at + 1]
            cells.append(Cells(data, start, end))
        else:
            valid = kind == _TEXT
            if not (valid | (kind == _NULL) | (kind == _UNCHANGED)).all():
                raise ProtocolError("a tuple has a value in a format that was not asked for")
            # Past the buffer's end only for rows that have no length to read.
            length_at = np.where(valid, at + 1, 0)
            start = np.where(valid, at + 5, at + 1)
            end = start + np.where(valid, int32[length_at], 0)
            cells.append(Cells(data, start, end, valid))
            unsent = kind == _UNCHANGED
            if unsent.any():
                unchanged[place] = unsent
        at = end
    return Image(tuple(cells), unchanged), at


def table_columns(columns: Sequence[Column], image: Image) -> Columns:
    """Arrow arrays of all columns."""
    values = []
    overflow = {}
    for column, cells in zip(columns, image.cells, strict=True):
        converted = from_text(column, cells)
        values.append(converted.values)
        if converted.overflow is not None:
            overflow[column.name] = converted.overflow
    return Columns(tuple(values), overflow)


def changed_keys(
    schema: TableSchema, old: Image, rows: Positions, new: Columns, count: int
) -> OldKeys | None:
    """The old identity of each of ``count`` rows whose identity changed. None if there is none.

    ``rows`` says which rows the old tuples belong to. A keyless table's identity is the whole row,
    so there every old row counts as changed.
    """
    identity = schema.identity_columns
    places = [schema.columns.index(column) for column in identity]
    olds = table_columns(identity, Image(tuple(old.cells[place] for place in places), {}))
    if schema.key:
        take = pa.array(rows)
        changed = np.zeros(len(rows), bool)
        for column, place, values in zip(identity, places, olds.values, strict=True):
            changed |= _differ(values, new.values[place].take(take))
            # Two values that the type cannot hold may look the same there.
            before, after = olds.overflow.get(column.name), new.overflow.get(column.name)
            if before is not None or after is not None:
                none = pa.nulls(len(rows), pa.string())
                changed |= _differ(
                    none if before is None else before, none if after is None else after.take(take)
                )
        if not changed.any():
            return None
    else:
        changed = np.ones(len(rows), bool)
    source = np.full(count, -1, np.int64)
    source[rows[changed]] = np.flatnonzero(changed)
    spread = pa.array(source, mask=source < 0)
    return OldKeys(
        pa.StructArray.from_arrays(
            [values.take(spread) for values in olds.values],
            names=[column.name for column in identity],
            mask=pa.array(source < 0),
        ),
        {OLD_EXACT + name: texts.take(spread) for name, texts in olds.overflow.items()},
    )


def _differ(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    """Where two arrays differ. Null equals null. Floats are compared bit by bit: NaN equals NaN
    (texts have only one), and -0 does not equal 0, which is the same key but another value."""
    if pa.types.is_list(left.type):
        return _lists_differ(left, right)
    if pa.types.is_floating(left.type):
        bits = pa.int32() if pa.types.is_float32(left.type) else pa.int64()
        left, right = left.view(bits), right.view(bits)
    same = pc.or_(
        pc.fill_null(pc.equal(left, right), False), pc.and_(pc.is_null(left), pc.is_null(right))
    )
    differ: npt.NDArray[np.bool_] = ~same.to_numpy(zero_copy_only=False)
    return differ


def _lists_differ(left: pa.ListArray, right: pa.ListArray) -> npt.NDArray[np.bool_]:
    """Arrow compares no lists: first their lengths (-1 for null), then all their elements."""
    length = pc.fill_null(pc.list_value_length(left), -1).to_numpy(zero_copy_only=False)
    other = pc.fill_null(pc.list_value_length(right), -1).to_numpy(zero_copy_only=False)
    differ: npt.NDArray[np.bool_] = length != other
    candidates = ~differ & (length > 0)
    if candidates.any():
        rows = pa.array(candidates)
        elements = _differ(left.filter(rows).flatten(), right.filter(rows).flatten())
        ends = np.cumsum(length[candidates])
        differ[candidates] = np.logical_or.reduceat(elements, ends - length[candidates])
    return differ
