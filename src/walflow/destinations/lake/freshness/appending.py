"""A round of a table that is shown by a view: its net changes, appended in one commit.

What it costs depends on the round. Only rounds that do not say all need the table: rows of which
Postgres did not send every value are completed from what the view shows, and a truncate names
every key.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from walflow.destinations.lake.batch import Batch, kept, stored_rows
from walflow.destinations.lake.format import Constant
from walflow.destinations.lake.freshness.parts import (
    BATCH,
    REMOVED,
    Parts,
    base_of,
    changes_of,
    changes_schema,
    stored_parts,
)
from walflow.destinations.lake.freshness.shown import show, shown
from walflow.destinations.lake.merging import with_base_rows
from walflow.destinations.lake.table_schema import EXACT, LakeTableSchema
from walflow.model import ChangeType, Lsn, TableSchema
from walflow.spark.changes import EXACT_TYPE
from walflow.spark.checkpoints import checkpointed
from walflow.spark.names import SOURCE, TARGET, quoted
from walflow.spark.net import net_changes

if TYPE_CHECKING:
    from pyspark.sql import Column as Expr
    from pyspark.sql import DataFrame

__all__ = ["append_batch"]

_BASE, _CHANGES, _SHOWN = "walflow_base", "walflow_changes", "walflow_shown"

_FEW = 1000
"""So many keys are named to the scan of the base, which may then pass files over."""
_COUNTABLE = ("smallint", "int", "bigint", "string")


def append_batch(batch: Batch, upto: Lsn) -> LakeTableSchema:
    """Append the changes up to the position; the form of the table after it."""
    stats = batch.changes.stats
    net = net_changes(batch.changes.changes, batch.lake_schema.schema, stats)
    may_need_overflow = stats.overflow and not batch.lake_schema.overflow
    with ExitStack() as stack:
        if stats.unchanged or batch.changes.truncated or may_need_overflow:
            net = stack.enter_context(kept(net))
        if may_need_overflow and not net.where("_exact IS NOT NULL").isEmpty():
            batch = _with_overflow(batch)
        lake_schema = batch.lake_schema
        if batch.changes.truncated:
            net = _with_removed(net, batch)
        elif stats.unchanged:
            net = _completed(net, batch)
        rows = stored_rows(net, changes_schema(lake_schema), _ours(lake_schema, upto))
        batch.format.append(rows, changes_of(lake_schema.name))
    return lake_schema


def _ours(lake_schema: LakeTableSchema, upto: Lsn) -> Mapping[str, Expr | Constant]:
    ours: dict[str, Expr | Constant] = {
        BATCH: int(upto),
        REMOVED: sf.col("_change_type") == "delete",
    }
    if (names := lake_schema.plan.metadata) is not None:
        ours[names.change_type] = sf.col("_kind")
        ours[names.lsn] = sf.col("_lsn")
        ours[names.timestamp] = sf.col("_timestamp")
    return ours


def _with_overflow(batch: Batch) -> Batch:
    """The round of a table that has the column of exact texts, in both parts and in the view."""
    format, spark = batch.format, batch.spark
    lake_schema = replace(batch.lake_schema, overflow=True)
    names = base_of(lake_schema.name), changes_of(lake_schema.name)
    for name in names:
        stored = format.look(spark, name)
        if stored is not None and EXACT not in stored.columns:
            format.add_column(spark, name, EXACT, EXACT_TYPE)
    both = (format.look(spark, name) for name in names)
    if (parts := Parts.of(lake_schema.name, stored_parts(*both))) is not None:
        show(format, spark, parts)
    return replace(batch, lake_schema=lake_schema)


def _completed(net: DataFrame, batch: Batch) -> DataFrame:
    """The net changes with all values: those that were not sent are in the rows that the view
    shows, under the keys that they had."""
    schema, spark = batch.lake_schema.schema, batch.spark
    lacks = sf.col("_unchanged").isNotNull()
    own = sf.struct(*(sf.col(quoted(c.name)) for c in schema.key_columns), "_exact")
    net = net.withColumn("_old", sf.when(lacks, sf.coalesce(sf.col("_old"), own)))
    key = [sf.col(f"_old.{quoted(c.name)}") for c in schema.key_columns]
    keys = checkpointed(net.where(lacks).select(*key).distinct())
    base, changes = _tables(batch)
    views = {
        _BASE: _with_keys(base, keys, schema),
        _CHANGES: _with_keys(changes, keys, schema),
    }
    for name, frame in views.items():
        frame.createOrReplaceTempView(name)
    spark.sql(shown(_parts(batch.lake_schema), _BASE, _CHANGES)).createOrReplaceTempView(_SHOWN)
    try:
        return with_base_rows(net, _SHOWN, batch.lake_schema)
    finally:
        for name in (*views, _SHOWN):
            spark.catalog.dropTempView(name)


def _with_keys(table: DataFrame, keys: DataFrame, schema: TableSchema) -> DataFrame:
    """The table's rows that have one of the keys."""
    first = schema.key_columns[0]
    if first.spark_type in _COUNTABLE:
        some = [row[0] for row in keys.select(quoted(first.name)).limit(_FEW + 1).collect()]
        if len(some) <= _FEW:
            table = table.where(sf.col(quoted(first.name)).isin(some))
    keys = sf.broadcast(keys.alias(SOURCE))
    return table.alias(TARGET).join(keys, _same_key(schema), "left_semi")


def _same_key(schema: TableSchema) -> list[Expr]:
    names = map(quoted, schema.key)
    return [sf.col(f"{TARGET}.{name}") == sf.col(f"{SOURCE}.{name}") for name in names]


def _with_removed(net: DataFrame, batch: Batch) -> DataFrame:
    """The net changes after a truncate, and the removal of all other keys that there may be."""
    schema, truncate = batch.lake_schema.schema, batch.changes.stats.last_truncate
    key = [sf.col(quoted(name)) for name in schema.key]
    base, changes = (table.select(*key) for table in _tables(batch))
    there = base.union(changes).distinct().alias(TARGET)
    gone = there.join(net.alias(SOURCE), _same_key(schema), "left_anti")
    removed = gone.select(
        *key,
        sf.lit("delete").alias("_change_type"),
        sf.lit(ChangeType.TRUNCATE.value).alias("_kind"),
        sf.lit(truncate and truncate[0]).cast("bigint").alias("_lsn"),
    )
    return net.unionByName(removed, allowMissingColumns=True)


def _tables(batch: Batch) -> tuple[DataFrame, DataFrame]:
    name, table = batch.lake_schema.name, batch.spark.table
    identifier = batch.format.identifier
    return table(identifier(base_of(name))), table(identifier(changes_of(name)))


def _parts(lake_schema: LakeTableSchema) -> Parts:
    return Parts(
        lake_schema.name,
        tuple(column.name for column in lake_schema.columns),
        lake_schema.schema.key,
    )
