"""How a table's form changes: what has to be done to rows, and to a table, of the form before.

Values only, like ``model``. Both forms know their columns' attribute numbers, which settle what
was renamed and what was dropped and made anew; nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

from walflow.model import Column, TableSchema

__all__ = ["Evolution", "NotFollowed", "evolution"]


class NotFollowed(Exception):
    """Rows of the form before do not tell what they are in the form after: the table must be
    copied again."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Evolution:
    """The way from one form to another. Columns that are in none of these stay as they are."""

    before: TableSchema
    after: TableSchema
    added: tuple[Column, ...] = ()
    """Rows from before have ``missing`` in them."""
    dropped: tuple[Column, ...] = ()
    renamed: tuple[tuple[Column, Column], ...] = ()
    """Also those that are widened as well."""
    widened: tuple[tuple[Column, Column], ...] = ()
    """Columns whose type holds all that the former one did, with the same values."""

    @property
    def key_changed(self) -> bool:
        """Whether other columns tell rows apart, or rows are no longer told apart by columns."""
        raise NotImplementedError

    @property
    def changes_columns(self) -> bool:
        """Whether a table of the form before must be altered at all."""
        return bool(self.added or self.dropped or self.renamed or self.widened)


def evolution(before: TableSchema, after: TableSchema, *, trust_rewrites: bool) -> Evolution:
    """The way from one form of a table to a later one. Raises NotFollowed.

    Postgres rewrites a table for some changes of type (integer to bigint) and logs nothing; the
    expression that it used (ALTER COLUMN … TYPE … USING …) is not to be seen afterwards. Such a
    change is followed only with ``trust_rewrites``, and then only if the new type holds all values
    of the former one.
    """
    raise NotImplementedError
