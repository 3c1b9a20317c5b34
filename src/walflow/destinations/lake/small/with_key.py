"""Small batches of tables with a key."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as sf

from walflow.destinations.lake.batch import Batch, stored_rows
from walflow.destinations.lake.fallback import FallBackToSpark, Reason
from walflow.destinations.lake.merging import merge_net, our_values
from walflow.destinations.lake.net_columns import columnar_changes
from walflow.destinations.lake.netting.completing import completed
from walflow.destinations.lake.netting.net_changes import ColumnarChanges, Mask
from walflow.destinations.lake.netting.overflow import OVERFLOW, texts_map
from walflow.destinations.lake.small.conditions import among
from walflow.destinations.lake.small.relation import (
    Typed,
    fetched,
    numbers_of,
    relation,
    stored_overflow,
)
from walflow.destinations.lake.table_schema import EXACT, LakeTableSchema
from walflow.spark.changes import EXACT_TYPE
from walflow.spark.names import TARGET, quoted

__all__ = ["merge_keyed"]

_UNCHANGED = pa.list_(pa.string())


def merge_keyed(batch: Batch) -> LakeTableSchema:
    changes = columnar_changes(batch.changes, overflow=batch.lake_schema.overflow)
    rows = _net_rows(batch, changes)
    within = among(batch.lake_schema.schema.key_columns, rows)
    if within is None and not changes.empties:
        raise FallBackToSpark("its rows cannot be found by their keys", Reason.TYPES)
    batch = batch.with_overflow(rows["_exact"].null_count < rows.num_rows)
    lake_schema = batch.lake_schema
    net = relation(batch.spark, rows, _types(lake_schema))
    if changes.empties:
        ours = {name: sf.col(value) for name, value in our_values(lake_schema).items()}
        batch.format.overwrite(stored_rows(net, lake_schema, ours), lake_schema.name)
        return lake_schema
    merge_net(
        net,
        batch.identifier,
        lake_schema,
        partial=rows["_unchanged"].null_count < rows.num_rows,
        within=within,
    )
    return lake_schema


def _types(lake_schema: LakeTableSchema) -> Typed:
    """Of the net rows, as walflow.spark.net has them."""
    return {
        "_change_type": "string",
        "_kind": "string",
        "_lsn": "bigint",
        "_timestamp": "timestamp",
        "_unchanged": "array<string>",
        "_exact": EXACT_TYPE,
        **{column.name: column.spark_type for column in lake_schema.schema.columns},
    }


def _net_rows(batch: Batch, changes: ColumnarChanges) -> pa.Table:
    schema = batch.lake_schema.schema
    moved = changes.base != changes.own
    far = {name: mask & moved for name, mask in changes.unsent.items() if (mask & moved).any()}
    near = {name: mask & ~moved for name, mask in changes.unsent.items()}
    rows, texts = changes.rows, dict(changes.overflow)
    if far:
        # A MERGE has the table's row at hand only where the key is the same.
        rows = _with_base_rows(batch, replace(changes, unsent=far), texts)
    count = rows.num_rows
    # Of a table that is emptied nothing is left that could go.
    goes = np.full(changes.keys.num_rows, not changes.empties)
    goes[changes.own] = False
    gone = changes.keys.filter(pa.array(goes))
    origins = changes.origins
    come = {
        "_change_type": pa.array(["upsert"] * count, pa.string()),
        "_kind": origins["_change_type"].cast(pa.string()),
        "_lsn": origins["_lsn"],
        "_timestamp": origins["_timestamp"],
        "_unchanged": _unchanged(near, count),
        "_exact": texts_map(texts, count),
        **{name: rows[name] for name in schema.column_names},
    }
    left = {"_change_type": pa.array(["delete"] * gone.num_rows, pa.string())}
    left |= {name: gone[name] for name in schema.key}
    if EXACT in gone.column_names:
        left["_exact"] = gone[EXACT].cast(OVERFLOW)
    if not gone.num_rows:
        return pa.table(come)
    return pa.concat_tables([pa.table(come), pa.table(left)], promote_options="default")


def _unchanged(near: dict[str, Mask], count: int) -> pa.Array:
    lists: list[list[str] | None] = [None] * count
    for name, mask in near.items():
        for place in np.flatnonzero(mask):
            lists[place] = [*(lists[place] or []), name]
    return pa.array(lists, _UNCHANGED)


def _with_base_rows(batch: Batch, changes: ColumnarChanges, texts: dict[str, pa.Array]) -> pa.Table:
    """The rows that come, with what no change tells of those that changed their key."""
    lake_schema = batch.lake_schema
    schema = lake_schema.schema
    lacking = np.logical_or.reduce(list(changes.unsent.values()))
    wanted = np.unique(changes.base[lacking])
    keys = changes.keys.take(pa.array(wanted))
    if (within := among(schema.key_columns, keys)) is None:
        raise FallBackToSpark("its rows cannot be found by their keys", Reason.TYPES)
    wanted_columns = {*schema.key, *changes.unsent}
    types = {c.name: c.spark_type for c in schema.columns if c.name in wanted_columns}
    values = {name: f"{TARGET}.{quoted(name)}" for name in types}
    if EXACT in changes.keys.column_names:
        types[EXACT], values[EXACT] = EXACT_TYPE, stored_overflow(lake_schema)
    there = fetched(batch, values, types, within)
    numbers = numbers_of(changes.identity, keys, there)
    there, numbers = there.filter(pa.array(numbers >= 0)), wanted[numbers[numbers >= 0]]
    # Each once: a key that the table has twice does not tell which row it is.
    if not np.array_equal(np.sort(numbers), wanted):
        raise FallBackToSpark(
            "it lacks a row whose unchanged columns a change relies on", Reason.MISSING
        )
    return completed(changes.rows, changes, there, numbers, texts)
