"""Net changes: what a stretch of the change log comes to, as DataFrame functions.

Keyed tables: one row a key, the last state wins. Columns whose value Postgres did not send are
taken from the newest earlier change of the *row*, which may have had another key then; what no
change of the stretch knows is left to the destination's row.

Keyless tables: rows are a multiset, so what counts is how many copies come and go.

The frames inside hold the table's columns in a struct ``row``, so that no name of the source can
meet one of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from walflow.model import OLD_EXACT, ChangeStats, ChangeType, Column, TableSchema
from walflow.spark.checkpoints import checkpointed

if TYPE_CHECKING:
    from pyspark.sql import Column as Expr
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "EXACT_TYPE",
    "base_key",
    "changes_schema",
    "exploded_copies",
    "identity_of",
    "literal",
    "may_be_inexact",
    "net_changes",
    "net_copies",
    "only_old_texts",
    "quoted",
    "read_changes",
    "row_events",
    "row_identity",
    "since_truncate",
    "sometimes_unsent",
    "texts_map",
    "without_old_texts",
]

EXACT_TYPE = "map<string,string>"

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
# Types with Postgres values that they cannot hold; two such keys may look the same.
_INEXACT = ("date", "timestamp", "decimal")


def quoted(name: str) -> str:
    """A name as Spark SQL needs it."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """The text as a string in Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def changes_schema(schema: TableSchema) -> str:
    """The change log's row form for a table, as Spark DDL; every column may be missing or null."""
    old = ", ".join(f"{quoted(c.name)}: {c.spark_type}" for c in schema.identity_columns)
    columns = [
        "`_change_type` string",
        "`_lsn` bigint",
        "`_seq` bigint",
        "`_timestamp` timestamp",
        "`_xid` bigint",
        "`_unchanged` array<string>",
        f"`_old` struct<{old}>",
        f"`_exact` {EXACT_TYPE}",
        *(f"{quoted(column.name)} {column.spark_type}" for column in schema.columns),
    ]
    return ", ".join(columns)


def read_changes(spark: SparkSession, files: Sequence[str], schema: TableSchema) -> DataFrame:
    """All changes in these files of the log; columns that a file lacks are null."""
    declared = changes_schema(schema)
    if not files:
        return spark.createDataFrame([], declared)
    return spark.read.schema(declared).parquet(*files)


def since_truncate(changes: DataFrame, stats: ChangeStats) -> DataFrame:
    """The changes of rows after the last truncate."""
    if stats.last_truncate is None:
        return changes
    lsn, seq = stats.last_truncate
    after = (sf.col("_lsn") > lsn) | ((sf.col("_lsn") == lsn) & (sf.col("_seq") > seq))
    return changes.where(after & (sf.col("_change_type") != ChangeType.TRUNCATE.value))


def net_changes(changes: DataFrame, schema: TableSchema, stats: ChangeStats) -> DataFrame:
    """The net changes of a keyed table.

    Columns: ``_change_type`` (``upsert`` or ``delete``), ``_kind``, ``_lsn`` and ``_timestamp`` (of
    the key's last change: insert, update or delete; a row that leaves for another key is deleted
    here), ``_unchanged`` (columns whose value is that of the destination's row), ``_old`` (the key
    of that row at the start of the stretch, with its own ``_exact``; null where it is the row's
    own key), ``_exact``, and
    the table's columns. A delete has only its key (and the key's part of ``_exact``).
    """
    if not schema.key:
        raise ValueError(f"{schema.name} has no key: use net_copies")
    rows = since_truncate(changes, stats)
    if stats.key_changes or stats.unchanged:
        return _net_by_row(rows, schema, stats)
    return _net_by_key(rows, schema, stats)


def identity_of(
    columns: Sequence[Column], values: Mapping[str, Expr], exact: Mapping[str, Expr] | None
) -> Expr:
    """What tells rows apart, as one struct that can be grouped and joined by: the values, and the
    exact text of those that their type could not hold."""
    fields = [_comparable(column, values[column.name]) for column in columns]
    if exact is not None:
        fields += [exact[column.name] for column in columns if may_be_inexact(column)]
    return sf.struct(*(field.alias(f"f{number}") for number, field in enumerate(fields)))


