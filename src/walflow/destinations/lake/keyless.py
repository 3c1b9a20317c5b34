"""Tables without a key: rows are a multiset, and what counts is how many equal rows come and go.

Postgres does not say which of several equal rows it removed. Here the one that came first goes
first, so that what rows say of their changes does not depend on how the changes were cut into
batches: the n-th removal takes the n-th of the equal rows, those in the table before those that
came since.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from walflow.destinations.lake.batch import Batch, stored_rows
from walflow.destinations.lake.format import RowPlaces
from walflow.destinations.lake.merging import (
    assignments,
    inserted,
    our_values,
    places_checked,
    row_moved,
    swept,
    viewed,
)
from walflow.destinations.lake.table_schema import DELETED, EXACT, LakeTableSchema
from walflow.destinations.lake.truncates import EMPTIED, Truncate, between_truncates
from walflow.errors import DestinationError
from walflow.model import ChangeStats, ChangeType, Lsn, TableSchema
from walflow.spark.changes import EXACT_TYPE, since_truncate
from walflow.spark.checkpoints import checkpointed
from walflow.spark.names import SOURCE, TARGET, quoted
from walflow.spark.net_keyless import row_identity
from walflow.spark.row_identity import has_zeros, only_old_texts, without_old_texts, zeros_sql

if TYPE_CHECKING:
    from pyspark.sql import Column as Expr
    from pyspark.sql import DataFrame

__all__ = ["mark_keyless", "merge_keyless", "overwrite_keyless"]

_OTHERS = "others"
"""The table's columns that the source has no longer."""
_ALWAYS = "always"
"""A column for a MERGE to select by (see viewed)."""
_LACKING = "walflow: not in the table is a row removed at "
# Errors of Spark may show the plan, and so the words above without what follows them.
_LACKING_AT = re.compile(rf"{_LACKING}(\d+)")


def merge_keyless(batch: Batch) -> LakeTableSchema:
    """MERGE the changes of a keyless table, among which there is no truncate."""
    rows = between_truncates(batch.changes.changes, ChangeStats())
    with _paired_with_table(rows, batch, "true", None) as paired:
        batch = batch.with_overflow_for(paired, "exact")
        if (places := batch.format.places) is None:
            _replace_equal(
                paired, _with_last_change(paired.where("gone_lsn IS NULL")), batch, "true", ""
            )
        else:
            source = _with_last_change(paired.where("is_new AND gone_lsn IS NULL OR NOT is_new"))
            _merge(source, batch, places, "DELETE", "")
    return batch.lake_schema


def mark_keyless(
    batch: Batch, truncate: Truncate | None, emptied: Mapping[str, str] | None
) -> LakeTableSchema:
    """MERGE the changes of a keyless table in which removed rows are marked. ``emptied``: what
    columns of ours have, in SQL, in rows that the first truncate deleted."""
    rows = between_truncates(batch.changes.changes, batch.changes.stats)
    counts = f"NOT {TARGET}.{DELETED}"
    with _paired_with_table(rows, batch, counts, truncate) as paired:
        batch = batch.with_overflow_for(paired, "exact")
        source = _with_last_change(paired).withColumn(
            DELETED, sf.col("gone_lsn").isNotNull() | sf.col("emptied").isNotNull()
        )
        if (places := batch.format.places) is None:
            _replace_equal(paired, source, batch, counts, swept(emptied))
        else:
            ours = our_values(batch.lake_schema).items()
            marks = {name: f"{SOURCE}.{quoted(value)}" for name, value in ours}
            marked = f"UPDATE SET {assignments(marks)}"
            _merge(source, batch, places, marked, swept(emptied))
    return batch.lake_schema


