"""Every change of each row, with all that is known of the row: what modes that keep the past need.

The frames hold the table's columns in a struct ``row``, so that no name of the source can meet one
of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from walflow.destinations.base import TableChanges
from walflow.destinations.lake.merging import missing_row
from walflow.destinations.lake.table_schema import EXACT, LakeTableSchema
from walflow.destinations.lake.truncates import EMPTIED, between_truncates
from walflow.model import ChangeStats, TableSchema
from walflow.spark.changes import EXACT_TYPE
from walflow.spark.checkpoints import checkpointed
from walflow.spark.names import quoted
from walflow.spark.net import row_events, sometimes_unsent
from walflow.spark.row_identity import identity_of, may_be_inexact, texts_map

if TYPE_CHECKING:
    from pyspark.sql import Column as Expr
    from pyspark.sql import DataFrame

__all__ = ["filled_from", "row_changes", "stored_key"]

_KEYS_TO_BROADCAST = 1_000_000


def row_changes(changes: TableChanges) -> DataFrame:
    """What happened to the rows of a keyed table, a change of key at both keys.

    Columns: ``at`` (position), ``time``, ``kind``, ``key``, ``gone`` (the key has no row after it:
    a delete, or a row that changed its key), ``row`` and ``exact`` (for what is gone: as far as the
    log tells), ``unchanged`` (columns whose value the changes do not tell, null if there are none),
    ``base`` (the key of the destination's row that has it), ``emptied`` (the next truncate).
    """
    schema, stats = changes.schema, changes.stats
    rows = between_truncates(changes.changes, stats)
    events = row_events(
        rows,
        schema,
        stats,
        within=[EMPTIED],
        followed=stats.unchanged,
        chains=stats.unchanged and changes.key_chains,
    )
    events = events.withColumn("gone", sf.col("deletes") | sf.col("departs"))
    if stats.unchanged:
        events = _with_known_values(events, schema, stats)
    else:
        nothing = sf.lit(None)
        events = events.withColumn("unchanged", nothing.cast("array<string>"))
        events = events.withColumn("base", nothing.cast(events.schema["key"].dataType))
    return events.select(
        "at",
        "time",
        "kind",
        "key",
        "gone",
        "row",
        "exact",
        "unchanged",
        "base",
        sf.col(EMPTIED).alias("emptied"),
    )


def _with_known_values(events: DataFrame, schema: TableSchema, stats: ChangeStats) -> DataFrame:
    """With each value that was not sent from the row's newest change that has it."""
    so_far = Window.partitionBy(EMPTIED, "origin", "base").orderBy("at")
    numbers = {column.name: f"known{n}" for n, column in enumerate(sometimes_unsent(schema))}
    known = {}
    for name, number in numbers.items():
        sent = ~sf.coalesce(sf.array_contains("unchanged", name), sf.lit(False))
        values = sf.struct(
            sf.col(f"row.{quoted(name)}").alias("value"),
            sf.try_element_at(sf.col("exact"), sf.lit(name)).alias("exact"),
        )
        newest = sf.last(sf.when(~sf.col("gone") & sent, values), ignorenulls=True)
        known[number] = newest.over(so_far)
    events = events.withColumns(known)
    gone = sf.col("gone")
    row = sf.struct(
        *(
            (
                sf.when(gone, sf.col("row")[name]).otherwise(sf.col(f"{numbers[name]}.value"))
                if name in numbers
                else sf.col("row")[name]
            ).alias(name)
            for name in schema.column_names
        )
    )
    lacking = sf.filter(
        sf.array(
            *(sf.when(sf.col(k).isNull(), sf.lit(name)) for name, k in numbers.items()),
            sf.lit(None).cast("string"),
        ),
        lambda name: name.isNotNull(),
    )
    overflow = sf.col("exact")
    if stats.overflow:
        texts = texts_map(
            [
                (
                    name,
                    sf.col(f"{numbers[name]}.exact")
                    if name in numbers
                    else sf.try_element_at(overflow, sf.lit(name)),
                )
                for name in schema.column_names
            ]
        )
        overflow = sf.when(gone, overflow).otherwise(texts)
    return events.select(
        *(name for name in events.columns if name not in ("row", "exact", "unchanged")),
        row.alias("row"),
        overflow.alias("exact"),
        sf.when(~gone & (sf.size(lacking) > 0), lacking).alias("unchanged"),
    )


def stored_key(lake_schema: LakeTableSchema, *, texts: bool) -> Expr:
    """What tells the rows of a keyed table apart, of rows as they are stored; the same as
    ``key`` and ``base`` of changes. ``texts``: whether exact texts are part of it."""
    columns = lake_schema.schema.key_columns
    values = {column.name: sf.col(quoted(column.name)) for column in columns}
    if not texts:
        return identity_of(columns, values, None)
    return identity_of(
        columns, values, {c.name: _stored_text(lake_schema, c.name) for c in columns}
    )


def _stored_text(lake_schema: LakeTableSchema, name: str) -> Expr:
    if not lake_schema.overflow:
        return sf.lit(None).cast("string")
    return sf.try_element_at(sf.col(EXACT), sf.lit(name))


def filled_from(
    table: DataFrame,
    changes: DataFrame,
    lake_schema: LakeTableSchema,
    stats: ChangeStats,
    newest_first: Sequence[Expr] = (),
) -> DataFrame:
    """The row changes with what they do not tell from the table's rows, of which those with other
    keys are left alone. ``newest_first``: which of several rows with one key it is."""
    if not stats.unchanged:
        return changes
    schema = lake_schema.schema
    changes = checkpointed(changes)
    wanted = changes.where("unchanged IS NOT NULL").select("base").distinct()
    if stats.updates <= _KEYS_TO_BROADCAST:
        wanted = sf.broadcast(wanted)
    if lake_schema.overflow and not stats.overflow:
        # The changes know of no key with an exact text.
        for column in schema.key_columns:
            if may_be_inexact(column):
                table = table.where(_stored_text(lake_schema, column.name).isNull())
    number = (
        sf.row_number().over(Window.partitionBy("place").orderBy("order"))
        if newest_first
        else sf.lit(1)
    )
    stored = (
        table.select(
            stored_key(lake_schema, texts=stats.overflow).alias("place"),
            sf.struct(*(sf.col(quoted(name)) for name in schema.column_names)).alias("stored"),
            (sf.col(EXACT) if lake_schema.overflow else sf.lit(None).cast(EXACT_TYPE)).alias(
                "stored_exact"
            ),
            sf.struct(*newest_first, sf.lit(0)).alias("order"),
        )
        .join(wanted, sf.col("place").eqNullSafe(sf.col("base")))
        .select("place", "stored", "stored_exact", number.alias("number"))
        .where("number = 1")
    )
    place = sf.when(sf.col("unchanged").isNotNull(), sf.col("base"))
    found = changes.join(stored, place.eqNullSafe(sf.col("place")), "left")
    return checkpointed(_filled(found, schema).select(*changes.columns))


def _filled(found: DataFrame, schema: TableSchema) -> DataFrame:
    missing = sf.raise_error(sf.lit(missing_row(schema)))
    optional = {column.name for column in sometimes_unsent(schema)}

    def value(name: str) -> Expr:
        own = sf.col("row")[name]
        if name not in optional:
            return own.alias(name)
        base = sf.when(sf.col("stored").isNull(), missing).otherwise(sf.col("stored")[name])
        return sf.when(sf.array_contains("unchanged", name), base).otherwise(own).alias(name)

    nothing = sf.create_map().cast(EXACT_TYPE)
    stays = sf.map_filter("stored_exact", lambda n, _: sf.array_contains(sf.col("unchanged"), n))
    texts = sf.map_concat(sf.coalesce(stays, nothing), sf.coalesce(sf.col("exact"), nothing))
    # Each a step of its own: inside a lambda Spark would take a name for the new column.
    found = found.withColumn("exact", sf.when(sf.size(texts) > 0, texts))
    found = found.withColumn("row", sf.struct(*(value(name) for name in schema.column_names)))
    return found.withColumn("unchanged", sf.lit(None).cast("array<string>"))
