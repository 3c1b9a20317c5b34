"""Every version of a row is one: a slowly changing dimension of the second type.

A version is what a transaction left under a key; what it did and undid inside itself nobody could
see. It is valid from the commit that made it to the next one that changed or removed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from walflow.destinations.lake.batch import Batch, append_rows, kept, only_inserts, stored_values
from walflow.destinations.lake.format import Constant
from walflow.destinations.lake.merging import assignments, inserted, our_values, same_key, viewed
from walflow.destinations.lake.modes.timelines import filled_from, row_changes
from walflow.destinations.lake.table_schema import (
    CURRENT,
    EXACT,
    VALID_FROM,
    VALID_TO,
    LakeTableSchema,
)
from walflow.destinations.lake.truncates import Truncate, first_truncate
from walflow.model import TableSchema
from walflow.spark.connect import is_remote_session
from walflow.spark.names import SOURCE, TARGET, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["apply", "copied", "held", "keeps_past"]

keeps_past = True

_OPEN, _CLOSE = "open", "close"


def copied(
    lake_schema: LakeTableSchema, metadata: Mapping[str, Constant], time: datetime
) -> Mapping[str, Constant]:
    return {**metadata, VALID_FROM: time, VALID_TO: None, CURRENT: True}


def held(table: DataFrame, lake_schema: LakeTableSchema) -> DataFrame:
    return stored_values(table.where(CURRENT), lake_schema)


def apply(batch: Batch) -> LakeTableSchema:
    """One MERGE closes what was current under the keys that changed, and adds the new versions."""
    # (See mirror for what remote sessions have to do with it.)
    if only_inserts(batch.changes) and not is_remote_session(batch.spark):
        forever = {VALID_TO: sf.lit(None), CURRENT: sf.lit(True)}
        return append_rows(batch, {VALID_FROM: sf.col("_timestamp"), **forever})
    stats, truncate = batch.changes.stats, first_truncate(batch.changes)
    table = batch.spark.table(batch.identifier).where(CURRENT)
    changes = filled_from(table, row_changes(batch.changes), batch.lake_schema, stats)
    with kept(_steps(changes, batch.lake_schema.schema, truncate)) as steps:
        batch = batch.with_overflow_for(steps, "_exact")
        _merge(steps, batch, truncate)
    return batch.lake_schema


def _steps(changes: DataFrame, schema: TableSchema, truncate: Truncate | None) -> DataFrame:
    """What has to be done: ``_change_type`` is ``close`` for each key that changed, ``open`` for
    each new version, which may have an end (``_VALID_TO``) already."""
    timeline = Window.partitionBy("key").orderBy("at")
    at, time = sf.col("at"), sf.col("time")
    moment = sf.struct("at", "time")
    changes = changes.withColumn("next", sf.lead(moment).over(timeline))
    changes = changes.withColumn("is_first", sf.lag("at").over(timeline).isNull())
    changes = changes.withColumn("end", sf.least("next", "emptied"))
    end = sf.col("end")
    seen = ~sf.col("gone") & (end.isNull() | (end["at"]["_lsn"] != at["_lsn"]))
    closed = time
    if truncate is not None:
        closed = sf.when(at > sf.expr(truncate.at), sf.expr(truncate.time)).otherwise(time)
    steps = sf.array(sf.when(sf.col("is_first"), sf.lit(_CLOSE)), sf.when(seen, sf.lit(_OPEN)))
    changes = changes.withColumn("step", sf.explode(sf.array_compact(steps)))
    return changes.select(
        sf.col("step").alias("_change_type"),
        sf.col("kind").alias("_kind"),
        sf.col("at._lsn").alias("_lsn"),
        sf.when(sf.col("step") == _CLOSE, closed).otherwise(time).alias("_timestamp"),
        sf.when(end.isNotNull(), sf.greatest(time, end["time"])).alias(VALID_TO),
        sf.col("exact").alias("_exact"),
        *(sf.col("row")[name].alias(name) for name in schema.column_names),
    )


def _merge(steps: DataFrame, batch: Batch, truncate: Truncate | None) -> None:
    lake_schema = batch.lake_schema
    values = {name: f"{SOURCE}.{quoted(name)}" for name in lake_schema.schema.column_names}
    values |= {name: f"{SOURCE}.{quoted(value)}" for name, value in our_values(lake_schema).items()}
    values |= {VALID_FROM: f"{SOURCE}._timestamp", CURRENT: f"{SOURCE}.{VALID_TO} IS NULL"}
    if lake_schema.overflow:
        values[EXACT] = f"{SOURCE}._exact"
    rest = ""
    if truncate is not None:
        rest = f" WHEN NOT MATCHED BY SOURCE AND {TARGET}.{CURRENT} THEN {_close(truncate.time)}"
    # Of the predicate on the source, see merging.
    with viewed(steps) as view:
        batch.spark.sql(
            f"MERGE INTO {batch.identifier} {TARGET}"
            f" USING (SELECT * FROM {view} WHERE _change_type IN ('{_OPEN}', '{_CLOSE}')) {SOURCE}"
            f" ON {TARGET}.{CURRENT} AND {SOURCE}._change_type = '{_CLOSE}'"
            f" AND {same_key(lake_schema.schema, lake_schema.overflow)}"
            f" WHEN MATCHED THEN {_close(f'{SOURCE}._timestamp')}"
            f" WHEN NOT MATCHED AND {SOURCE}._change_type = '{_OPEN}'"
            f" THEN {inserted(values)}"
            f"{rest}"
        )


def _close(time: str) -> str:
    """Clocks may go back, a version's time does not."""
    ended = f"greatest({TARGET}.{VALID_FROM}, {time})"
    return f"UPDATE SET {assignments({VALID_TO: ended, CURRENT: 'false'})}"