def overwrite_keyless(batch: Batch) -> LakeTableSchema:
    """Make what came after the last truncate, and did not go again, the table."""
    changes, schema = batch.changes, batch.lake_schema.schema
    rows = between_truncates(since_truncate(changes.changes, changes.stats), ChangeStats())
    moves = checkpointed(_moves(rows, schema, changes.stats))
    with _checked(_paired(moves.where("is_new"), moves.where("NOT is_new")), schema) as paired:
        batch = batch.with_overflow_for(paired, "exact")
        kept = _with_last_change(paired.where("gone_lsn IS NULL")).select(
            "_kind",
            "_lsn",
            "_timestamp",
            sf.col("exact").alias("_exact"),
            *(sf.col("row")[name].alias(name) for name in schema.column_names),
        )
        ours = {name: sf.col(value) for name, value in our_values(batch.lake_schema).items()}
        batch.format.overwrite(stored_rows(kept, batch.lake_schema, ours), batch.lake_schema.name)
    return batch.lake_schema


def _moves(rows: DataFrame, schema: TableSchema, stats: ChangeStats) -> DataFrame:
    """Each row that comes (``is_new``) or goes, with its ``identity`` and the change's position. An
    update is both."""
    names = [quoted(name) for name in schema.column_names]
    kind = sf.col("_change_type")

    def move(row: Expr, texts: Expr, is_new: Expr) -> list[Expr]:
        overflow = texts if stats.overflow else sf.lit(None).cast(EXACT_TYPE)
        return [
            row_identity(schema, row, overflow).alias("identity"),
            row.alias("row"),
            overflow.alias("exact"),
            is_new.alias("is_new"),
            sf.col("_lsn").alias("lsn"),
            sf.col("_seq").alias("seq"),
            sf.col("_timestamp").alias("time"),
            kind.alias("kind"),
            sf.col(EMPTIED).alias("emptied"),
        ]

    own = move(
        sf.struct(*names), without_old_texts(sf.col("_exact")), kind != ChangeType.DELETE.value
    )
    moves = rows.select(*own)
    if not stats.updates:
        return moves
    former = sf.struct(*(sf.col(f"_old.{name}") for name in names))
    gone = move(former, only_old_texts(sf.col("_exact")), sf.lit(False))
    return moves.union(rows.where(kind == ChangeType.UPDATE.value).select(*gone))


def _paired_with_table(
    rows: DataFrame, batch: Batch, counts: str, truncate: Truncate | None
) -> AbstractContextManager[DataFrame]:
    """See _paired and _checked; with those rows of the table that count (in SQL), until the
    truncate. Those that stay are among them only where equal rows cannot be told apart."""
    schema = batch.lake_schema.schema
    moves = checkpointed(_moves(rows, schema, batch.changes.stats))
    removals = moves.where("NOT is_new")
    before = "emptied IS NULL" if truncate is None else _is_at("emptied.at", truncate)
    removed = removals.where(before).select("identity").distinct()
    emptied = sf.lit(None) if truncate is None else sf.expr(_moment(truncate))
    stored = (
        _stored(batch, counts)
        .join(removed, sf.col("stored").eqNullSafe(sf.col("identity")))
        .drop("stored")
        .withColumn("is_new", sf.lit(False))
        .withColumn("emptied", emptied.cast(moves.schema["emptied"].dataType))
    )
    present = moves.where("is_new").unionByName(stored, allowMissingColumns=True)
    paired = _paired(present, removals)
    if batch.format.places is not None:
        paired = paired.where("is_new IS NOT false OR gone_lsn IS NOT NULL")
    return _checked(paired, schema)


def _is_at(place: str, truncate: Truncate) -> str:
    return f"{place}._lsn = {truncate.lsn} AND {place}._seq = {truncate.seq}"


def _moment(truncate: Truncate) -> str:
    return f"named_struct('at', {truncate.at}, 'time', {truncate.time})"


