"""Every change is a row.

The order of changes is (position, ``_SEQ``). A change of key, and every update where there is no
key, takes two numbers: the former row is deleted just before the new one is updated. So
the newest row of a key says what became of it. Rows of a copy come before all changes of their
position.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from walflow.config.lake import Metadata
from walflow.destinations.lake.batch import Batch, stored_rows, stored_values
from walflow.destinations.lake.format import Constant
from walflow.destinations.lake.merging import assignments, inserted, our_values, viewed
from walflow.destinations.lake.modes.timelines import filled_from, row_changes, stored_key
from walflow.destinations.lake.table_schema import SEQ, LakeTableSchema
from walflow.model import ChangeType
from walflow.spark.connect import is_remote_session
from walflow.spark.names import SOURCE, TARGET, quoted
from walflow.spark.net_keyless import row_identity
from walflow.spark.row_identity import only_old_texts, without_old_texts

if TYPE_CHECKING:
    from pyspark.sql import Column as Expr
    from pyspark.sql import DataFrame

__all__ = ["apply", "copied", "held", "keeps_past"]

keeps_past = True

_OF_COPY = -1
_TRUNCATE, _DELETE, _UPDATE = (
    ChangeType.TRUNCATE.value,
    ChangeType.DELETE.value,
    ChangeType.UPDATE.value,
)


def copied(
    lake_schema: LakeTableSchema, metadata: Mapping[str, Constant], time: datetime
) -> Mapping[str, Constant]:
    return {**metadata, SEQ: _OF_COPY}


def held(table: DataFrame, lake_schema: LakeTableSchema) -> DataFrame:
    names = _names(lake_schema)
    kind = sf.col(quoted(names.change_type))
    at = sf.struct(sf.col(quoted(names.lsn)).alias("lsn"), sf.col(SEQ).alias("seq"))
    found = table.where(kind == _TRUNCATE).agg(sf.max(at).alias("last")).first()
    rows = table.where(kind != _TRUNCATE)
    if found is not None and found["last"] is not None:
        lsn, seq = found["last"]
        rows = rows.where(at > sf.expr(f"named_struct('lsn', {lsn}L, 'seq', {seq}L)"))
    is_delete = kind == _DELETE
    if lake_schema.schema.key:
        newest = Window.partitionBy(stored_key(lake_schema, texts=True)).orderBy(at.desc())
        values = stored_values(
            rows, lake_schema, sf.row_number().over(newest).alias("number"), is_delete.alias("gone")
        )
        return values.where("number = 1 AND NOT gone").select("row", "exact")
    weight = sf.when(is_delete, -1).otherwise(1)
    copies = (
        stored_values(rows, lake_schema, weight.alias("weight"))
        .groupBy(row_identity(lake_schema.schema, sf.col("row"), sf.col("exact")).alias("identity"))
        .agg(
            sf.first("row").alias("row"),
            sf.first("exact").alias("exact"),
            sf.sum("weight").cast("int").alias("copies"),
        )
        .where("copies > 0")
    )
    each = sf.explode(sf.sequence(sf.lit(1), sf.col("copies")))
    return copies.select("row", "exact", each.alias("copy")).select("row", "exact")


def apply(batch: Batch) -> LakeTableSchema:
    """An append, whatever the changes are."""
    stats, lake_schema = batch.changes.stats, batch.lake_schema
    if lake_schema.schema.key and (stats.unchanged or stats.key_changes):
        rows = _followed(batch)
    else:
        rows = _as_sent(batch)
    batch = batch.with_overflow(stats.overflow)
    ours = {name: sf.col(quoted(value)) for name, value in our_values(batch.lake_schema).items()}
    _append(stored_rows(rows, batch.lake_schema, ours), batch)
    return batch.lake_schema


def _as_sent(batch: Batch) -> DataFrame:
    """The changes as they are; where there is no key, an update's former row too."""
    changes, schema, stats = batch.changes.changes, batch.lake_schema.schema, batch.changes.stats
    rows = _numbered(changes, 1).withColumn("_kind", sf.col("_change_type"))
    if stats.overflow:
        rows = rows.withColumn("_exact", without_old_texts(sf.col("_exact")))
    if schema.key or not stats.updates:
        return rows
    former = (
        _numbered(changes.where(sf.col("_change_type") == _UPDATE), 0)
        .withColumn("_kind", sf.lit(_DELETE))
        .withColumn("_exact", only_old_texts(sf.col("_exact")))
        .withColumns({name: sf.col("_old")[name] for name in schema.column_names})
    )
    return rows.unionByName(former)


def _followed(batch: Batch) -> DataFrame:
    """The changes with the values that they do not tell, and each change of key at both keys."""
    changes, lake_schema, stats = batch.changes, batch.lake_schema, batch.changes.stats
    names = _names(lake_schema)
    events = filled_from(
        batch.spark.table(batch.identifier),
        row_changes(changes),
        lake_schema,
        stats,
        newest_first=(-sf.col(quoted(names.lsn)), -sf.col(SEQ)),
    )
    gone, kind = sf.col("gone"), sf.col("kind")
    leaves = gone & (kind == _UPDATE)
    rows = events.select(
        sf.when(gone, _DELETE).otherwise(kind).alias("_kind"),
        sf.col("at._lsn").alias("_lsn"),
        sf.col("time").alias("_timestamp"),
        _number(sf.col("at._seq"), sf.when(leaves, 0).otherwise(1)).alias(SEQ),
        sf.col("exact").alias("_exact"),
        *(sf.col("row")[name].alias(name) for name in lake_schema.schema.column_names),
    )
    if not stats.truncates:
        return rows
    truncates = _numbered(changes.changes.where(sf.col("_change_type") == _TRUNCATE), 1)
    emptied = truncates.withColumn("_kind", sf.col("_change_type"))
    return rows.unionByName(emptied.select(*(quoted(name) for name in rows.columns)))


def _numbered(changes: DataFrame, place: int) -> DataFrame:
    return changes.withColumn(SEQ, _number(sf.col("_seq"), sf.lit(place)))


def _number(seq: Expr, place: Expr) -> Expr:
    """Two numbers for each change, of which the second is its own."""
    return seq * 2 + place


def _names(lake_schema: LakeTableSchema) -> Metadata:
    assert lake_schema.metadata is not None, "a history has metadata"
    return lake_schema.metadata


def _append(rows: DataFrame, batch: Batch) -> None:
    lake_schema = batch.lake_schema
    if not is_remote_session(batch.spark):
        batch.format.append(rows, lake_schema.name)
        return
    # A Spark Connect server goes on with what a client that is gone has asked for, and two appends
    # do not get in each other's way: a MERGE sees that the table has changed under it.
    lsn = quoted(_names(lake_schema).lsn)
    values = {column.name: f"{SOURCE}.{quoted(column.name)}" for column in lake_schema.columns}
    with viewed(rows) as view:
        batch.spark.sql(
            f"MERGE INTO {batch.identifier} {TARGET} USING {view} {SOURCE}"
            f" ON {TARGET}.{lsn} = {SOURCE}.{lsn} AND {TARGET}.{SEQ} = {SOURCE}.{SEQ}"
            f" AND {SOURCE}.{SEQ} >= 0"
            f" WHEN MATCHED THEN UPDATE SET {assignments({SEQ: f'{SOURCE}.{SEQ}'})}"
            f" WHEN NOT MATCHED THEN {inserted(values)}"
        )
