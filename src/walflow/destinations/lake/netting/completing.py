"""Rows that come, with what no change tells of them, from the rows that the table has."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from walflow.destinations.lake.netting.net_changes import ColumnarChanges, Ints
from walflow.destinations.lake.netting.overflow import text_of
from walflow.destinations.lake.table_schema import EXACT

__all__ = ["completed"]


def completed(
    rows: pa.Table,
    changes: ColumnarChanges,
    there: pa.Table,
    numbers: Ints,
    texts: dict[str, pa.Array],
) -> pa.Table:
    """The rows (those of the changes) with what is ``unsent``. ``there``: rows of the table, and,
    as ``numbers``, which of the keys they have: each that is wanted once. Overflow texts of what is
    taken from them get into ``texts``."""
    place = np.zeros(changes.keys.num_rows, dtype=np.int64)
    place[numbers] = np.arange(len(numbers))
    count = rows.num_rows
    for name, mask in changes.unsent.items():
        at = np.arange(count)
        at[mask] = count + place[changes.base[mask]]
        take = pa.array(at)
        index = rows.schema.get_field_index(name)
        both = pa.chunked_array([*rows[name].chunks, *there[name].chunks])
        rows = rows.set_column(index, rows.schema.field(index), both.take(take))
        if EXACT in there.column_names:
            own = texts.get(name, pa.nulls(count, pa.string()))
            stored = text_of(there[EXACT].combine_chunks(), name)
            texts[name] = pa.chunked_array([own, stored]).take(take).combine_chunks()
    return rows
