"""Rows of COPY BINARY as Arrow columns, by the same converters as the stream's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, takewhile

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from walflow.model import Column
from walflow.source.codec.cells import Bytes, Cells, Positions
from walflow.source.codec.sparse import EXACT_TYPE, overflow_map
from walflow.source.codec.values import binary_width, from_binary
from walflow.source.wire.frames import Frames

__all__ = ["rows_to_arrow"]

_FIELD_COUNT = 2
_LENGTH = 4
_RUN_BYTES = 64
"""So much of a row is read at once, since the processor reads as much."""


def rows_to_arrow(columns: Sequence[Column], rows: Frames) -> pa.RecordBatch:
    """The rows, and where there are any the overflow texts of values that do not fit."""
    arrays = []
    overflow = {}
    for column, cells in zip(columns, _row_cells(columns, rows), strict=True):
        converted = from_binary(column, cells)
        arrays.append(converted.values)
        if converted.overflow is not None:
            overflow[column.name] = converted.overflow
    names = [column.name for column in columns]
    texts = overflow_map(overflow)
    if not columns:
        # By nothing else could rows of a table without columns be counted.
        texts = pa.nulls(len(rows), EXACT_TYPE)
    if texts is not None:
        arrays.append(texts)
        names.append("_exact")
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _row_cells(columns: Sequence[Column], rows: Frames) -> list[Cells]:
    """A field is its length (-1: NULL) and its bytes; the next field begins behind them."""
    widths = [binary_width(column) for column in columns]
    lengths: npt.NDArray[np.int32] = np.ndarray(
        (len(rows.data) - 3,), ">i4", rows.data, strides=(1,)
    )
    at = rows.start + _FIELD_COUNT
    cells: list[Cells] = []
    while len(cells) < len(columns):
        fixed, at = _fixed_cells(rows.data, at, widths[len(cells) :])
        cells += fixed
        if len(cells) == len(columns):
            break
        length = lengths[at].astype(np.int64)
        start = at + _LENGTH
        valid: npt.NDArray[np.bool_] | None = None
        if length.min() < 0:
            valid = length >= 0
            length = np.maximum(length, 0)
        at = start + length
        cells.append(Cells(rows.data, start, at, valid))
    return cells


def _fixed_cells(
    data: Bytes, at: Positions, widths: Sequence[int | None]
) -> tuple[list[Cells], Positions]:
    """The cells of the first columns that have a value of a known width in every row, as many as
    lie near each other; and where the next field begins."""
    run = [width for width in takewhile(lambda width: width is not None, widths) if width]
    sizes = [size for size in accumulate(_LENGTH + width for width in run) if size <= _RUN_BYTES]
    if not sizes or int(at[-1]) + sizes[-1] > len(data):
        return [], at
    stride = sizes[-1]
    # One copy of a few bytes a row instead of several reads a column, of which each would have to
    # find them anew.
    runs: Bytes = np.ndarray((len(data) - stride + 1,), f"V{stride}", data, strides=(1,))[at].view(
        np.uint8
    )
    cells: list[Cells] = []
    begin = 0
    for width, end in zip(run, sizes, strict=False):
        length: npt.NDArray[np.int32] = np.ndarray((len(at),), ">i4", runs, begin, (stride,))
        if (length != width).any():
            break  # There is a NULL.
        start = np.arange(begin + _LENGTH, len(runs), stride)
        cells.append(Cells(runs, start, start + width, stride=stride))
        begin = end
    return cells, at + begin
