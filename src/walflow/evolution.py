"""How a table's schema changes, and what follows for its rows and for the destination's table.

Values only, like ``model``. Both schemas have their columns' attribute numbers. These show which
columns were renamed, and which were dropped and created again. Nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from walflow.model import Column, PgType, ReplicaIdentity, TableSchema

__all__ = ["Evolution", "NotFollowed", "evolution", "key_numbers", "widens"]

_TEXT, _VARCHAR, _NAME, _UUID, _JSON, _JSONB = 25, 1043, 19, 2950, 114, 3802
_BIT, _VARBIT = 1560, 1562
_NUMERIC = 1700

_PRINT_ALIKE = (frozenset({_TEXT, _VARCHAR}), frozenset({_BIT, _VARBIT}))
"""Types whose values print the same text after a change between them. cidr and inet, xml and text
are not among them: a cidr always shows its mask, an xml value loses its encoding."""

_WIDER_IF_GREATER = frozenset({_VARCHAR, _VARBIT, 1114, 1184, 1083, 1266})
"""Types whose modifier is a length or precision, up to which every value stays as it is."""

_ANY_SIZE = -1

_CAST_WITHOUT_LOSS = frozenset(
    {
        *[(21, 23), (21, 20), (23, 20), (700, 701)],
        *[(base, _TEXT) for base in (_VARCHAR, _NAME, _UUID, _JSON, _JSONB)],
        *[(base, _VARCHAR) for base in (_TEXT, _NAME, _UUID, _JSON, _JSONB)],
    }
)
"""Casts after which a value is the same number, or prints the same text."""

_WIDENINGS = frozenset({("int", "bigint"), ("float", "double")})


class NotFollowed(Exception):
    """A table cannot be brought up to date by changes alone: it must be copied again. For example,
    rows of one schema do not say what they are in the next one."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Evolution:
    """The steps from one schema to another. Columns that are in none of these stay as they are.

    A name may be in ``dropped`` and in ``added``, if a column was dropped and created again, and
    renamed columns may have exchanged names. So dropping comes first, then all renames at once.
    """

    before: TableSchema
    after: TableSchema
    added: tuple[Column, ...] = ()
    """``missing`` has their values in earlier rows."""
    dropped: tuple[Column, ...] = ()
    renamed: tuple[tuple[Column, Column], ...] = ()
    """Including those that are also widened."""
    widened: tuple[tuple[Column, Column], ...] = ()
    """Columns whose new type holds all values of the former one unchanged."""
    missing: Mapping[str, object] = field(default_factory=dict, hash=False)
    """By name: the Python values of added columns in older rows; null for columns that are not
    named. The caller adds them, because ``evolution`` has only their texts."""

    @property
    def key_changed(self) -> bool:
        """Whether rows are identified by other columns than before, or by none."""
        return key_numbers(self.before) != key_numbers(self.after)

    @property
    def changes_columns(self) -> bool:
        """Whether a table of the former schema has to be altered."""
        return bool(self.added or self.dropped or self.renamed or self.widened)


def evolution(before: TableSchema, after: TableSchema, *, trust_rewrites: bool) -> Evolution:
    """The steps from one schema of a table to a later one. Raises NotFollowed.

    For some changes of type (integer to bigint) Postgres rewrites the table and logs nothing, and
    the expression of ALTER COLUMN … TYPE … USING … is not visible afterwards. Such a change is
    followed only with ``trust_rewrites``, and only if the new type holds all values of the former
    one. A table's files show that it was rewritten.

    Schemas in between are not considered: to notice a type that was changed and changed back, go
    from schema to schema. The table's name may differ; it is not part of the steps.
    """
    if before.oid != after.oid:
        raise ValueError(f"{before.name} ({before.oid}) and {after.name} ({after.oid}) are two")
    for schema in (before, after):
        for column in schema.columns:
            if not column.attnum:
                raise NotFollowed(f"it is not known which column {column.name} is")
    rewritten = not before.filenodes or not before.filenodes <= after.filenodes
    was = {column.attnum: column for column in before.columns}
    now = {column.attnum: column for column in after.columns}
    added = tuple(column for column in after.columns if column.attnum not in was)
    for column in added:
        _check_added(column, before, rewritten=rewritten)
    stayed = [(was[number], now[number]) for number in sorted(was.keys() & now.keys())]
    for old, new in stayed:
        _check_type(old, new, rewritten=rewritten, trust=trust_rewrites)
    if (
        after.replica_identity is ReplicaIdentity.FULL
        and after.key
        and key_numbers(before) != key_numbers(after)
    ):
        # The stream does not show it then; the catalog shows what is now, not since when.
        raise NotFollowed("its key has changed, and it is not known at which of its changes")
    return Evolution(
        before,
        after,
        added=added,
        dropped=tuple(column for column in before.columns if column.attnum not in now),
        renamed=tuple((old, new) for old, new in stayed if old.name != new.name),
        widened=tuple((old, new) for old, new in stayed if old.spark_type != new.spark_type),
    )


