"""Net changes of keyed tables: what a part of the change log comes to, as DataFrame functions.

One row a key, the last state wins. Columns whose value Postgres did not send are taken from the
newest earlier change of the *row*, which may have had another key then; what no change of the
batch knows is left to the destination's row. (Of keyless tables: see net_keyless.)

The frames inside hold the table's columns in a struct ``row``, so that no name of the source can
meet one of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from walflow.model import OLD_EXACT, ChangeStats, ChangeType, Column, TableSchema
from walflow.spark.changes import EXACT_TYPE, since_truncate
from walflow.spark.checkpoints import checkpointed
from walflow.spark.names import quoted
from walflow.spark.row_identity import (
    identity_fields,
    identity_of,
    may_be_inexact,
    no_overflow,
    only_old_texts,
    overflow_texts,
    texts_map,
    without_old_texts,
)

if TYPE_CHECKING:
    from pyspark.sql import Column as Expr
    from pyspark.sql import DataFrame

__all__ = ["base_key", "net_changes", "row_events", "sometimes_unsent"]

UPSERT = "upsert"
DELETE = "delete"
# What Postgres stores in the row itself is always sent; only the rest can be left out.
_ALWAYS_SENT = (
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "date",
    "timestamp",
    "timestamp_ntz",
)


def net_changes(
    changes: DataFrame, schema: TableSchema, stats: ChangeStats, *, chains: bool = True
) -> DataFrame:
    """The net changes of a keyed table. ``chains``: whether a row may have changed its key twice.

    Columns: ``_change_type`` (``upsert`` or ``delete``), ``_kind``, ``_lsn`` and ``_timestamp`` (of
    the key's last change: insert, update or delete; a row that leaves for another key is deleted
    here), ``_unchanged`` (columns whose value is that of the destination's row), ``_old`` (the key
    of that row at the start of the batch, with its own ``_exact``; null where it is the row's
    own key), ``_exact``, and
    the table's columns. A delete has only its key (and the key's part of ``_exact``).
    """
    if not schema.key:
        raise ValueError(f"{schema.name} has no key: use net_keyless")
    rows = since_truncate(changes, stats)
    if stats.key_changes or stats.unchanged:
        return _net_by_row(rows, schema, stats, chains)
    return _net_by_key(rows, schema, stats)


def _new_key(
    schema: TableSchema, stats: ChangeStats
) -> tuple[Sequence[Column], dict[str, Expr], dict[str, Expr] | None]:
    columns = schema.key_columns
    values = {c.name: sf.col(quoted(c.name)) for c in columns}
    return columns, values, overflow_texts(columns) if stats.overflow else None


def _key_of_new(schema: TableSchema, stats: ChangeStats) -> Expr:
    return identity_of(*_new_key(schema, stats))


def _key_of_old(schema: TableSchema, stats: ChangeStats) -> Expr:
    columns = schema.key_columns
    values = {c.name: sf.col(f"_old.{quoted(c.name)}") for c in columns}
    return identity_of(
        columns, values, overflow_texts(columns, OLD_EXACT) if stats.overflow else None
    )


def _change_kind(deleted: Expr) -> Expr:
    return sf.when(deleted, DELETE).otherwise(UPSERT)


def _net_by_key(rows: DataFrame, schema: TableSchema, stats: ChangeStats) -> DataFrame:
    """Every change tells the whole row and no key moved: the last change of a key is its net."""
    # Not as one struct: by the columns themselves, a MERGE finds the rows where and in the order
    # that it wants them.
    key = identity_fields(*_new_key(schema, stats))
    newest_first = Window.partitionBy(*key).orderBy(sf.desc("_lsn"), sf.desc("_seq"))
    last = rows.withColumn("_seq", sf.row_number().over(newest_first)).where("_seq = 1")
    return last.select(
        _change_kind(sf.col("_change_type") == ChangeType.DELETE.value).alias("_change_type"),
        sf.col("_change_type").alias("_kind"),
        "_lsn",
        "_timestamp",
        sf.lit(None).cast("array<string>").alias("_unchanged"),
        sf.lit(None).cast(_key_type(schema)).alias("_old"),
        (without_old_texts(sf.col("_exact")) if stats.overflow else no_overflow()).alias("_exact"),
        *(sf.col(quoted(name)) for name in schema.column_names),
    )


def _key_type(schema: TableSchema) -> str:
    fields = ", ".join(f"{quoted(c.name)}: {c.spark_type}" for c in schema.key_columns)
    return f"struct<{fields}, _exact: {EXACT_TYPE}>"


def base_key(base: Expr, schema: TableSchema, stats: ChangeStats) -> Expr:
    """The columns, and the exact texts, of a key that tells rows apart (see identity_of)."""
    columns = schema.key_columns
    inexact = [c.name for c in columns if may_be_inexact(c)] if stats.overflow else []
    texts = [(name, base[f"f{len(columns) + n}"]) for n, name in enumerate(inexact)]
    return sf.struct(
        *(base[f"f{n}"].alias(c.name) for n, c in enumerate(columns)),
        (texts_map(texts) if texts else no_overflow()).alias("_exact"),
    )


def _net_by_row(
    rows: DataFrame, schema: TableSchema, stats: ChangeStats, chains: bool
) -> DataFrame:
    """Follow each row through the batch, from key to key, and collect what is known of it.

    A key's timeline is cut into lives: a life begins with an insert or with a row that comes from
    another key; the life before the first of these belongs to the destination's row. A row that
    changes its key goes on in a life of the new key, so rows are chains of lives.
    """
    events = row_events(rows, schema, stats, chains=chains)
    upserts = _last_states(events, schema, stats)
    if not stats.key_changes:
        return upserts
    left = events.where("departs AND last_of_key").select(
        sf.lit(DELETE).alias("_change_type"),
        sf.lit(ChangeType.DELETE.value).alias("_kind"),
        sf.col("at._lsn").alias("_lsn"),
        sf.col("time").alias("_timestamp"),
        sf.lit(None).cast("array<string>").alias("_unchanged"),
        sf.lit(None).cast(_key_type(schema)).alias("_old"),
        sf.col("exact").alias("_exact"),
        *(sf.col(f"row.{quoted(name)}") for name in schema.column_names),
    )
    return upserts.unionByName(left)


def row_events(
    rows: DataFrame,
    schema: TableSchema,
    stats: ChangeStats,
    *,
    within: Sequence[str] = (),
    followed: bool = True,
    chains: bool = True,
) -> DataFrame:
    """What happens to each row of a keyed table, in order; a row is followed from key to key.

    Columns: those of ``_events``, and ``origin`` (where the row's first life began, null if the
    destination has the row) or ``base`` (the destination's key of the row, else null), unless they
    are not wanted (``followed``). ``within``: columns of the changes, which are kept; no life goes
    on from one of their values to another. ``chains``: whether a row may have changed its key
    twice.
    """
    events = _events(rows, schema, stats, within)
    if not followed:
        return events
    if stats.key_changes:
        events = checkpointed(events)
        origins = _departures(events)
        return _with_origins(events, _first_origins(origins) if chains else origins)
    base = sf.when(sf.col("life").isNull(), sf.col("key"))
    return events.select("*", sf.col("life").alias("origin"), base.alias("base"))


def _events(
    rows: DataFrame, schema: TableSchema, stats: ChangeStats, within: Sequence[str]
) -> DataFrame:
    """What happens at each key, in order; a change of key happens at both keys.

    Columns: ``at`` (position), ``time``, ``kind``, ``key``, ``starts`` (a life of the key),
    ``deletes``, ``departs`` (the row goes on elsewhere; only its key is told), ``row``,
    ``unchanged``, ``exact``;
    ``life`` (position of the life's start, null for the life that the batch found),
    ``last_of_key``.
    """
    new_key, old_key = _key_of_new(schema, stats), _key_of_old(schema, stats)
    is_update = sf.col("_change_type") == ChangeType.UPDATE.value
    moves = is_update & sf.col("_old").isNotNull() & ~old_key.eqNullSafe(new_key)
    changed = rows.select(
        *within,
        sf.struct("_lsn", "_seq").alias("at"),
        sf.col("_timestamp").alias("time"),
        sf.col("_change_type").alias("kind"),
        new_key.alias("key"),
        old_key.alias("old_key"),
        ((sf.col("_change_type") == ChangeType.INSERT.value) | moves).alias("starts"),
        (sf.col("_change_type") == ChangeType.DELETE.value).alias("deletes"),
        moves.alias("moves"),
        sf.struct(*(sf.col(quoted(name)) for name in schema.column_names)).alias("row"),
        sf.col("_unchanged").alias("unchanged"),
        (without_old_texts(sf.col("_exact")) if stats.overflow else no_overflow()).alias("exact"),
        sf.struct(*_key_alone(schema)).alias("old_row"),
        (only_old_texts(sf.col("_exact")) if stats.overflow else no_overflow()).alias("old_exact"),
    )
    arrivals = changed.drop("old_key", "moves", "old_row", "old_exact").withColumn(
        "departs", sf.lit(False)
    )
    events = arrivals
    if stats.key_changes:
        departures = changed.where("moves").select(
            *within,
            "at",
            "time",
            "kind",
            sf.col("old_key").alias("key"),
            sf.lit(False).alias("starts"),
            sf.lit(False).alias("deletes"),
            sf.col("old_row").alias("row"),
            sf.lit(None).cast("array<string>").alias("unchanged"),
            sf.col("old_exact").alias("exact"),
            sf.lit(True).alias("departs"),
        )
        events = arrivals.unionByName(departures)
    timeline = Window.partitionBy(*within, "key").orderBy("at")
    started = sf.last(sf.when(sf.col("starts"), sf.col("at")), ignorenulls=True)
    return events.select(
        "*",
        started.over(timeline).alias("life"),
        sf.lead("at").over(timeline).isNull().alias("last_of_key"),
    )


def _key_alone(schema: TableSchema) -> list[Expr]:
    """The table's columns with the key that the row had, and nothing else."""
    return [
        (
            sf.col(f"_old.{quoted(c.name)}")
            if c.name in schema.key
            else sf.lit(None).cast(c.spark_type)
        ).alias(c.name)
        for c in schema.columns
    ]


def _departures(events: DataFrame) -> DataFrame:
    """For each life that began with a change of key, where its row comes from.

    Columns: ``start`` (of the life), ``up`` (start of the row's life before, null if the
    destination has the row), ``base`` (the destination's key of the row, else null).
    """
    # A departure and the arrival that it leads to are one change, and so have one position.
    return events.where("departs").select(
        sf.col("at").alias("start"),
        sf.col("life").alias("up"),
        sf.when(sf.col("life").isNull(), sf.col("key")).alias("base"),
    )


def _first_origins(origins: DataFrame) -> DataFrame:
    """The same with the row's first life. Pointers are doubled each time, so a chain of n
    changes of key takes log n steps."""
    while True:
        above = origins.select(
            sf.col("start").alias("above"),
            sf.col("up").alias("above_up"),
            sf.col("base").alias("above_base"),
        )
        hops = sf.col("above").isNotNull()
        origins = checkpointed(
            origins.join(above, sf.col("up") == sf.col("above"), "left").select(
                "start",
                sf.when(hops, sf.col("above_up")).otherwise(sf.col("up")).alias("up"),
                sf.when(hops, sf.col("above_base")).otherwise(sf.col("base")).alias("base"),
                hops.alias("hops"),
            )
        )
        # Of all rows, so that the same job computes them.
        if not origins.agg(sf.bool_or("hops")).collect()[0][0]:
            return origins.drop("hops")


def _with_origins(events: DataFrame, origins: DataFrame) -> DataFrame:
    """Each event with the row that it belongs to: ``origin`` (first life) or ``base`` (key)."""
    came = sf.col("start").isNotNull()
    own_base = sf.when(sf.col("life").isNull(), sf.col("key"))
    return events.join(
        origins.withColumnRenamed("base", "far_base"), sf.col("life") == sf.col("start"), "left"
    ).select(
        *events.columns,
        sf.when(came, sf.col("up")).otherwise(sf.col("life")).alias("origin"),
        sf.when(came, sf.col("far_base")).otherwise(own_base).alias("base"),
    )


def _last_states(events: DataFrame, schema: TableSchema, stats: ChangeStats) -> DataFrame:
    """One row for each row that the batch touched and whose key nobody took over since."""
    optional = sometimes_unsent(schema)
    known = {
        column.name: sf.max_by(
            sf.struct(
                sf.col(f"row.{quoted(column.name)}").alias("value"),
                sf.try_element_at(sf.col("exact"), sf.lit(column.name)).alias("exact"),
            ),
            sf.when(
                ~sf.col("deletes")
                & ~sf.coalesce(sf.array_contains("unchanged", column.name), sf.lit(False)),
                sf.col("at"),
            ),
        ).alias(f"known{number}")
        for number, column in enumerate(optional)
    }
    last = sf.max_by(
        sf.struct("at", "time", "kind", "key", "row", "exact", "deletes", "last_of_key"),
        sf.col("at"),
    )
    states = (
        events.where("NOT departs")
        .groupBy("origin", "base")
        .agg(last.alias("last"), *known.values())
        .where("last.last_of_key")
    )
    names = {column.name: f"known{number}" for number, column in enumerate(optional)}
    lacking = sf.filter(
        sf.array(
            *(sf.when(sf.col(k).isNull(), sf.lit(name)) for name, k in names.items()),
            sf.lit(None).cast("string"),
        ),
        lambda name: name.isNotNull(),
    )
    unchanged = sf.when(~sf.col("last.deletes") & (sf.size(lacking) > 0), lacking)
    moved = sf.col("base").isNotNull() & (sf.col("base") != sf.col("last.key"))
    values = [
        (
            sf.when(~sf.col("last.deletes"), sf.col(f"{names[name]}.value"))
            if name in names
            else sf.col(f"last.row.{quoted(name)}")
        ).alias(name)
        for name in schema.column_names
    ]
    overflow = _merged_overflow(schema, names) if stats.overflow else no_overflow()
    return states.select(
        _change_kind(sf.col("last.deletes")).alias("_change_type"),
        sf.col("last.kind").alias("_kind"),
        sf.col("last.at._lsn").alias("_lsn"),
        sf.col("last.time").alias("_timestamp"),
        unchanged.alias("_unchanged"),
        sf.when(unchanged.isNotNull() & moved, base_key(sf.col("base"), schema, stats)).alias(
            "_old"
        ),
        overflow.alias("_exact"),
        *values,
    )


def sometimes_unsent(schema: TableSchema) -> list[Column]:
    """The columns whose values Postgres may leave out of a change that does not change them, and
    those that it does not publish (a destination may have such)."""
    return [
        c
        for c in schema.columns
        if c.name not in schema.key
        and (c.spark_type not in _ALWAYS_SENT or c.attnum in schema.unpublished)
    ]


def _merged_overflow(schema: TableSchema, known: Mapping[str, str]) -> Expr:
    """Each column's exact text from the change that its value is from."""
    texts = [
        (
            name,
            sf.col(f"{known[name]}.exact")
            if name in known
            else sf.try_element_at(sf.col("last.exact"), sf.lit(name)),
        )
        for name in schema.column_names
    ]
    return texts_map(texts)