def _stored(batch: Batch, counts: str) -> DataFrame:
    """The table's rows, and how they came; and where they are, or, if the format does not say so,
    all that they have."""
    lake_schema, places, names = batch.lake_schema, batch.format.places, batch.lake_schema.metadata
    table = batch.spark.table(batch.identifier)
    row = sf.struct(
        *(
            sf.col(quoted(c.name)).cast(c.spark_type).alias(c.name)
            for c in lake_schema.schema.columns
        )
    )
    overflow = sf.col(EXACT) if lake_schema.overflow else sf.lit(None).cast(EXACT_TYPE)
    if places is not None:
        more = {"file": sf.expr(places.file), "place": sf.expr(places.place)}
    else:
        time = sf.lit(None) if names is None else sf.col(quoted(names.timestamp))
        more = {"row": row, "exact": overflow, "time": time.cast("timestamp")}
        ours = {column.name for column in lake_schema.columns}
        if others := [quoted(name) for name in table.columns if name not in ours]:
            more[_OTHERS] = sf.struct(*others)
    return (
        table.alias(TARGET)
        .where(counts)
        .select(
            *(value.alias(name) for name, value in more.items()),
            (sf.lit(None) if names is None else sf.col(quoted(names.lsn)))
            .cast("bigint")
            .alias("lsn"),
            (sf.lit(None) if names is None else sf.col(quoted(names.change_type)))
            .cast("string")
            .alias("kind"),
            row_identity(lake_schema.schema, row, overflow).alias("stored"),
        )
    )


def _paired(rows: DataFrame, removals: DataFrame) -> DataFrame:
    """The rows, each with the removal that took it (``gone_lsn``, ``gone_time``) or none. A removal
    that found no row has no ``is_new``."""
    if "file" not in rows.columns:
        rows = rows.withColumns(
            {"file": sf.lit(None).cast("string"), "place": sf.lit(None).cast("bigint")}
        )
    queue = Window.partitionBy("identity", "emptied").orderBy(
        # Within a transaction by kind: that is what the table, too, knows of its rows.
        *("is_new", "lsn", "kind", "seq", "file", "place")
    )
    order = Window.partitionBy("identity", "emptied").orderBy("lsn", "seq")
    taken = removals.select(
        sf.col("identity").alias("gone_identity"),
        sf.col("emptied").alias("gone_emptied"),
        sf.col("lsn").alias("gone_lsn"),
        sf.col("time").alias("gone_time"),
        sf.row_number().over(order).alias("gone_number"),
    )
    same = (
        sf.col("identity").eqNullSafe(sf.col("gone_identity"))
        & sf.col("emptied").eqNullSafe(sf.col("gone_emptied"))
        & (sf.col("number") == sf.col("gone_number"))
    )
    numbered = rows.withColumn("number", sf.row_number().over(queue))
    return numbered.join(taken, same, "full")


@contextmanager
def _checked(paired: DataFrame, schema: TableSchema) -> Iterator[DataFrame]:
    """Computed once. What is written inside fails if a removal found no row, or if a row that goes
    is not where it was when this was computed. The job that fails says so itself: if it were asked
    again, it might read another table."""
    lacking = sf.raise_error(sf.concat(sf.lit(_LACKING), sf.col("gone_lsn").cast("string")))
    found = sf.when(sf.col("is_new").isNull(), lacking).otherwise(sf.col("is_new"))
    try:
        with places_checked(schema):
            yield checkpointed(paired.withColumns({"is_new": found, _ALWAYS: sf.lit("yes")}))
    except Exception as error:
        if (removal := _LACKING_AT.search(str(error))) is not None:
            raise DestinationError(
                f"{schema.name} lacks a row that was removed from its source by the transaction "
                f"at {Lsn(int(removal[1]))}",
                hint="The table was changed by someone else, or has no key and values that Spark"
                " cannot hold: copy it again.",
            ) from error
        raise


def _with_last_change(paired: DataFrame) -> DataFrame:
    """With each row's last change (``_kind``, ``_lsn``, ``_timestamp``)."""
    gone = sf.col("gone_lsn").isNotNull()
    swept = ~gone & sf.col("emptied").isNotNull()
    deleted, truncated = ChangeType.DELETE.value, ChangeType.TRUNCATE.value
    kind = sf.when(gone, deleted).when(swept, truncated).otherwise(sf.col("kind"))
    lsn = sf.when(gone, sf.col("gone_lsn")).when(swept, sf.col("emptied.at._lsn"))
    time = sf.when(gone, sf.col("gone_time")).when(swept, sf.col("emptied.time"))
    return paired.withColumns(
        {
            "_kind": kind,
            "_lsn": lsn.otherwise(sf.col("lsn")),
            "_timestamp": time.otherwise(sf.col("time")),
        }
    )


