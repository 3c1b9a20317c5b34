"""How a table is read, as SQL, by whom the destination is nothing but a lake: whoever owns it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from walflow.destinations.lake.consistent_cuts import KeptTable, readable
from walflow.destinations.lake.format import LakeFormat
from walflow.destinations.lake.freshness import Parts, ViewedTables, shown
from walflow.model import TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["query_as_of", "reading_query"]


def reading_query(
    spark: SparkSession, format: LakeFormat, viewed: ViewedTables, name: TableName
) -> str | None:
    """The query that gives the table's rows: if a view shows it, what the view is, or would be if
    the catalog kept views. None: there is no such table."""
    identifier = format.identifier
    if format.look(spark, name) is not None:
        return f"SELECT * FROM {identifier(name)}"
    parts = Parts.of(name, viewed.anyones(spark, name))
    if parts is None:
        return None
    return shown(parts, identifier(parts.base), identifier(parts.changes))


def query_as_of(
    spark: SparkSession, format: LakeFormat, viewed: ViewedTables, table: KeptTable
) -> str | None:
    """The query that gives the rows as they were in a picture. None: the version can no longer be
    read; of a table that a view shows, nor can those from before its columns or key were others."""
    if table.base is None:
        as_of = readable(spark, format, table.table, table.version)
        return None if as_of is None else f"SELECT * FROM {as_of}"
    parts = Parts.of(table.table, viewed.anyones(spark, table.table))
    if parts is None:
        return None
    since = parts.base_formed.since, parts.changes_formed.since
    base = readable(spark, format, parts.base, table.base, since[0])
    changes = readable(spark, format, parts.changes, table.version, since[1])
    return None if base is None or changes is None else shown(parts, base, changes)
