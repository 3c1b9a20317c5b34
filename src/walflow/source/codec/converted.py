"""What a converter returns: a column of Arrow values, and the texts of values that do not fit.

Here too: memory shared between numpy and Arrow, never copied. Types are ``Any`` where pyarrow's
stubs lack what pyarrow can do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from walflow.source.codec.cells import Cells

__all__ = [
    "Converted",
    "Mask",
    "buffer",
    "fixed_width",
    "mask",
    "offsets_of",
    "overflow_texts",
    "payload_of",
    "validity",
]

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Converted:
    """A converted column.

    ``values`` has the column's type. ``overflow`` is None if every value fits. Otherwise it has
    Postgres's text for each row whose value does not fit (a clamped timestamp, a decimal made NULL,
    an array that lost its dimensions), and NULL for all other rows.
    """

    values: pa.Array[Any]
    overflow: pa.StringArray | None = None


def buffer(values: Any) -> pa.Buffer:
    """The memory of a numpy array."""
    return pa.py_buffer(values)


def validity(valid: Mask | None) -> pa.Buffer | None:
    """A mask as Arrow's bitmap."""
    return None if valid is None else buffer(np.packbits(valid, bitorder="little"))


def mask(booleans: Any) -> Mask:
    """A boolean Arrow array as a numpy mask; NULL is False."""
    result: Mask = booleans.fill_null(False).to_numpy(zero_copy_only=False)
    return result


def offsets_of(texts: Any) -> npt.NDArray[np.int32]:
    """The offsets of a string or binary array, which need not begin inside its buffers."""
    return np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1)


def payload_of(texts: Any, dtype: type[np.uint8] | type[np.uint16]) -> npt.NDArray[Any]:
    """The bytes of all values of a string or binary array, one behind the other."""
    size = int(offsets_of(texts)[-1]) // np.dtype(dtype).itemsize
    return np.frombuffer(texts.buffers()[2] or b"", dtype, size)


def fixed_width(kind: pa.DataType, values: npt.NDArray[Any], valid: Mask | None) -> pa.Array[Any]:
    """An Arrow array over the memory of ``values``."""
    return pa.Array.from_buffers(
        kind, len(values), [validity(valid), buffer(np.ascontiguousarray(values))]
    )


def overflow_texts(cells: Cells, rows: Mask) -> pa.StringArray | None:
    """The cells' own texts in these rows, NULL in the others. None if there are no such rows."""
    if not rows.any():
        return None
    end = np.where(rows, cells.end, cells.start)
    return Cells(cells.data, cells.start, end, rows).to_text()
