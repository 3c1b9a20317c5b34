"""What changes come to in a table without a key: rows are a multiset.

Postgres does not say which of several equal rows it removed: the one that came first goes first
(see lake.keyless).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from walflow.destinations.lake.netting.comparable import numbered
from walflow.destinations.lake.netting.identity import identity_of_rows
from walflow.destinations.lake.netting.log_rows import LogRows
from walflow.destinations.lake.netting.net_changes import ColumnarChanges
from walflow.destinations.lake.netting.overflow import texts_by_column
from walflow.destinations.lake.table_schema import EXACT
from walflow.model import ChangeType, TableSchema

__all__ = ["net_by_values"]


def net_by_values(log: LogRows, schema: TableSchema) -> ColumnarChanges:
    identity = identity_of_rows(schema, overflow=EXACT in log.rows.column_names)
    updates = np.flatnonzero(log.is_kind(ChangeType.UPDATE))
    deletes = log.is_kind(ChangeType.DELETE)
    every = log.rows
    if len(updates):
        every = pa.concat_tables([every, log.old.select(every.column_names).take(updates)])
    codes = numbered([part.of(every[part.column].combine_chunks()) for part in identity])
    count = log.rows.num_rows
    removed = np.concatenate([np.flatnonzero(deletes), np.arange(count, len(codes))])
    gone, firsts, removals = np.unique(codes[removed], return_index=True, return_counts=True)
    at = np.flatnonzero(~deletes)
    # Within a transaction by kind: that is what the table, too, knows of its rows.
    kinds = log.is_kind(ChangeType.UPDATE)[at]
    at = at[np.lexsort((log.seq[at], kinds, log.origins["_lsn"].to_numpy()[at]))]
    number = np.full(int(codes.max(initial=-1)) + 1, -1, dtype=np.int64)
    number[gone] = np.arange(len(gone))
    overflow = {}
    if EXACT in log.rows.column_names:
        texts = texts_by_column(log.rows[EXACT].combine_chunks())
        overflow = {name: column.take(pa.array(at)) for name, column in texts.items()}
    return ColumnarChanges(
        identity,
        every.take(removed[firsts]),
        log.rows.select(list(schema.column_names)).take(at),
        log.origins.take(at),
        overflow,
        number[codes[at]],
        empties=log.truncated,
        removals=removals.astype(np.int64),
    )