def may_be_inexact(column: Column) -> bool:
    """Whether Postgres has values for this column that its Spark type cannot hold."""
    return any(inexact in column.spark_type for inexact in _INEXACT)


def _comparable(column: Column, value: Expr) -> Expr:
    """The value in a form that Spark can compare: maps have no order of their own."""
    if not column.spark_type.startswith("map<"):
        return value
    return sf.sort_array(sf.map_entries(value))


def _exact_texts(columns: Sequence[Column], prefix: str = "") -> dict[str, Expr]:
    """By column, the text that ``_exact`` has for it, or null."""
    return {c.name: sf.try_element_at(sf.col("_exact"), sf.lit(prefix + c.name)) for c in columns}


def _key_of_new(schema: TableSchema, stats: ChangeStats) -> Expr:
    columns = schema.key_columns
    values = {c.name: sf.col(quoted(c.name)) for c in columns}
    return identity_of(columns, values, _exact_texts(columns) if stats.exact else None)


def _key_of_old(schema: TableSchema, stats: ChangeStats) -> Expr:
    columns = schema.key_columns
    values = {c.name: sf.col(f"_old.{quoted(c.name)}") for c in columns}
    return identity_of(columns, values, _exact_texts(columns, OLD_EXACT) if stats.exact else None)


def _change_kind(deleted: Expr) -> Expr:
    return sf.when(deleted, DELETE).otherwise(UPSERT)


def without_old_texts(exact: Expr) -> Expr:
    """The exact texts of the new row; null rather than empty."""
    kept = sf.map_filter(exact, lambda name, _: ~sf.startswith(name, sf.lit(OLD_EXACT)))
    return sf.when(sf.size(kept) > 0, kept)


def _net_by_key(rows: DataFrame, schema: TableSchema, stats: ChangeStats) -> DataFrame:
    """Every change tells the whole row and no key moved: the last change of a key is its net."""
    columns, texts = schema.key_columns, _exact_texts(schema.key_columns)
    # Not as one struct: by the columns themselves, a MERGE finds the rows where and in the order
    # that it wants them.
    key = [_comparable(column, sf.col(quoted(column.name))) for column in columns]
    if stats.exact:
        key += [texts[column.name] for column in columns if may_be_inexact(column)]
    newest_first = Window.partitionBy(*key).orderBy(sf.desc("_lsn"), sf.desc("_seq"))
    last = rows.withColumn("_seq", sf.row_number().over(newest_first)).where("_seq = 1")
    return last.select(
        _change_kind(sf.col("_change_type") == ChangeType.DELETE.value).alias("_change_type"),
        sf.col("_change_type").alias("_kind"),
        "_lsn",
        "_timestamp",
        sf.lit(None).cast("array<string>").alias("_unchanged"),
        sf.lit(None).cast(_key_type(schema)).alias("_old"),
        (without_old_texts(sf.col("_exact")) if stats.exact else _no_exact()).alias("_exact"),
        *(sf.col(quoted(name)) for name in schema.column_names),
    )


def _no_exact() -> Expr:
    return sf.lit(None).cast(EXACT_TYPE)


def _key_type(schema: TableSchema) -> str:
    fields = ", ".join(f"{quoted(c.name)}: {c.spark_type}" for c in schema.key_columns)
    return f"struct<{fields}, _exact: {EXACT_TYPE}>"


def base_key(base: Expr, schema: TableSchema, stats: ChangeStats) -> Expr:
    """The columns, and the exact texts, of a key that tells rows apart (see identity_of)."""
    columns = schema.key_columns
    inexact = [c.name for c in columns if may_be_inexact(c)] if stats.exact else []
    texts = [(name, base[f"f{len(columns) + n}"]) for n, name in enumerate(inexact)]
    return sf.struct(
        *(base[f"f{n}"].alias(c.name) for n, c in enumerate(columns)),
        (texts_map(texts) if texts else _no_exact()).alias("_exact"),
    )


