"""Net changes of keyless tables: a multiset of rows, so what counts is how many come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from walflow.model import ChangeStats, ChangeType, TableSchema
from walflow.spark.changes import since_truncate
from walflow.spark.names import quoted
from walflow.spark.row_identity import (
    has_zeros,
    identity_of,
    no_overflow,
    only_old_texts,
    without_old_texts,
    zeros_of,
)

if TYPE_CHECKING:
    from pyspark.sql import Column as Expr
    from pyspark.sql import DataFrame

__all__ = ["net_keyless", "row_identity"]


def net_keyless(changes: DataFrame, schema: TableSchema, stats: ChangeStats) -> DataFrame:
    """One row for each row that comes or goes: ``_change_type`` (``insert`` or ``delete``),
    ``_kind``, ``_lsn``, ``_timestamp`` (of the last change that added an equal row, null if there
    is none), ``_exact``, columns."""
    rows = since_truncate(changes, stats)
    names = [quoted(name) for name in schema.column_names]
    is_delete = sf.col("_change_type") == ChangeType.DELETE.value
    weighted = rows.select(
        sf.struct(*names).alias("row"),
        (without_old_texts(sf.col("_exact")) if stats.overflow else no_overflow()).alias("exact"),
        sf.when(is_delete, -1).otherwise(1).alias("weight"),
        sf.when(~is_delete, sf.struct("_lsn", "_seq", "_timestamp", "_change_type")).alias("added"),
    )
    if stats.updates:
        gone = rows.where(sf.col("_change_type") == ChangeType.UPDATE.value).select(
            sf.struct(*(sf.col(f"_old.{name}") for name in names)).alias("row"),
            (only_old_texts(sf.col("_exact")) if stats.overflow else no_overflow()).alias("exact"),
            sf.lit(-1).alias("weight"),
        )
        weighted = weighted.unionByName(gone, allowMissingColumns=True)
    net = weighted.groupBy(row_identity(schema, sf.col("row"), sf.col("exact"))).agg(
        sf.first("row").alias("row"),
        sf.first("exact").alias("exact"),
        sf.sum("weight").alias("count"),
        sf.max("added").alias("added"),
    )
    kind = sf.when(sf.col("count") > 0, ChangeType.INSERT.value).otherwise(ChangeType.DELETE.value)
    each = sf.explode(sf.sequence(sf.lit(1), sf.abs("count").cast("int")))
    return (
        net.where("count <> 0")
        .select(
            kind.alias("_change_type"),
            sf.col("added._change_type").alias("_kind"),
            sf.col("added._lsn").alias("_lsn"),
            sf.col("added._timestamp").alias("_timestamp"),
            sf.col("exact").alias("_exact"),
            "row",
            each.alias("number"),
        )
        .select(
            "_change_type",
            "_kind",
            "_lsn",
            "_timestamp",
            "_exact",
            *(sf.col("row")[name].alias(name) for name in schema.column_names),
        )
    )


def row_identity(schema: TableSchema, row: Expr, overflow: Expr) -> Expr:
    """What tells the rows of a keyless table apart: all values, also where Spark takes different
    ones for equal, and all exact texts."""
    values = identity_of(schema.columns, {name: row[name] for name in schema.column_names}, None)
    texts = sf.sort_array(sf.map_entries(overflow))
    zeros = [zeros_of(column, row[column.name]) for column in schema.columns if has_zeros(column)]
    return sf.struct(
        values.alias("values"), texts.alias("texts"), sf.struct(*zeros, sf.lit(0)).alias("zeros")
    )
