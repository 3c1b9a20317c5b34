"""Cutting tables into ranges of pages that executors copy side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator

from walflow.model import PageRange, TableSchema, quote_identifier
from walflow.source.catalog.physical import PhysicalRelation
from walflow.source.catalog.published_tables import PublishedTable
from walflow.source.codec.values import copy_expression

__all__ = ["copied_columns", "page_conditions", "page_ranges", "range_query"]


def page_ranges(table: PublishedTable, range_bytes: int) -> list[PageRange]:
    """The table's ranges, largest first, so that the last to finish are short.

    Every page is in exactly one range. A table's size may be stale: its last range is open.
    """
    found = [piece for relation in table.relations for piece in _cut(relation, range_bytes)]
    return sorted(found, key=lambda piece: (-piece.bytes, piece.relation, piece.first_page))


def _cut(relation: PhysicalRelation, range_bytes: int) -> Iterator[PageRange]:
    count = max(1, min(relation.pages, math.ceil(relation.bytes / range_bytes)))
    bounds = [relation.pages * place // count for place in range(count)]
    for place, first in enumerate(bounds):
        end = bounds[place + 1] if place + 1 < count else None
        yield PageRange(relation.oid, first, end, relation.bytes // count)


def range_query(table: PublishedTable, pages: PageRange) -> str:
    """SELECT of the table's columns, in order, in the types that the copy's decoder reads."""
    relation = table.relation(pages.relation)
    conditions = page_conditions(pages)
    if table.row_filter is not None:
        conditions.append(f"({table.row_filter})")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    # ONLY: a table's inheriting children are published, and copied, on their own.
    return f"SELECT {copied_columns(table.schema)} FROM ONLY {relation.name.quoted}{where}"


def page_conditions(pages: PageRange) -> list[str]:
    """What rows in these pages of a relation meet."""
    conditions = []
    if pages.first_page > 0:
        conditions.append(f"ctid >= '({pages.first_page},0)'::tid")
    if pages.end_page is not None:
        conditions.append(f"ctid < '({pages.end_page},0)'::tid")
    return conditions


def copied_columns(schema: TableSchema) -> str:
    """What a copy selects, in the types that its decoder reads."""
    # A partition may have its columns in another order than the table it belongs to: by name.
    columns = [
        f"{copy_expression(column)} AS {quote_identifier(column.name)}" for column in schema.columns
    ]
    # A row of nothing would look like the end of a copy.
    return ", ".join(columns) or "NULL"
