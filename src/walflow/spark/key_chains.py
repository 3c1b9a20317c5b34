"""Whether rows changed their key more than once, as the change log's files tell it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from walflow.model import ChangeStats, ChangeType, TableSchema

__all__ = ["may_chain"]

_Key = tuple[Any, ...]

_MOST = 100_000
"""Rows that changed their key. To look through more takes longer than to leave it to Spark."""


def may_chain(files: Sequence[str], schema: TableSchema, stats: ChangeStats) -> bool:
    """False only if no row was given another key twice: then no key that a row came to is one that
    a row left. Reads the keys, in this process."""
    if not stats.key_changes:
        return False
    if not files or stats.overflow:
        # Keys that their types cannot hold are told apart by texts.
        return True
    came: set[_Key] = set()
    left: set[_Key] = set()
    for file in files:
        moved = _moved(file, schema.key)
        if moved.num_rows > _MOST or any(pa.types.is_nested(kind) for kind in moved.schema.types):
            return True
        columns = [column.to_pylist() for column in moved.columns]
        came |= set(zip(*columns[: len(schema.key)], strict=True))
        left |= set(zip(*columns[len(schema.key) :], strict=True))
    return not came.isdisjoint(left)


def _moved(path: str, key: Sequence[str]) -> pa.Table:
    """Of each row that changed its key: the columns of the new one, then those of the old one."""
    with pq.ParquetFile(path) as file:
        if "_old" not in file.schema_arrow.names:
            return pa.table({})
        changes = file.read(columns=["_change_type", "_old", *key])
    is_update = pc.equal(changes["_change_type"], ChangeType.UPDATE.value)
    changes = changes.filter(pc.and_(is_update, pc.is_valid(changes["_old"])))
    new = [changes[name].combine_chunks() for name in key]
    struct = changes["_old"].combine_chunks()
    # By number: a name may look like a path.
    old = [pc.struct_field(struct, [struct.type.get_field_index(name)]) for name in key]
    differ = [
        pc.fill_null(pc.not_equal(one, other.cast(one.type)), fill_value=True)
        for one, other in zip(new, old, strict=True)
        if not pa.types.is_nested(one.type)
    ]
    both = pa.table([*new, *old], names=[str(number) for number in range(2 * len(key))])
    return both.filter(reduce(pc.or_, differ)) if len(differ) == len(key) else both
