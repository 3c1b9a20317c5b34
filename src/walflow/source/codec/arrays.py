"""Splitting the text of arrays into elements, for a whole column at once.

``{1,NULL,"a \\"b\\"",{…}}``, with a prefix like ``[0:2]=`` where a lower bound is not one. All
texts of a column are walked as one run of bytes: escapes by the parity of backslash runs, quotes
by their running count, nesting by running counts of braces. This is possible because each text is
balanced in itself (Postgres wrote it), so counts never leak from one row into the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from walflow.source.codec.cells import PADDING, Bytes, Cells, Positions
from walflow.source.codec.converted import Mask, offsets_of, payload_of

__all__ = ["Elements", "split"]

_BOUNDS = "[]:=+-0123456789"
_OPEN, _CLOSE, _QUOTE, _BACKSLASH, _BRACKET = b'{}"\\['


@dataclass(frozen=True, slots=True)
class Elements:
    """The elements of a column of arrays, in storage order."""

    cells: Cells
    offsets: npt.NDArray[np.int32]
    """Row ``i`` has the elements ``offsets[i]:offsets[i + 1]``."""
    reshaped: Mask
    """Rows that a flat list cannot represent: those with several dimensions, or lower bounds."""

    def rows_of(self, elements: Mask) -> Mask:
        """The rows that have at least one of these elements."""
        rows = np.zeros(len(self.offsets) - 1, np.bool_)
        found = np.flatnonzero(elements)
        rows[np.searchsorted(self.offsets, found, side="right") - 1] = True
        return rows


def split(cells: Cells, delimiter: str) -> Elements:
    """Split the texts of arrays whose elements are separated by ``delimiter``."""
    if len(cells) == 0:
        return Elements(cells, np.zeros(1, np.int32), np.zeros(0, np.bool_))
    gathered = cells.to_binary()
    rows = offsets_of(gathered)
    text: Bytes = payload_of(gathered, np.uint8)

    escapes = _escapes(text)
    special = (text == _OPEN) | (text == _CLOSE) | (text == ord(delimiter))
    quotes = text == _QUOTE
    if len(escapes):
        quotes[escapes + 1] = False
    if quotes.any():
        # Odd between quotes; np.add on booleans would be a logical or.
        special &= np.cumsum(quotes.view(np.int8), dtype=np.int8) & 1 == 0
    prefixed = np.zeros(len(cells), np.bool_)
    present = rows[1:] > rows[:-1]
    prefixed[present] = text[rows[:-1][present]] == _BRACKET
    marks = np.flatnonzero(special)
    if delimiter in _BOUNDS and prefixed.any():
        marks = _without_prefixes(text, marks, rows, prefixed)
    kinds = text[marks]

    # An element is what stands between two marks. Before a closing brace's next mark stands
    # nothing, or the next row's prefix; between nested braces nothing.
    left, right = marks[:-1], marks[1:]
    filled = (right - left > 1) & (kinds[:-1] != _CLOSE)
    start, end = left[filled] + 1, right[filled]
    quoted = text[start] == _QUOTE
    valid = None
    null = ~quoted & (end - start == 4) & (text[start] == ord("N"))
    if null.any():
        null[null] = _spell_null(text, start[null])
        valid = ~null if null.any() else None

    offsets = np.searchsorted(start, rows).astype(np.int32)
    opened = np.searchsorted(marks[kinds == _OPEN], rows)
    reshaped = (np.diff(opened) > 1) | prefixed

    start = start + quoted
    end = end - quoted
    if valid is not None:
        start = np.where(valid, start, end)
    content, start, end = _unescaped(text, escapes, start, end)
    return Elements(Cells(content, start, end, valid), offsets, reshaped)


def _without_prefixes(
    text: Bytes, marks: Positions, rows: npt.NDArray[np.int32], prefixed: Mask
) -> Positions:
    """The marks outside of a prefix of bounds. Some type may use ``:`` as its delimiter."""
    row = np.searchsorted(rows, marks, side="right") - 1
    opens = marks[text[marks] == _OPEN]
    first_open = opens[np.searchsorted(opens, rows[row])]
    outside: Positions = marks[~prefixed[row] | (marks >= first_open)]
    return outside


def _escapes(text: Bytes) -> Positions:
    """The backslashes that escape what follows: every second one of a run, from its first."""
    found = np.flatnonzero(text == _BACKSLASH)
    if len(found) == 0:
        return found
    index = np.arange(len(found))
    begins = np.ones(len(found), np.bool_)
    begins[1:] = np.diff(found) > 1
    run_start = np.maximum.accumulate(np.where(begins, index, 0))
    escaping: Positions = found[(index - run_start) % 2 == 0]
    return escaping


def _spell_null(text: Bytes, start: Positions) -> Mask:
    spelled: Mask = text[start + 1] == ord("U")
    spelled &= text[start + 2] == ord("L")
    spelled &= text[start + 3] == ord("L")
    return spelled


def _unescaped(
    text: Bytes, escapes: Positions, start: Positions, end: Positions
) -> tuple[Bytes, Positions, Positions]:
    """The text without the escaping backslashes, padded, and the elements' positions in it."""
    content = np.zeros(len(text) - len(escapes) + PADDING, np.uint8)
    if len(escapes) == 0:
        content[: len(text)] = text
        return content, start, end
    kept = np.ones(len(text), np.bool_)
    kept[escapes] = False
    content[:-PADDING] = text[kept]
    # Where the byte that follows each byte goes; an element never starts at the very first.
    moved = np.cumsum(kept, dtype=np.int32)
    return content, moved[start - 1].astype(np.int64), moved[end - 1].astype(np.int64)
