"""The table equals its source, but rows that were deleted stay, and are marked."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from walflow.destinations.lake.batch import Batch, append_rows, kept, only_inserts, stored_values
from walflow.destinations.lake.format import Constant
from walflow.destinations.lake.keyless import mark_keyless
from walflow.destinations.lake.merging import mark_net, with_base_rows
from walflow.destinations.lake.modes.timelines import row_changes
from walflow.destinations.lake.table_schema import DELETED, LakeTableSchema
from walflow.destinations.lake.truncates import Truncate, first_truncate
from walflow.model import ChangeStats, ChangeType, TableSchema
from walflow.spark.net import base_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["apply", "copied", "held", "keeps_past"]

keeps_past = True


def copied(
    lake_schema: LakeTableSchema, metadata: Mapping[str, Constant], time: datetime
) -> Mapping[str, Constant]:
    return {**metadata, DELETED: False}


def held(table: DataFrame, lake_schema: LakeTableSchema) -> DataFrame:
    return stored_values(table.where(f"NOT {DELETED}"), lake_schema)


def apply(batch: Batch) -> LakeTableSchema:
    if batch.lake_schema.schema.key:
        return _merge(batch)
    if only_inserts(batch.changes):
        return append_rows(batch, {DELETED: sf.lit(False)})
    truncate = first_truncate(batch.changes)
    return mark_keyless(batch, truncate, _emptied(batch.lake_schema, truncate))


def _merge(batch: Batch) -> LakeTableSchema:
    changes, stats = batch.changes, batch.changes.stats
    emptied = _emptied(batch.lake_schema, first_truncate(changes))
    with kept(_net(row_changes(changes), batch.lake_schema.schema, stats)) as net:
        batch = batch.with_overflow_for(net, "_exact")
        lake_schema, identifier = batch.lake_schema, batch.identifier
        if stats.unchanged and stats.key_changes:
            net = with_base_rows(net, identifier, lake_schema)
        mark_net(net, identifier, lake_schema, partial=stats.unchanged, emptied=emptied)
    return lake_schema


def _net(changes: DataFrame, schema: TableSchema, stats: ChangeStats) -> DataFrame:
    """For each key the last row that it had, if the changes tell it, and what happened to it last.

    As net changes are, with a column ``_DELETED``. An ``upsert`` has the row, which may be deleted
    by now, a ``delete`` only the key: the row is the table's.
    """
    by_key = changes.groupBy("key").agg(
        sf.max_by(sf.struct("at", "time", "kind", "gone", "emptied", "row", "exact"), "at").alias(
            "last"
        ),
        sf.max_by(
            sf.struct("row", "exact", "unchanged", "base"), sf.when(~sf.col("gone"), sf.col("at"))
        ).alias("there"),
    )
    known = sf.col("there").isNotNull()
    swept = ~sf.col("last.gone") & sf.col("last.emptied").isNotNull()
    kind = (
        sf.when(swept, ChangeType.TRUNCATE.value)
        .when(sf.col("last.gone"), ChangeType.DELETE.value)
        .otherwise(sf.col("last.kind"))
    )
    unchanged, base = sf.col("there.unchanged"), sf.col("there.base")
    old = base_key(base, schema, stats)
    return by_key.select(
        sf.when(known, "upsert").otherwise("delete").alias("_change_type"),
        kind.alias("_kind"),
        sf.when(swept, sf.col("last.emptied.at._lsn"))
        .otherwise(sf.col("last.at._lsn"))
        .alias("_lsn"),
        sf.when(swept, sf.col("last.emptied.time"))
        .otherwise(sf.col("last.time"))
        .alias("_timestamp"),
        unchanged.alias("_unchanged"),
        sf.when(unchanged.isNotNull() & ~base.eqNullSafe(sf.col("key")), old).alias("_old"),
        sf.when(known, sf.col("there.exact")).otherwise(sf.col("last.exact")).alias("_exact"),
        (swept | sf.col("last.gone")).alias(DELETED),
        *(
            sf.when(known, sf.col("there.row")[name])
            .otherwise(sf.col("last.row")[name])
            .alias(name)
            for name in schema.column_names
        ),
    )


def _emptied(lake_schema: LakeTableSchema, truncate: Truncate | None) -> Mapping[str, str] | None:
    """What our columns have, in SQL, in rows that a truncate deleted."""
    if truncate is None:
        return None
    values = {DELETED: "true"}
    if (names := lake_schema.metadata) is not None:
        values[names.change_type] = f"'{ChangeType.TRUNCATE.value}'"
        values[names.lsn] = str(truncate.lsn)
        values[names.timestamp] = truncate.time
    return values