def key_numbers(schema: TableSchema) -> frozenset[int]:
    """The attribute numbers of the key's columns."""
    return _numbers(schema.key_columns)


def _numbers(columns: tuple[Column, ...]) -> frozenset[int]:
    return frozenset(column.attnum for column in columns)


def _check_added(column: Column, before: TableSchema, *, rewritten: bool) -> None:
    if column.attnum <= max(before.newest, *_numbers(before.columns), 0):
        raise NotFollowed(f"column {column.name} was there before, but was not published")
    if not column.missing_known:
        raise NotFollowed(
            f"it is not known what rows from before column {column.name} was added have in it"
        )
    if column.missing is None and rewritten:
        raise NotFollowed(
            f"column {column.name} was added, and the table's rows may have been written anew "
            "since, with values that are not in the log"
        )


def _check_type(old: Column, new: Column, *, rewritten: bool, trust: bool) -> None:
    same = _same_type(old.type, new.type)
    if same and old.spark_type == new.spark_type:
        return
    change = f"the type of column {new.name} changed from {old.type.name} to {new.type.name}"
    if same:
        # By our settings. What the former type did not hold, the new one might.
        raise NotFollowed(f"column {new.name} is {new.spark_type} now, and was {old.spark_type}")
    if not widens(old.spark_type, new.spark_type):
        raise NotFollowed(f"{change}, which does not hold all its values as they were")
    if not rewritten and _print_alike(old.type, new.type):
        return
    if not _keeps_values(old.type, new.type):
        raise NotFollowed(f"{change}, and its values may have changed with it")
    if not trust:
        raise NotFollowed(
            f"{change}, and the table's rows may have been written anew, with values that are not "
            "in the log"
        )


def widens(old: str, new: str) -> bool:
    """Whether a column of a lake's table, with its values, can become the other type."""
    if old == new or (old, new) in _WIDENINGS:
        return True
    was, now = (re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", kind) for kind in (old, new))
    return bool(was and now and was[2] == now[2] and int(was[1]) <= int(now[1]))


def _same_type(old: PgType, new: PgType) -> bool:
    """Whether they differ only in the name, which types can change."""
    if old.element is not None and new.element is not None and old.oid == new.oid:
        return _same_type(old.element, new.element)
    return (old.oid, old.base, old.typmod) == (new.oid, new.base, new.typmod)


def _print_alike(old: PgType, new: PgType) -> bool:
    """Whether a stored value has the same text in both types."""
    if old.element is not None and new.element is not None:
        return old.delimiter == new.delimiter and _print_alike(old.element, new.element)
    return old.base == new.base or any({old.base, new.base} <= family for family in _PRINT_ALIKE)


def _keeps_values(old: PgType, new: PgType) -> bool:
    """Whether Postgres's own cast preserves every value."""
    if old.element is not None and new.element is not None:
        return old.delimiter == new.delimiter and _keeps_values(old.element, new.element)
    if old.base != new.base:
        return (old.base, new.base) in _CAST_WITHOUT_LOSS and new.typmod == _ANY_SIZE
    if new.typmod in (_ANY_SIZE, old.typmod):
        return True
    if old.typmod == _ANY_SIZE:
        return False
    if new.base == _NUMERIC:
        return _scale(old.typmod) == _scale(new.typmod) and new.typmod >= old.typmod
    return new.base in _WIDER_IF_GREATER and new.typmod >= old.typmod


def _scale(typmod: int) -> int:
    return (typmod - 4) & 0x7FF