def _net_by_row(rows: DataFrame, schema: TableSchema, stats: ChangeStats) -> DataFrame:
    """Follow each row through the stretch, from key to key, and collect what is known of it.

    A key's timeline is cut into lives: a life begins with an insert or with a row that comes from
    another key; the life before the first of these belongs to the destination's row. A row that
    changes its key goes on in a life of the new key, so rows are chains of lives.
    """
    events = row_events(rows, schema, stats)
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
) -> DataFrame:
    """What happens to each row of a keyed table, in order; a row is followed from key to key.

    Columns: those of ``_events``, and ``origin`` (where the row's first life began, null if the
    destination has the row) or ``base`` (the destination's key of the row, else null), unless they
    are not wanted (``followed``). ``within``: columns of the changes, which are kept; no life goes
    on from one of their values to another.
    """
    events = _events(rows, schema, stats, within)
    if not followed:
        return events
    if stats.key_changes:
        events = checkpointed(events)
        return _with_origins(events, _origins(events))
    base = sf.when(sf.col("life").isNull(), sf.col("key"))
    return events.select("*", sf.col("life").alias("origin"), base.alias("base"))


def _events(
    rows: DataFrame, schema: TableSchema, stats: ChangeStats, within: Sequence[str]
) -> DataFrame:
    """What happens at each key, in order; a change of key happens at both keys.

    Columns: ``at`` (position), ``time``, ``kind``, ``key``, ``starts`` (a life of the key),
    ``deletes``, ``departs`` (the row goes on elsewhere; only its key is told), ``row``,
    ``unchanged``, ``exact``;
    ``life`` (position of the life's start, null for the life that the stretch found),
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
        (without_old_texts(sf.col("_exact")) if stats.exact else _no_exact()).alias("exact"),
        sf.struct(*_key_alone(schema)).alias("old_row"),
        (only_old_texts(sf.col("_exact")) if stats.exact else _no_exact()).alias("old_exact"),
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


def _origins(events: DataFrame) -> DataFrame:
    """For each life that began with a change of key, where its row comes from in the end.

    Columns: ``start`` (of the life), ``up`` (start of the row's first life, null if the
    destination has the row), ``base`` (the destination's key of the row, else null). Pointers are
    doubled each time round, so a chain of n changes of key takes log n rounds.
    """
    # A departure and the arrival that it leads to are one change, and so have one position.
    origins = events.where("departs").select(
        sf.col("at").alias("start"),
        sf.col("life").alias("up"),
        sf.when(sf.col("life").isNull(), sf.col("key")).alias("base"),
    )
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
        if origins.where("hops").isEmpty():
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
    """One row for each row that the stretch touched and whose key nobody took over since."""
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
    exact = _merged_exact(schema, names) if stats.exact else _no_exact()
    return states.select(
        _change_kind(sf.col("last.deletes")).alias("_change_type"),
        sf.col("last.kind").alias("_kind"),
        sf.col("last.at._lsn").alias("_lsn"),
        sf.col("last.time").alias("_timestamp"),
        unchanged.alias("_unchanged"),
        sf.when(unchanged.isNotNull() & moved, base_key(sf.col("base"), schema, stats)).alias(
            "_old"
        ),
        exact.alias("_exact"),
        *values,
    )


def sometimes_unsent(schema: TableSchema) -> list[Column]:
    """The columns whose values Postgres may leave out of a change that does not change them, and
    those that it does not publish (a destination may have such)."""
    return [
        c
        for c in schema.columns
        if c.name not in schema.key
        and (c.spark_type not in _ALWAYS_SENT or c.position in schema.unpublished)
    ]


def _merged_exact(schema: TableSchema, known: Mapping[str, str]) -> Expr:
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


def texts_map(texts: Sequence[tuple[str, Expr]]) -> Expr:
    """A map of the texts that are there; null rather than empty."""
    entries = sf.filter(
        sf.array(*(sf.struct(sf.lit(name).alias("key"), t.alias("value")) for name, t in texts)),
        lambda entry: entry["value"].isNotNull(),
    )
    return sf.when(sf.size(entries) > 0, sf.map_from_entries(entries))


def net_copies(changes: DataFrame, schema: TableSchema, stats: ChangeStats) -> DataFrame:
    """The net changes of a keyless table: how many copies of which rows come (or, below zero, go).

    Columns: ``row`` (a struct of the table's columns), ``exact``, ``identity`` (what tells such
    rows apart, see row_identity), ``copies``; ``_kind``, ``_lsn`` and ``_timestamp`` of the last
    change that added one.
    """
    rows = since_truncate(changes, stats)
    names = [quoted(name) for name in schema.column_names]
    is_delete = sf.col("_change_type") == ChangeType.DELETE.value
    weighted = rows.select(
        sf.struct(*names).alias("row"),
        (without_old_texts(sf.col("_exact")) if stats.exact else _no_exact()).alias("exact"),
        sf.when(is_delete, -1).otherwise(1).alias("weight"),
        sf.when(~is_delete, sf.struct("_lsn", "_seq", "_timestamp", "_change_type")).alias("added"),
    )
    if stats.updates:
        gone = rows.where(sf.col("_change_type") == ChangeType.UPDATE.value).select(
            sf.struct(*(sf.col(f"_old.{name}") for name in names)).alias("row"),
            (only_old_texts(sf.col("_exact")) if stats.exact else _no_exact()).alias("exact"),
            sf.lit(-1).alias("weight"),
        )
        weighted = weighted.unionByName(gone, allowMissingColumns=True)
    return (
        weighted.groupBy(row_identity(schema, sf.col("row"), sf.col("exact")).alias("identity"))
        .agg(
            sf.first("row").alias("row"),
            sf.first("exact").alias("exact"),
            sf.sum("weight").alias("copies"),
            sf.max("added").alias("added"),
        )
        .where("copies <> 0")
        .select(
            "identity",
            "row",
            "exact",
            "copies",
            sf.col("added._change_type").alias("_kind"),
            sf.col("added._lsn").alias("_lsn"),
            sf.col("added._timestamp").alias("_timestamp"),
        )
    )


def row_identity(schema: TableSchema, row: Expr, exact: Expr) -> Expr:
    """What tells the rows of a keyless table apart: all values, and all exact texts."""
    values = identity_of(schema.columns, {name: row[name] for name in schema.column_names}, None)
    texts = sf.sort_array(sf.map_entries(exact))
    return sf.struct(values.alias("values"), texts.alias("texts"))


def only_old_texts(exact: Expr) -> Expr:
    """The exact texts of the old row, under the columns' own names; null rather than empty."""
    kept = sf.map_filter(exact, lambda name, _: sf.startswith(name, sf.lit(OLD_EXACT)))
    named = sf.transform_keys(kept, lambda name, _: sf.substring(name, len(OLD_EXACT) + 1, 1 << 20))
    return sf.when(sf.size(kept) > 0, named)


def exploded_copies(copies: DataFrame, schema: TableSchema) -> DataFrame:
    """One row for each copy: ``_change_type`` (``insert`` or ``delete``), ``_kind``, ``_lsn``,
    ``_timestamp`` (see net_copies), ``_exact``, columns."""
    kind = sf.when(sf.col("copies") > 0, ChangeType.INSERT.value)
    return copies.select(
        kind.otherwise(ChangeType.DELETE.value).alias("_change_type"),
        "_kind",
        "_lsn",
        "_timestamp",
        "row",
        sf.col("exact").alias("_exact"),
        sf.explode(sf.sequence(sf.lit(1), sf.abs("copies").cast("int"))).alias("copy"),
    ).select(
        "_change_type",
        "_kind",
        "_lsn",
        "_timestamp",
        "_exact",
        *(sf.col("row")[name].alias(name) for name in schema.column_names),
    )
