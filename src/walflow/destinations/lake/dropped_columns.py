"""Batches with changes from before a column was dropped, where the lake's table keeps the column.

Such changes have the source's present schema, without the column. The table still has it, so the
values must get there: the batch's schema gets the columns back, under their names in the table. The
result is the same as that of one batch before the drop and one after it: rows of schemas without
the column have null in it; where they update a row, its value stays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from walflow.config.lake import TablePlan
from walflow.destinations.base import FormerChanges, TableChanges
from walflow.destinations.lake.format import Stored
from walflow.destinations.lake.table_schema import COLUMNS, column_numbers, keeps_dropped
from walflow.evolution import Evolution, widens
from walflow.model import Column, TableSchema

__all__ = ["may_have_dropped_columns", "with_dropped_columns"]


def may_have_dropped_columns(changes: TableChanges, plan: TablePlan) -> bool:
    """Whether the batch may have values of columns that only the table still has."""
    if not keeps_dropped(plan):
        return False
    # Without a key a row is identified by all its columns: with one more, a row from before the
    # drop would not be the same row after it.
    identified = bool(changes.schema.key) or plan.mode == "history"
    return identified and any(part.evolution.dropped for part in changes.former)


def with_dropped_columns(changes: TableChanges, plan: TablePlan, stored: Stored) -> TableChanges:
    """The changes with the columns of their former schemas that the table keeps."""
    if not (dropped := _dropped(changes, stored)):
        return changes
    present, stats = changes.schema, changes.stats
    numbers = frozenset(dropped)
    # A value can stay only where a row is updated in place: a version, or a row of a history, is a
    # new row.
    stays = plan.mode in ("mirror", "soft_delete")
    lake_schema = replace(
        present,
        columns=(*present.columns, *dropped.values()),
        unpublished=present.unpublished | numbers if stays else present.unpublished - numbers,
    )
    former = tuple(
        replace(part, evolution=_to_schema(part.evolution, lake_schema, dropped))
        for part in changes.former
    )
    if changes.files:
        now = _to_schema(Evolution(present, present), lake_schema, dropped)
        former += (FormerChanges(changes.files, now),)
    if stays and stats.updates:
        stats = replace(stats, unchanged=True)
    return replace(changes, schema=lake_schema, files=(), former=former, stats=stats)


def _dropped(changes: TableChanges, stored: Stored) -> Mapping[int, Column]:
    """By attribute number, the dropped columns that the table still has, as it has them."""
    noted = stored.properties.get(COLUMNS)
    # A table without the note has never changed its schema.
    first = changes.former[0].evolution.before
    numbers: dict[str, int] = column_numbers(first) if noted is None else json.loads(noted)
    names = {number: name for name, number in numbers.items()}
    gone = [column for part in changes.former for column in part.evolution.dropped]
    found = {}
    for column in gone:
        name = names.get(column.attnum)
        if name is None or name not in stored.columns or column.attnum in found:
            continue
        kind = stored.columns[name]
        # A type that the column got after the table's may not fit.
        types = {other.spark_type for other in gone if other.attnum == column.attnum}
        if not any(kind != other and widens(kind, other) for other in types):
            found[column.attnum] = replace(column, name=name, spark_type=kind, nullable=True)
    return found


def _to_schema(
    evolution: Evolution, lake_schema: TableSchema, dropped: Mapping[int, Column]
) -> Evolution:
    """The evolution to the schema that has these columns: it does not drop them."""
    was = {column.attnum: column for column in evolution.before.columns}
    both = [(was[number], column) for number, column in dropped.items() if number in was]
    return replace(
        evolution,
        after=lake_schema,
        added=(*evolution.added, *(c for number, c in dropped.items() if number not in was)),
        dropped=tuple(c for c in evolution.dropped if c.attnum not in dropped),
        renamed=(*evolution.renamed, *((old, new) for old, new in both if old.name != new.name)),
        widened=(
            *evolution.widened,
            *((old, new) for old, new in both if old.spark_type != new.spark_type),
        ),
    )
