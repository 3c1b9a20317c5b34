"""Rounds with changes from before a column was dropped which the lake's table keeps.

Such changes are told in the source's present form, without the column. The table has it still, so
its values are to get there: the round's form gets the kept columns, under the names that they have
in the table. It comes to the same as one round before the drop and one after it: rows of forms
without the column have null in it, but where they update a row that stays, its value does.
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

__all__ = ["may_have_kept_columns", "with_kept_columns"]


def may_have_kept_columns(changes: TableChanges, plan: TablePlan) -> bool:
    """Whether the table, if it changes by merges or appends, has to be asked for such columns."""
    if not keeps_dropped(plan):
        return False
    # Without a key rows are told apart by all that the source tells of them: more would make two
    # rows of one from before the drop and after it.
    told_apart = bool(changes.schema.key) or plan.mode == "history"
    return told_apart and any(part.evolution.dropped for part in changes.former)


def with_kept_columns(changes: TableChanges, plan: TablePlan, stored: Stored) -> TableChanges:
    """The changes with the columns of their former forms that the table keeps; ``stored`` is the
    table as it says itself that it is."""
    if not (kept := _kept(changes, stored)):
        return changes
    present, stats = changes.schema, changes.stats
    numbers = frozenset(kept)
    # Only tables with one row a row have a value that could stay: a version, or a row of a
    # history, is a new one.
    stays = plan.mode in ("mirror", "soft_delete")
    lake_schema = replace(
        present,
        columns=(*present.columns, *kept.values()),
        unpublished=present.unpublished | numbers if stays else present.unpublished - numbers,
    )
    former = tuple(
        replace(part, evolution=_to_form(part.evolution, lake_schema, kept))
        for part in changes.former
    )
    if changes.files:
        now = _to_form(Evolution(present, present), lake_schema, kept)
        former += (FormerChanges(changes.files, now),)
    if stays and stats.updates:
        stats = replace(stats, unchanged=True)
    return replace(changes, schema=lake_schema, files=(), former=former, stats=stats)


def _kept(changes: TableChanges, stored: Stored) -> Mapping[int, Column]:
    """By attribute number, the columns as they are in the table."""
    said = stored.properties.get(COLUMNS)
    # A table that does not say it has had no form but its first one.
    first = changes.former[0].evolution.before
    known: dict[str, int] = column_numbers(first) if said is None else json.loads(said)
    names = {number: name for name, number in known.items()}
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


def _to_form(
    evolution: Evolution, lake_schema: TableSchema, kept: Mapping[int, Column]
) -> Evolution:
    """The evolution to the form with the kept columns: it does not drop them."""
    was = {column.attnum: column for column in evolution.before.columns}
    both = [(was[number], column) for number, column in kept.items() if number in was]
    return replace(
        evolution,
        after=lake_schema,
        added=(*evolution.added, *(c for number, c in kept.items() if number not in was)),
        dropped=tuple(c for c in evolution.dropped if c.attnum not in kept),
        renamed=(*evolution.renamed, *((old, new) for old, new in both if old.name != new.name)),
        widened=(
            *evolution.widened,
            *((old, new) for old, new in both if old.spark_type != new.spark_type),
        ),
    )
