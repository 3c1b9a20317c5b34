"""Whether a batch is small, and how it is written then."""

from __future__ import annotations

from walflow.destinations.base import TableChanges
from walflow.destinations.lake.batch import Batch
from walflow.destinations.lake.net_columns import fits_memory
from walflow.destinations.lake.small.with_key import merge_keyed
from walflow.destinations.lake.small.without_key import merge_keyless
from walflow.destinations.lake.table_schema import LakeTableSchema

__all__ = ["is_small", "write_small"]

_MOST_ROWS = 5_000
_MOST_BYTES = 16 << 20
"""Spark keeps up to 48 MB of Arrow's in a plan."""


def is_small(changes: TableChanges) -> bool:
    return fits_memory(changes, _MOST_ROWS, _MOST_BYTES)


def write_small(batch: Batch) -> LakeTableSchema:
    """In one commit; the table's schema after it. FallBackToSpark: it cannot be done so, and
    nothing has happened."""
    return merge_keyed(batch) if batch.lake_schema.schema.key else merge_keyless(batch)
