"""Tuples of the stream: walked column by column, all rows at once, and converted to Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from walflow.errors import ProtocolError
from walflow.model import Column, TableSchema
from walflow.source.cells import Cells, Positions
from walflow.source.sparse import exact_map
from walflow.source.values import from_text

__all__ = ["Columns", "Image", "changed_keys", "table_columns", "walk"]

_TEXT, _NULL, _UNCHANGED = b"tnu"


@dataclass(frozen=True, slots=True)
class Image:
    """Raw cells of whole rows, a column after the other."""

    cells: tuple[Cells, ...]
    unchanged: dict[int, npt.NDArray[np.bool_]]
    """By column index: the rows whose (TOASTed) value Postgres did not send."""

    def filled_from(self, old: Image, rows: Positions) -> Image:
        """This image with unsent values taken from the old rows, where those have them.

        With replica identity full the old row arrives whole, so nothing stays unknown.
        """
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
    exact: pa.MapArray | None


def walk(
    data: npt.NDArray[np.uint8],
    int32: npt.NDArray[np.int32],
    at: Positions,
    count: int,
) -> tuple[Image, Positions]:
    """Step over ``count`` cells of the rows whose first cell lies ``at``.

    Gives the cells, and where each row's tuple ends.
    """
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
                raise ProtocolError("a tuple has a value in a form that was not asked for")
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
    """Arrow arrays of all columns, and the exact texts of values that they cannot hold."""
    values = []
    exact = {}
    for column, cells in zip(columns, image.cells, strict=True):
        converted = from_text(column, cells)
        values.append(converted.values)
        if converted.exact is not None:
            exact[column.name] = converted.exact
    return Columns(tuple(values), exact_map(exact))


def changed_keys(
    schema: TableSchema,
    old: Image,
    rows: Positions,
    new_values: Sequence[pa.Array],
    count: int,
) -> pa.StructArray | None:
    """The old identity of each of ``count`` rows whose identity changed, else null.

    ``rows`` says which rows the old image belongs to. A keyless table's identity is the whole
    row, so there every old row counts as changed.
    """
    identity = schema.identity_columns
    places = [schema.columns.index(column) for column in identity]
    olds = [
        from_text(column, old.cells[place]).values
        for column, place in zip(identity, places, strict=True)
    ]
    if schema.key:
        take = pa.array(rows)
        changed = np.zeros(len(rows), bool)
        for place, values in zip(places, olds, strict=True):
            now = new_values[place].take(take)
            same = pc.fill_null(pc.equal(now, values), False)
            changed |= ~same.to_numpy(zero_copy_only=False)
        if not changed.any():
            return None
    else:
        changed = np.ones(len(rows), bool)
    places_of = np.full(count, -1, np.int64)
    places_of[rows[changed]] = np.flatnonzero(changed)
    taken = pa.array(places_of, mask=places_of < 0)
    arrays = [values.take(taken) for values in olds]
    return pa.StructArray.from_arrays(
        arrays,
        names=[column.name for column in identity],
        mask=pa.array(places_of < 0),
    )
