"""Columns that are empty in most rows: the names of unsent values, and overflow texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["EXACT_TYPE", "names_list", "overflow_map"]

EXACT_TYPE = pa.map_(pa.string(), pa.string())


def names_list(
    names: Sequence[str], marked: Mapping[int, npt.NDArray[np.bool_]]
) -> pa.ListArray | None:
    """For each row, the names of the columns in which it is marked; null if there are none.
    ``marked`` has a mask for each column (by index) that is marked anywhere."""
    if not marked:
        return None
    grid = np.stack(list(marked.values()), axis=1)
    places = np.array(list(marked), np.int32)
    chosen = pa.array(names).take(pa.array(places[np.nonzero(grid)[1]]))
    counts = grid.sum(axis=1)
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), chosen, mask=pa.array(counts == 0))


def overflow_map(overflow: Mapping[str, pa.StringArray]) -> pa.MapArray | None:
    """For each row, its overflow texts by column name; null if it has none."""
    if not overflow:
        return None
    names = list(overflow)
    grid = np.stack(
        [pc.is_valid(texts).to_numpy(zero_copy_only=False) for texts in overflow.values()], axis=1
    )
    rows, places = np.nonzero(grid)
    # All texts one column after the other; row i of column c is entry c * rows + i.
    every = pa.concat_arrays([texts.cast(pa.string()) for texts in overflow.values()])
    values = every.take(pa.array(places * grid.shape[0] + rows))
    keys = pa.array(names).take(pa.array(places))
    counts = grid.sum(axis=1)
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    validity = pa.py_buffer(np.packbits(counts > 0, bitorder="little"))
    entries = pa.StructArray.from_arrays(
        [keys, values], fields=[pa.field("key", pa.string(), False), pa.field("value", pa.string())]
    )
    return pa.Array.from_buffers(
        EXACT_TYPE, len(counts), [validity, pa.py_buffer(offsets)], children=[entries]
    )
