"""Converters of simple types: machine numbers, booleans, bytes, uuid, jsonb.

Each converts a whole column of cells. The text format is what the type's output function prints
under ``SESSION_OPTIONS``. The binary format is what its send function sends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from walflow.source.codec.cells import Cells
from walflow.source.codec.converted import (
    Converted,
    buffer,
    fixed_width,
    offsets_of,
    payload_of,
    validity,
)

__all__ = [
    "boolean_from_binary",
    "boolean_from_text",
    "bytes_from_binary",
    "bytes_from_text",
    "char_from_text",
    "jsonb_from_binary",
    "number_from_binary",
    "number_from_text",
    "read_fixed",
    "string_from_text",
    "uuid_from_binary",
]


def read_fixed(cells: Cells, dtype: str, skip: int = 0) -> npt.NDArray[Any]:
    """The big-endian values of at most eight bytes, ``skip`` bytes into each cell, in native order.

    Rows without a value, or with a shorter one, get whatever lies there: the buffer's padding
    keeps the read inside it.
    """
    if cells.stride is not None and len(cells):
        each: npt.NDArray[Any] = np.ndarray(
            (len(cells),), ">" + dtype, cells.data, int(cells.start[0]) + skip, (cells.stride,)
        )
        return each.astype(dtype)
    last = len(cells.data) - np.dtype(dtype).itemsize
    anywhere: npt.NDArray[Any] = np.ndarray((last + 1,), ">" + dtype, cells.data, strides=(1,))
    start = np.minimum(cells.start + skip, last) if skip else cells.start
    return anywhere[start].astype(dtype)


def string_from_text(cells: Cells) -> Converted:
    return Converted(cells.to_text())


def char_from_text(cells: Cells) -> Converted:
    r"""``"char"``, one byte: past ASCII it is ``\303``, as Postgres 15 and newer print it.

    Postgres 14 prints the bare byte, which is no UTF-8.
    """
    bare = (cells.end - cells.start == 1) & (cells.data[cells.start] > 0x7F)
    if not bare.any():
        return string_from_text(cells)
    texts = cells.to_binary().to_numpy(zero_copy_only=False)
    texts[bare] = [b"\\%o" % byte for byte in cells.data[cells.start[bare]].tolist()]
    return Converted(pa.array(texts, pa.string()))


def number_from_text(cells: Cells, kind: pa.DataType) -> Converted:
    """Integers and floats; Arrow reads NaN and Infinity as Postgres writes them."""
    return Converted(pc.cast(cells.to_text(), kind))


def number_from_binary(cells: Cells, dtype: str, kind: pa.DataType) -> Converted:
    values = read_fixed(cells, dtype)
    native = kind.to_pandas_dtype()
    if values.dtype != native:
        values = values.astype(native)
    if values.dtype.kind == "f":
        # The text format knows one NaN; the binary format has the bits of whatever made it.
        not_numbers = np.isnan(values)
        if not_numbers.any():
            values[not_numbers] = np.nan
    return Converted(fixed_width(kind, values, cells.valid))


def _booleans(cells: Cells, truth: npt.NDArray[np.bool_]) -> Converted:
    bits = buffer(np.packbits(truth, bitorder="little"))
    return Converted(pa.Array.from_buffers(pa.bool_(), len(truth), [validity(cells.valid), bits]))


def boolean_from_text(cells: Cells) -> Converted:
    return _booleans(cells, cells.data[cells.start] == ord("t"))


def boolean_from_binary(cells: Cells) -> Converted:
    return _booleans(cells, read_fixed(cells, "u1") != 0)


def _skip(cells: Cells, count: int) -> Cells:
    """The cells without their first bytes."""
    start = cells.start + count
    if cells.valid is not None:
        start = np.where(cells.valid, start, cells.end)
    return Cells(cells.data, start, cells.end, cells.valid)


def _bytes_of_hex() -> npt.NDArray[np.uint8]:
    table = np.zeros(1 << 16, np.uint8)
    for value in range(256):
        pair = b"%02x" % value
        table[pair[0] | pair[1] << 8] = value
    return table


def _hex_of_two_bytes() -> npt.NDArray[np.uint32]:
    texts = b"".join(b"%02x%02x" % (pair & 0xFF, pair >> 8) for pair in range(1 << 16))
    return np.frombuffer(texts, "<u4")


_BYTES_OF_HEX = _bytes_of_hex()
_HEX_OF_TWO_BYTES = _hex_of_two_bytes()


def bytes_from_text(cells: Cells) -> Converted:
    r"""bytea in hex format, ``\x0aff``."""
    if len(cells) == 0:
        return Converted(pa.array([], pa.binary()))
    digits = _skip(cells, 2).to_binary()
    offsets = offsets_of(digits)
    pairs = payload_of(digits, np.uint16)
    return Converted(
        pa.Array.from_buffers(
            pa.binary(),
            len(cells),
            [validity(cells.valid), buffer(offsets // 2), buffer(_BYTES_OF_HEX[pairs])],
        )
    )


def bytes_from_binary(cells: Cells) -> Converted:
    return Converted(cells.to_binary())


def jsonb_from_binary(cells: Cells) -> Converted:
    """The send function puts a version byte before the text."""
    return Converted(_skip(cells, 1).to_text())


def uuid_from_binary(cells: Cells) -> Converted:
    """Sixteen bytes to the text with dashes: half the server's cost of sending the text."""
    if len(cells) == 0:
        return Converted(pa.array([], pa.string()))
    raw = cells.to_binary()
    offsets = offsets_of(raw)
    pairs = payload_of(raw, np.uint16)
    digits = _HEX_OF_TWO_BYTES[pairs].view(np.uint8).reshape(-1, 32)
    text = np.full((len(digits), 36), ord("-"), np.uint8)
    text[:, 0:8] = digits[:, 0:8]
    text[:, 9:13] = digits[:, 8:12]
    text[:, 14:18] = digits[:, 12:16]
    text[:, 19:23] = digits[:, 16:20]
    text[:, 24:36] = digits[:, 20:32]
    return Converted(
        pa.Array.from_buffers(
            pa.string(),
            len(cells),
            [validity(cells.valid), buffer(offsets // 16 * 36), buffer(text)],
        )
    )