def _merge(source: DataFrame, batch: Batch, places: RowPlaces, removed: str, rest: str) -> None:
    """Equal rows are told apart by where they are stored, so that exactly as many go as must. The
    MERGE reads the table anew: rows that somebody has moved since then must not be taken for new
    ones."""
    is_new = (
        f"CASE WHEN {SOURCE}.file IS NULL THEN true"
        f" ELSE cast({row_moved(f'{SOURCE}.file')} AS boolean) END"
    )
    with viewed(source) as view:
        batch.spark.sql(
            f"MERGE INTO {batch.identifier} {TARGET}"
            f" USING (SELECT * FROM {view} WHERE {_ALWAYS} = 'yes') {SOURCE}"
            f" ON {places.file} = {SOURCE}.file AND {places.place} = {SOURCE}.place"
            f" WHEN MATCHED THEN {removed}"
            f" WHEN NOT MATCHED AND {is_new} THEN {inserted(_new_values(batch.lake_schema))}"
            f"{rest}"
        )


def _replace_equal(
    paired: DataFrame, rows: DataFrame, batch: Batch, counts: str, rest: str
) -> None:
    """Where equal rows cannot be told apart, all go of which one is touched, and the rows come
    (again), with their last change. ``counts``: of which rows of the table."""
    values = _new_values(batch.lake_schema)
    if _OTHERS in rows.columns:
        for field in rows.schema[_OTHERS].dataType.fieldNames():  # type: ignore[attr-defined]
            values[field] = f"{SOURCE}.{_OTHERS}.{quoted(field)}"
    touched = paired.where("NOT is_new").dropDuplicates(["identity"])
    source = rows.withColumn("goes", sf.lit(False)).unionByName(
        touched.withColumn("goes", sf.lit(True)), allowMissingColumns=True
    )
    with viewed(source) as view:
        batch.spark.sql(
            f"MERGE INTO {batch.identifier} {TARGET} USING {view} {SOURCE}"
            f" ON {SOURCE}.goes AND {counts} AND {_same_row(batch.lake_schema)}"
            " WHEN MATCHED THEN DELETE"
            f" WHEN NOT MATCHED AND NOT {SOURCE}.goes THEN {inserted(values)}"
            f"{rest}"
        )


def _new_values(lake_schema: LakeTableSchema) -> dict[str, str]:
    """By column of the table, its value in a new row, in SQL."""
    values = {name: f"{SOURCE}.row.{quoted(name)}" for name in lake_schema.schema.column_names}
    values |= {name: f"{SOURCE}.{quoted(value)}" for name, value in our_values(lake_schema).items()}
    if lake_schema.overflow:
        values[EXACT] = f"{SOURCE}.exact"
    return values


def _same_row(lake_schema: LakeTableSchema) -> str:
    """In SQL, that TARGET and SOURCE have the same row identity."""
    parts = []
    for column in lake_schema.schema.columns:
        name, type = quoted(column.name), column.spark_type
        stored, given = f"cast({TARGET}.{name} AS {type})", f"{SOURCE}.row.{name}"
        parts.append(_same(stored, given, type))
        if has_zeros(column):
            parts.append(f"{zeros_sql(column, stored)} <=> {zeros_sql(column, given)}")
    if lake_schema.overflow:
        parts.append(_same(f"{TARGET}.{EXACT}", f"{SOURCE}.exact", EXACT_TYPE))
    return " AND ".join(parts)


def _same(stored: str, given: str, type: str) -> str:
    if type.startswith("map<"):
        stored, given = (f"sort_array(map_entries({value}))" for value in (stored, given))
    return f"{stored} <=> {given}"
