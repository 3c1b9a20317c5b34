"""One commit a batch: how net changes get into a table that has one row a row.

Every function that writes makes exactly one commit; the session it runs in stamps it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from walflow.destinations.lake.table_schema import DELETED, EXACT, LakeTableSchema
from walflow.errors import TableMoved
from walflow.model import TableSchema
from walflow.spark.changes import EXACT_TYPE
from walflow.spark.checkpoints import checkpointed
from walflow.spark.names import SOURCE, TARGET, literal, quoted
from walflow.spark.row_identity import may_be_inexact

if TYPE_CHECKING:
    from pyspark.sql import Column as Expr
    from pyspark.sql import DataFrame

__all__ = [
    "assignments",
    "inserted",
    "mark_net",
    "merge_net",
    "missing_row",
    "our_values",
    "places_checked",
    "row_moved",
    "same_key",
    "swept",
    "viewed",
    "with_base_rows",
]

_VIEW = "walflow_net_changes"
_FILTER_FROM = "spark.sql.optimizer.runtime.bloomFilter.creationSideThreshold"
_MOVED = "walflow: no longer in its place is a row of "
# Errors of Spark may show the plan, and so the words above without what follows them.
_MOVED_FROM = re.compile(rf"{_MOVED}[\w/]")
_NET = ("_kind", "_lsn", "_timestamp")


def our_values(lake_schema: LakeTableSchema) -> dict[str, str]:
    """By name of a column of ours that the table has, the net changes' column with its value."""
    names = lake_schema.metadata
    values = {}
    if names is not None:
        values = {names.change_type: "_kind", names.lsn: "_lsn", names.timestamp: "_timestamp"}
    return values | {c.name: c.name for c in lake_schema.ours if c.name not in values}


def merge_net(
    net: DataFrame,
    identifier: str,
    lake_schema: LakeTableSchema,
    *,
    partial: bool,
    within: str | None = None,
) -> None:
    """MERGE the net changes of a keyed table. ``partial``: some rows have ``_unchanged``;
    ``within``: what is true, in SQL, of all rows of the table that they can mean."""
    _merge(net, identifier, lake_schema, partial, "DELETE", "", within)


def mark_net(
    net: DataFrame,
    identifier: str,
    lake_schema: LakeTableSchema,
    *,
    partial: bool,
    emptied: Mapping[str, str] | None,
) -> None:
    """As merge_net, but deletes only change columns of ours. ``emptied``: these are set, to what is
    said, in all rows that are not deleted and that the changes do not name."""
    marks = {name: f"{SOURCE}.{quoted(value)}" for name, value in our_values(lake_schema).items()}
    _merge(
        net, identifier, lake_schema, partial, f"UPDATE SET {assignments(marks)}", swept(emptied)
    )


def assignments(values: Mapping[str, str]) -> str:
    return ", ".join(f"{TARGET}.{quoted(name)} = {value}" for name, value in values.items())


def inserted(values: Mapping[str, str]) -> str:
    """A MERGE's INSERT of the values, in SQL, by column."""
    columns = ", ".join(map(quoted, values))
    return f"INSERT ({columns}) VALUES ({', '.join(values.values())})"


def swept(emptied: Mapping[str, str] | None) -> str:
    """The clause of a MERGE that marks what a truncate has deleted."""
    if emptied is None:
        return ""
    return (
        f" WHEN NOT MATCHED BY SOURCE AND NOT {TARGET}.{DELETED}"
        f" THEN UPDATE SET {assignments(emptied)}"
    )


def _merge(
    net: DataFrame,
    identifier: str,
    lake_schema: LakeTableSchema,
    partial: bool,
    delete: str,
    rest: str,
    within: str | None = None,
) -> None:
    spark, schema, has_overflow = net.sparkSession, lake_schema.schema, lake_schema.overflow
    updates: dict[str, str] = {}
    inserts: dict[str, str] = {}
    for name in schema.column_names:
        # The key too: it may be equal and not the same, as -0 and 0 are.
        updates[name] = inserts[name] = f"{SOURCE}.{quoted(name)}"
        if partial and name not in schema.key:
            updates[name], inserts[name] = _kept_or_new(name), _new_or_missing(schema, name)
    for name, value in our_values(lake_schema).items():
        updates[name] = inserts[name] = f"{SOURCE}.{quoted(value)}"
    if has_overflow:
        updates[EXACT], inserts[EXACT] = _overflow_after(partial), f"{SOURCE}._exact"
    condition = same_key(schema, has_overflow)
    with viewed(net) as view:
        source = f"SELECT * FROM {view}"
        if within is None:
            # Always true. It is there because Spark filters the table's scan by the source's keys
            # (a Bloom filter) only where the source is filtered itself.
            source += " WHERE _change_type IN ('upsert', 'delete')"
        else:
            condition += f" AND {within}"
        spark.sql(
            f"MERGE INTO {identifier} {TARGET}"
            f" USING ({source}) {SOURCE}"
            f" ON {condition}"
            f" WHEN MATCHED AND {SOURCE}._change_type = 'delete' THEN {delete}"
            f" WHEN MATCHED THEN UPDATE SET {assignments(updates)}"
            f" WHEN NOT MATCHED AND {SOURCE}._change_type = 'upsert'"
            f" THEN {inserted(inserts)}"
            f"{rest}"
        )


def same_key(schema: TableSchema, has_overflow: bool) -> str:
    """In SQL, that TARGET and SOURCE (with ``_exact``) have the same key."""
    parts = []
    for column in schema.key_columns:
        name = quoted(column.name)
        if has_overflow and may_be_inexact(column):
            # Two keys that the type cannot hold may look the same, or be null.
            text = literal(column.name)
            parts.append(f"{TARGET}.{name} <=> {SOURCE}.{name}")
            parts.append(
                f"try_element_at({TARGET}.{EXACT}, {text})"
                f" <=> try_element_at({SOURCE}._exact, {text})"
            )
        else:
            parts.append(f"{TARGET}.{name} = {SOURCE}.{name}")
    return " AND ".join(parts)


