"""Raw cells: the positions of a column's values in one buffer of wire data.

The stream (pgoutput tuples) and the copy (COPY BINARY rows) both produce cells, so that one set of
converters serves both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["PADDING", "Cells", "Positions", "pad"]

Positions = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

PADDING = 8
"""Padding after the data, in bytes, so that eight-byte reads at any position stay inside the
buffer."""


def pad(data: bytes | bytearray) -> Bytes:
    """The data as an array with the padding behind it (one copy)."""
    padded = np.empty(len(data) + PADDING, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    padded[len(data) :] = 0
    return padded


@dataclass(frozen=True, slots=True)
class Cells:
    """One column of raw values: ``data[start[i]:end[i]]`` where ``valid[i]``, else no value."""

    data: Bytes
    start: Positions
    end: Positions
    valid: npt.NDArray[np.bool_] | None = None
    """None: every cell has a value. Where it is False, start equals end."""
    stride: int | None = None
    """The length of every cell, where all have the same."""

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: npt.NDArray[Any]) -> Cells:
        """The cells of these rows (indices or a mask)."""
        valid = None if self.valid is None else self.valid[rows]
        return Cells(self.data, self.start[rows], self.end[rows], valid)

    def to_binary(self) -> pa.BinaryArray:
        """The raw values gathered into one Arrow array (the gather runs in C++)."""
        count = len(self.start)
        if count == 0:
            return pa.array([], pa.binary())
        # Interleaved starts and ends are the offsets of an array whose even entries are the
        # cells and whose odd entries are what lies between them. take() reads the even ones
        # alone, so it does not matter that offsets fall where rows were reordered; only the
        # first and the last are checked, hence the sentinel.
        offsets = np.empty(2 * count + 1, np.int32)
        offsets[0:-1:2] = self.start
        offsets[1::2] = self.end
        offsets[-1] = len(self.data)
        spread = pa.Array.from_buffers(
            pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        )
        gathered = spread.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
        if self.valid is None:
            return gathered
        validity = pa.py_buffer(np.packbits(self.valid, bitorder="little"))
        return pa.Array.from_buffers(pa.binary(), count, [validity, *gathered.buffers()[1:]])

    def to_text(self) -> pa.StringArray:
        """The raw values as text; Postgres has checked that it is UTF-8."""
        binary = self.to_binary()
        return pa.Array.from_buffers(pa.string(), len(binary), binary.buffers(), binary.null_count)
