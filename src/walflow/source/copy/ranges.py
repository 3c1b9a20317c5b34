"""Cutting tables into ranges of pages that executors copy side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from walflow.model import TableName, TableSchema, quote_identifier
from walflow.source.catalog.physical import PhysicalRelation
from walflow.source.catalog.published_tables import PublishedTable
from walflow.source.codec.values import copy_expression

__all__ = ["CopyRange", "copied_columns", "copy_ranges", "page_range"]


@dataclass(frozen=True, slots=True)
class CopyRange:
    """Some pages of one relation, and the query that reads them."""

    table: TableSchema
    relation_oid: int
    relation: TableName
    first_page: int
    end_page: int | None
    """The first page that is no longer in it; None: all to the end, however far that has moved."""
    bytes: int
    """About how much there is to read."""
    query: str
    """SELECT of the table's columns, in order, in the forms that the copy's decoder reads."""


def copy_ranges(tables: Iterable[PublishedTable], range_bytes: int) -> list[CopyRange]:
    """The ranges of all tables, largest first, so that the last to finish are short.

    Every page is in exactly one range. A table's size may be stale: its last range is open.
    """
    found = [
        piece
        for table in tables
        for relation in table.relations
        for piece in _cut(table, relation, range_bytes)
    ]
    return sorted(found, key=lambda piece: (-piece.bytes, piece.relation, piece.first_page))


def _cut(
    table: PublishedTable, relation: PhysicalRelation, range_bytes: int
) -> Iterator[CopyRange]:
    count = max(1, min(relation.pages, math.ceil(relation.bytes / range_bytes)))
    bounds = [relation.pages * place // count for place in range(count)]
    for place, first in enumerate(bounds):
        end = bounds[place + 1] if place + 1 < count else None
        yield page_range(table, relation, first, end, relation.bytes // count)


def page_range(
    table: PublishedTable, relation: PhysicalRelation, first: int, end: int | None, size: int
) -> CopyRange:
    """These pages of a relation of the table."""
    return CopyRange(
        table=table.schema,
        relation_oid=relation.oid,
        relation=relation.name,
        first_page=first,
        end_page=end,
        bytes=size,
        query=_query(table, relation, first, end),
    )


def _query(table: PublishedTable, relation: PhysicalRelation, first: int, end: int | None) -> str:
    conditions = []
    if first > 0:
        conditions.append(f"ctid >= '({first},0)'::tid")
    if end is not None:
        conditions.append(f"ctid < '({end},0)'::tid")
    if table.row_filter is not None:
        conditions.append(f"({table.row_filter})")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    # ONLY: a table's inheriting children are published, and copied, on their own.
    return f"SELECT {copied_columns(table.schema)} FROM ONLY {relation.name.quoted}{where}"


def copied_columns(schema: TableSchema) -> str:
    """What a copy selects, in the forms that its decoder reads."""
    # A partition may have its columns in another order than the table it belongs to: by name.
    columns = [
        f"{copy_expression(column)} AS {quote_identifier(column.name)}" for column in schema.columns
    ]
    # A row of nothing would look like the end of a copy.
    return ", ".join(columns) or "NULL"
