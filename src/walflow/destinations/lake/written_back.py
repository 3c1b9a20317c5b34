"""Which commit changed rows of a table together with its columns.

Iceberg's rollback undoes what a commit did to rows, and keeps the columns of the table. A table
that was set back to before such a commit has the columns, and its older rows would lack their
values for good. Delta's RESTORE brings the former columns back too, and the property with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from walflow.model import Lsn

__all__ = ["CHANGED_ROWS", "is_undone", "said_of"]

CHANGED_ROWS = "walflow.changed-rows"
"""Under this name a table's properties have the newest such commit, and the table's position then;
empty: there was none since the table was copied."""


def said_of(position: Lsn, commit: int) -> str:
    return f"{position} {commit}"


def is_undone(properties: Mapping[str, str], position: Lsn, has: Callable[[int], bool]) -> bool:
    """Whether a table at the position was set back to before that commit. ``has``: whether it has
    the commit (see Version), as far as is known."""
    said = properties.get(CHANGED_ROWS)
    if not said:
        return False
    then, _, commit = said.partition(" ")
    return position < Lsn.parse(then) or (position == Lsn.parse(then) and not has(int(commit)))