def _kept_or_new(name: str) -> str:
    column = quoted(name)
    return (
        f"CASE WHEN array_contains({SOURCE}._unchanged, {literal(name)})"
        f" THEN {TARGET}.{column} ELSE {SOURCE}.{column} END"
    )


def _new_or_missing(schema: TableSchema, name: str) -> str:
    column = quoted(name)
    message = literal(missing_row(schema))
    return (
        f"CASE WHEN array_contains({SOURCE}._unchanged, {literal(name)})"
        f" THEN raise_error({message}) ELSE {SOURCE}.{column} END"
    )


def row_moved(file: str) -> str:
    """In SQL, what fails because a row that goes is not in the file where it was found."""
    return f"raise_error(concat({literal(_MOVED)}, {file}))"


@contextmanager
def places_checked(schema: TableSchema) -> Iterator[None]:
    """TableMoved where a MERGE inside has met row_moved."""
    try:
        yield
    except Exception as error:
        if _MOVED_FROM.search(str(error)) is None:
            raise
        raise TableMoved(
            f"{schema.name} was changed by someone else while rows were removed from it"
        ) from error


def missing_row(schema: TableSchema) -> str:
    """What is said of a row that is not there."""
    return f"walflow: {schema.name} lacks a row whose unchanged columns a change relies on"


def _overflow_after(partial: bool) -> str:
    """The exact texts of an updated row: the new ones, and those of columns that stay."""
    if not partial:
        return f"{SOURCE}._exact"
    nothing = f"cast(map() AS {EXACT_TYPE})"
    unchanged = f"{SOURCE}._unchanged"
    stays = f"map_filter({TARGET}.{EXACT}, (name, text) -> array_contains({unchanged}, name))"
    both = f"map_concat(coalesce({stays}, {nothing}), coalesce({SOURCE}._exact, {nothing}))"
    return (
        f"CASE WHEN {unchanged} IS NULL THEN {SOURCE}._exact WHEN size({both}) > 0 THEN {both} END"
    )


def with_base_rows(net: DataFrame, identifier: str, lake_schema: LakeTableSchema) -> DataFrame:
    """Net changes in which rows that changed their key have the values they were not sent.

    Those values are in the table, under the key that the row had (``_old``).
    """
    schema, has_overflow = lake_schema.schema, lake_schema.overflow
    moved = net.where("_old IS NOT NULL")
    table = net.sparkSession.table(identifier).select(
        sf.struct(*(sf.col(quoted(name)) for name in schema.column_names)).alias("_base"),
        (sf.col(EXACT) if has_overflow else sf.lit(None).cast(EXACT_TYPE)).alias("_base_exact"),
    )
    same = [sf.col("_base")[name].eqNullSafe(sf.col(f"_old.{quoted(name)}")) for name in schema.key]
    for column in schema.key_columns:
        if may_be_inexact(column):
            text = sf.lit(column.name)
            wanted = sf.try_element_at(sf.col("_old._exact"), text)
            same.append(sf.try_element_at(sf.col("_base_exact"), text).eqNullSafe(wanted))
    found = moved.join(table, same, "left")

    def value(name: str) -> Expr:
        own = sf.col(quoted(name))
        if name in schema.key:
            return own
        missing = sf.raise_error(sf.lit(missing_row(schema)))
        base = sf.when(sf.col("_base").isNull(), missing).otherwise(sf.col("_base")[name])
        return sf.when(sf.array_contains("_unchanged", name), base).otherwise(own).alias(name)

    nothing = sf.create_map().cast(EXACT_TYPE)
    stays = sf.map_filter("_base_exact", lambda n, _: sf.array_contains(sf.col("_unchanged"), n))
    overflow = sf.map_concat(sf.coalesce(stays, nothing), sf.coalesce(sf.col("_exact"), nothing))
    # A step of its own: inside a lambda Spark would take `_unchanged` for the new column below.
    found = found.withColumn("_base_exact", overflow)
    filled = found.select(
        "_change_type",
        "_kind",
        "_lsn",
        "_timestamp",
        sf.lit(None).cast("array<string>").alias("_unchanged"),
        sf.lit(None).cast(moved.schema["_old"].dataType).alias("_old"),
        sf.when(sf.size("_base_exact") > 0, sf.col("_base_exact")).alias("_exact"),
        *(quoted(name) for name in our_values(lake_schema).values() if name not in _NET),
        *(value(name) for name in schema.column_names),
    )
    # Not `kept`: when it caches a frame over a table, Spark 4.1 takes columns whose names differ
    # by case alone for the same. All of it, because a MERGE filters the table's scan by the keys of
    # what comes from one place.
    return checkpointed(net.where("_old IS NULL").unionByName(filled))


@contextmanager
def viewed(frame: DataFrame) -> Iterator[str]:
    """The frame under a name, in its own session, for a MERGE, which has no DataFrame form.

    Where the MERGE selects from it by a plain comparison, Spark filters the table's scan by the
    keys that it finds, however large it takes the frame to be: what comes out of joins it takes
    for the product of both.
    """
    session = frame.sparkSession
    before = session.conf.get(_FILTER_FROM)
    assert before is not None  # it has a default
    session.conf.set(_FILTER_FROM, "1000p")
    frame.createOrReplaceTempView(_VIEW)
    try:
        yield _VIEW
    finally:
        session.catalog.dropTempView(_VIEW)
        session.conf.set(_FILTER_FROM, before)
