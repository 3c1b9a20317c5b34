"""Values in a form in which Arrow can compare and hash them, and equal ones are the same."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["comparable", "numbered", "spread"]


def comparable(values: pa.Array, *, signed_zeros: bool = False) -> pa.Array:
    """Equal exactly where the values are; null where they are null. All NaN are equal, and so are
    -0 and 0 unless told otherwise. What is nested becomes bytes; maps have no order."""
    kind = values.type
    if pa.types.is_floating(kind):
        return _bits(values, signed_zeros=signed_zeros)
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return values.cast(pa.int8())
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _bytes(values, signed_zeros)
    return values


def numbered(columns: list[pa.Array]) -> npt.NDArray[np.int64]:
    """A number for each row of comparable columns: the same for the same row, from 0 on, without
    gaps."""
    codes, *others = map(_numbered, columns)
    for more in others:
        # Numbered again, so that they never grow beyond what a number can be.
        codes = _numbered(pa.array(codes * (more.max(initial=0) + 1) + more))
    return codes


def _numbered(column: pa.Array) -> npt.NDArray[np.int64]:
    indices = column.dictionary_encode(null_encoding="encode").indices
    return np.asarray(indices.to_numpy(zero_copy_only=False), dtype=np.int64)


def spread(values: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of lists or maps: for each of their entries, whose it is, and its place among the values (or
    keys and items) inside."""
    offsets = np.asarray(values.offsets, dtype=np.int64)
    lengths = np.diff(offsets)
    if values.null_count:
        lengths[np.asarray(values.is_null())] = 0
    owners = np.repeat(np.arange(len(lengths)), lengths)
    firsts = np.repeat(offsets[:-1] - (np.cumsum(lengths) - lengths), lengths)
    return owners, firsts + np.arange(len(owners))


def _bits(values: pa.Array, *, signed_zeros: bool) -> pa.Array:
    nulls = np.asarray(values.is_null())
    numbers = np.array(values.fill_null(0.0).to_numpy(zero_copy_only=False))
    numbers[np.isnan(numbers)] = np.nan
    if not signed_zeros:
        numbers += 0.0  # makes 0 of -0
    return pa.array(numbers.view(f"i{numbers.itemsize}"), mask=nulls)


def _bytes(values: pa.Array, signed_zeros: bool) -> pa.Array:
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _nested(values, signed_zeros)
    plain = comparable(values, signed_zeros=signed_zeros)
    if pa.types.is_date(kind):
        plain = plain.cast(pa.int32())
    elif pa.types.is_temporal(kind):
        plain = plain.cast(pa.int64())
    if not pa.types.is_binary(plain.type):
        plain = plain.cast(pa.string()).cast(pa.binary())
    return plain


def _nested(values: pa.Array, signed_zeros: bool) -> pa.Array:
    owners, inner = spread(values)
    take = pa.array(inner)
    if pa.types.is_map(values.type):
        both = [_framed(part.take(take), signed_zeros) for part in (values.keys, values.items)]
        entries = pc.binary_join_element_wise(*both, b"")
        order = pc.sort_indices(
            pa.table({"owner": owners, "entry": entries}),
            sort_keys=[("owner", "ascending"), ("entry", "ascending")],
        )
        entries = entries.take(order)
    else:
        entries = _framed(values.values.take(take), signed_zeros)
    counts = np.bincount(owners, minlength=len(values))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), entries), b"")
    return pc.if_else(values.is_null(), pa.scalar(None, pa.binary()), joined)


def _framed(values: pa.Array, signed_zeros: bool) -> pa.Array:
    """Each value with its length before it, so that one after the other they are still told
    apart."""
    content = _bytes(values, signed_zeros)
    length = pc.binary_length(content).cast(pa.string()).cast(pa.binary())
    return pc.binary_join_element_wise(length, content, b":").fill_null(b"-")
