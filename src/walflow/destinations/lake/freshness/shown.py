"""The view: rows of the base that nothing has happened to, and the newest change of each key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from walflow.destinations.lake.format import LakeFormat
from walflow.destinations.lake.freshness.parts import BASE, BATCH, CHANGES, NEWEST, REMOVED, Parts
from walflow.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["newest_changes", "same_key", "show", "shown"]


def show(format: LakeFormat, spark: SparkSession, parts: Parts) -> None:
    """Make the view, or make it anew, where the catalog keeps views. Repeats safely."""
    if format.keeps_views:
        names = format.name_in_view(parts.base), format.name_in_view(parts.changes)
        format.create_view(spark, parts.name, shown(parts, *names))


def shown(parts: Parts, base: str, changes: str) -> str:
    """The query, over the parts under these names: nothing in it is Spark's alone but the way in
    which names are quoted.

    Only keys are compared, and only changes, which are few, are put in order. A round that was
    appended twice changes nothing.
    """
    columns = newest = ", ".join(map(quoted, parts.columns))
    joined = ""
    if parts.kept:
        whose = ((BASE if name in parts.kept else CHANGES, name) for name in parts.columns)
        newest = ", ".join(f"{part}.{quoted(name)}" for part, name in whose)
        joined = f"LEFT JOIN {base} {BASE} ON {same_key(parts, BASE, CHANGES)}\n"
    # The changes first, as a reader opens what it reads in this order: changes that are merged into
    # the base, and taken away, between the two would be in neither otherwise.
    # The two are called so as no column is: a column would be taken for it.
    return (
        f"SELECT {newest} FROM (\n{newest_changes(parts, changes)}\n) {CHANGES}\n{joined}"
        f"WHERE {quoted(NEWEST)} = 1 AND NOT {quoted(REMOVED)}\n"
        "UNION ALL\n"
        f"SELECT {columns} FROM {base} {BASE}\n"
        f"WHERE NOT EXISTS (SELECT 1 FROM {changes} {CHANGES}"
        f" WHERE {same_key(parts, BASE, CHANGES)})"
    )


def newest_changes(parts: Parts, changes: str) -> str:
    """All changes, numbered from the newest of each key."""
    columns = ", ".join(map(quoted, (*parts.columns, BATCH, REMOVED)))
    key = ", ".join(map(quoted, parts.key))
    return (
        f"  SELECT {columns}, row_number() OVER (PARTITION BY {key}"
        f" ORDER BY {quoted(BATCH)} DESC) AS {quoted(NEWEST)}\n  FROM {changes}"
    )


def same_key(parts: Parts, one: str, other: str) -> str:
    return " AND ".join(f"{one}.{quoted(name)} = {other}.{quoted(name)}" for name in parts.key)
