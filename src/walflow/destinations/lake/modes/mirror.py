"""The table equals its source: one row a row."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import structlog
from pyspark.sql import functions as sf

from walflow.destinations.lake.batch import (
    Batch,
    append_rows,
    kept,
    only_inserts,
    stored_rows,
    stored_values,
)
from walflow.destinations.lake.fallback import FallBackToSpark
from walflow.destinations.lake.format import Constant
from walflow.destinations.lake.keyless import merge_keyless, overwrite_keyless
from walflow.destinations.lake.merging import merge_net, our_values, with_base_rows
from walflow.destinations.lake.small import is_small, write_small
from walflow.destinations.lake.table_schema import LakeTableSchema
from walflow.spark.connect import is_remote_session
from walflow.spark.net import net_changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["apply", "copied", "held", "keeps_past"]

_logger = structlog.get_logger(__name__)

keeps_past = False


def copied(
    lake_schema: LakeTableSchema, metadata: Mapping[str, Constant], time: datetime
) -> Mapping[str, Constant]:
    return metadata


def held(table: DataFrame, lake_schema: LakeTableSchema) -> DataFrame:
    return stored_values(table, lake_schema)


def apply(batch: Batch) -> LakeTableSchema:
    """By Spark, in the cheapest way that is right."""
    if _only_appends(batch):
        return append_rows(batch, {})
    if is_small(batch.changes):
        try:
            return write_small(batch)
        except FallBackToSpark as reason:
            _logger.debug("netted by Spark", table=str(batch.lake_schema.name), reason=str(reason))
    if batch.lake_schema.schema.key:
        return _merge(batch)
    return overwrite_keyless(batch) if batch.changes.truncated else merge_keyless(batch)


def _only_appends(batch: Batch) -> bool:
    # A Spark Connect server goes on with what a client that is gone has asked for, and two appends
    # do not get in each other's way: a MERGE sees that the table has changed under it.
    outlives = bool(batch.lake_schema.schema.key) and is_remote_session(batch.spark)
    return only_inserts(batch.changes) and not outlives


def _merge(batch: Batch) -> LakeTableSchema:
    schema, changes, stats = batch.lake_schema.schema, batch.changes, batch.changes.stats
    net_rows = net_changes(changes.changes, schema, stats, chains=changes.key_chains)
    with kept(net_rows) as net:
        batch = batch.with_overflow_for(net, "_exact")
        lake_schema, identifier = batch.lake_schema, batch.identifier
        if batch.changes.truncated:
            rows = net.where("_change_type = 'upsert'")
            ours = {name: sf.col(value) for name, value in our_values(lake_schema).items()}
            batch.format.overwrite(stored_rows(rows, lake_schema, ours), lake_schema.name)
        elif stats.unchanged and stats.key_changes:
            merge_net(
                with_base_rows(net, identifier, lake_schema), identifier, lake_schema, partial=True
            )
        else:
            merge_net(net, identifier, lake_schema, partial=stats.unchanged)
    return lake_schema
