"""Net changes in columns: Arrow reads the log's files, and finds here what they come to.

A job of Spark's costs some tenths of a second, and a MERGE goes through rows: in columns the same
takes a tenth of the CPU. What does not fit into memory is left to Spark (see walflow.spark.net).
"""

from __future__ import annotations

from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq

from walflow.destinations.base import TableChanges
from walflow.destinations.lake.netting.by_key import net_by_key
from walflow.destinations.lake.netting.by_values import net_by_values
from walflow.destinations.lake.netting.identity import identity_of_rows
from walflow.destinations.lake.netting.log_rows import LogRows, read_log
from walflow.destinations.lake.netting.net_changes import ColumnarChanges
from walflow.destinations.lake.netting.overflow import texts_by_column
from walflow.destinations.lake.table_schema import EXACT

__all__ = ["ColumnarChanges", "columnar_changes", "fits_memory"]

_MOST_ROWS = 4_000_000
_MOST_BYTES = 1 << 30
"""Of a batch in memory; what is larger is left to Spark, which can put it on disk."""


def fits_memory(
    changes: TableChanges, most_rows: int = _MOST_ROWS, most_bytes: int = _MOST_BYTES
) -> bool:
    """Whether the changes can be netted here."""
    # Rows without a column are told apart by nothing.
    if not changes.schema.columns or not _files(changes):
        return False
    return changes.stats.rows <= most_rows and _bytes(changes) <= most_bytes


def columnar_changes(changes: TableChanges, *, overflow: bool) -> ColumnarChanges:
    """What the changes, which fit into memory, come to. ``overflow``: whether rows of the table may
    have overflow texts."""
    log = read_log(changes, overflow=overflow or changes.stats.overflow)
    stats = changes.stats
    if stats.inserts == stats.rows and not stats.unchanged:
        return _inserted(log, changes)
    net = net_by_key if changes.schema.key else net_by_values
    return net(log, changes.schema)


def _files(changes: TableChanges) -> list[str]:
    return list(chain(changes.files, *(part.files for part in changes.former)))


def _bytes(changes: TableChanges) -> int:
    """About what they need in memory, where a null takes as much as a number."""
    files = map(pq.read_metadata, _files(changes))
    groups = (file.row_group(number) for file in files for number in range(file.num_row_groups))
    width = 8 * len(changes.schema.columns)
    return sum(max(group.total_byte_size, group.num_rows * width) for group in groups)


def _inserted(log: LogRows, changes: TableChanges) -> ColumnarChanges:
    """The position proves that none of them is there yet."""
    has_texts = EXACT in log.rows.column_names
    return ColumnarChanges(
        tuple(identity_of_rows(changes.schema, overflow=False)),
        pa.table({}),
        log.rows.select(list(changes.schema.column_names)),
        log.origins,
        texts_by_column(log.rows[EXACT].combine_chunks()) if has_texts else {},
    )
