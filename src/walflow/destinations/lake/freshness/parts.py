"""What a table consists of that a view shows: rows as they once were, and what came since."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from walflow.destinations.lake.format import Stored
from walflow.destinations.lake.table_schema import COLUMNS, EXACT, LakeTableSchema, StoredColumn
from walflow.model import Lsn, TableName
from walflow.spark.row_identity import may_be_inexact

__all__ = [
    "BASE",
    "BATCH",
    "CHANGES",
    "FOLDED",
    "NEWEST",
    "PART_OF",
    "REMOVED",
    "Formed",
    "Parts",
    "base_form",
    "base_of",
    "changes_of",
    "changes_schema",
    "form_properties",
    "formed_property",
    "have_one_schema",
    "part_properties",
    "said_by_parts",
    "stored_parts",
    "version_of_parts",
    "whole_of",
    "why_merged",
]

BATCH, REMOVED, NEWEST = "_ROUND", "_REMOVED", "_NEWEST"
"""Columns of the table of changes: the end of the round that a row came with, and whether it says
that the key has gone. Of one key the row of the newest round holds; ``_NEWEST`` is its number
where rows are told apart by that."""
BASE, CHANGES = "_BASE", "_CHANGES"
"""What the two parts are called in the view's query."""

PART_OF = "walflow.part-of"
"""Under this name the two tables' properties have the table that they are parts of."""
_KEY = "walflow.key"
_KEPT = "walflow.kept"
FOLDED = "walflow.folded"
"""Of changes: those up to this position were merged into the base, and taken out."""
_FORMED = "walflow.formed"
_COPY = "walflow.copy"
"""The same in both parts; while a new copy takes the place of another they differ."""

_CHANGES_COLUMNS = (StoredColumn(BATCH, "bigint"), StoredColumn(REMOVED, "boolean"))


@dataclass(frozen=True, slots=True)
class Formed:
    """Since when a part has its form. Older versions cannot be shown: they have other columns, or
    another key."""

    since: int = 0
    """In milliseconds, as versions are committed at."""
    version: int | None = None
    """The first version of this form, at the position of the last one of another, ``former``."""
    former: int | None = None

    def in_place_of(self, version: int) -> int:
        """The version that has the rows of this one, and the form."""
        return version if self.version is None or version != self.former else self.version


@dataclass(frozen=True, slots=True)
class Parts:
    """A table that is shown by a view, as its parts say of themselves."""

    name: TableName
    columns: tuple[str, ...]
    """What the view shows."""
    key: tuple[str, ...]
    kept: tuple[str, ...] = ()
    """Those of the columns that the source has no more: changes have nothing in them."""
    base_formed: Formed = Formed()
    changes_formed: Formed = Formed()

    @property
    def base(self) -> TableName:
        return base_of(self.name)

    @property
    def changes(self) -> TableName:
        return changes_of(self.name)

    @classmethod
    def of(cls, name: TableName, stored: Stored | None) -> Parts | None:
        """None: there is no table, or it is one that changes are merged into."""
        if stored is None or PART_OF not in stored.properties:
            return None
        said = stored.properties
        key, kept = json.loads(said[_KEY]), json.loads(said.get(_KEPT, "[]"))
        formed = [Formed(*part) for part in json.loads(said.get(_FORMED, "[[], []]"))]
        return cls(name, tuple(stored.columns), tuple(key), tuple(kept), *formed)


def base_of(name: TableName) -> TableName:
    return TableName(name.schema, f"{name.name}__base")


def changes_of(name: TableName) -> TableName:
    return TableName(name.schema, f"{name.name}__changes")


def whole_of(name: TableName, stored: Stored) -> TableName | None:
    """The table that the one of this name is a part of; None: it is none.

    A base that became a table itself says for ever what it was a part of, whatever its name is.
    """
    said = stored.properties.get(PART_OF)
    whole = None if said is None else TableName.parse(said)
    return whole if whole and name in (base_of(whole), changes_of(whole)) else None


def part_properties(lake_schema: LakeTableSchema, copy: str) -> Mapping[str, str]:
    """What both parts say of themselves; ``copy`` tells this copy from all others."""
    return {
        PART_OF: str(lake_schema.name),
        _COPY: copy,
        FOLDED: "0/0",
        **form_properties(lake_schema),
    }


def form_properties(
    lake_schema: LakeTableSchema, stored: Stored | None = None
) -> Mapping[str, str]:
    """What they say of their form. ``stored``: one of them, which may have more columns."""
    ours = {column.name for column in lake_schema.columns} | {EXACT, BATCH, REMOVED}
    kept = [] if stored is None else [name for name in stored.columns if name not in ours]
    return {_KEY: json.dumps(lake_schema.schema.key), _KEPT: json.dumps(kept)}


def formed_property(base: Formed, changes: Formed) -> Mapping[str, str]:
    """Only what the base says holds."""
    said = [[part.since, part.version, part.former] for part in (base, changes)]
    return {_FORMED: json.dumps(said)}


def said_by_parts(stored: Stored) -> Mapping[str, str]:
    """Of what the table says of itself, what makes it one of two parts."""
    names = (PART_OF, _KEY, _KEPT, _FORMED, _COPY)
    return {name: stored.properties[name] for name in names if name in stored.properties}


def base_form(lake_schema: LakeTableSchema) -> LakeTableSchema:
    return replace(lake_schema, schema=replace(lake_schema.schema, name=base_of(lake_schema.name)))


def changes_schema(lake_schema: LakeTableSchema) -> LakeTableSchema:
    return replace(
        lake_schema,
        schema=replace(lake_schema.schema, name=changes_of(lake_schema.name)),
        ours=lake_schema.ours + _CHANGES_COLUMNS,
    )


def stored_parts(base: Stored | None, changes: Stored | None) -> Stored | None:
    """The two as one table; None: they are not, or one of them is of another copy."""
    if base is None or changes is None:
        return None
    if base.properties.get(_COPY) != changes.properties.get(_COPY):
        return None
    # Changes that were merged into the base are taken out after that.
    position = changes.position
    folded = Lsn.parse(changes.properties.get(FOLDED, "0/0"))
    if base.position is None or position is None or not folded <= base.position <= position:
        # Or somebody has set one of them back, and the two no longer belong together.
        position = None
    # It is added to one after the other.
    columns = {n: t for n, t in base.columns.items() if n != EXACT or n in changes.columns}
    return Stored(
        position, columns, base.properties, version_of_parts(base.version, changes.version)
    )


def version_of_parts(base: str | None, changes: str | None) -> str:
    """The version of the one table that they are."""
    return f"{base} {changes}"


def have_one_schema(base: Stored, changes: Stored) -> bool:
    """Not while their form changes: that is done to one after the other."""
    said = ((part.properties.get(COLUMNS), part.properties.get(_KEY)) for part in (base, changes))
    return len(set(said)) == 1 and base.columns.keys() - {EXACT} <= changes.columns.keys()


def why_merged(lake_schema: LakeTableSchema) -> str | None:
    """Why the table cannot be shown by a view; None: it can."""
    if lake_schema.plan.mode != "mirror":
        return f"its mode is {lake_schema.plan.mode}, and views are for mirrors"
    if not lake_schema.schema.key:
        return "it has no key"
    for column in lake_schema.schema.key_columns:
        if may_be_inexact(column) or column.spark_type.startswith("map<"):
            return f"its key has {column.name}, whose values {column.spark_type} may not hold"
    taken = {BATCH, REMOVED, NEWEST, BASE, CHANGES} & {
        column.name for column in lake_schema.columns
    }
    return f"it has a column {min(taken)}, a name that the view needs" if taken else None
