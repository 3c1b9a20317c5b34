"""What changes come to, in columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from walflow.destinations.lake.netting.identity import IdentityPart

__all__ = ["ColumnarChanges", "Ints", "Mask", "first_of_each", "ranks"]

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ColumnarChanges:
    """What changes come to: rows of the table go, and rows come."""

    identity: tuple[IdentityPart, ...]
    """What tells rows apart."""
    keys: pa.Table
    """The values of these columns in the rows that go; no two rows of it are the same."""
    rows: pa.Table
    """The rows that come, with all columns of the source."""
    origins: pa.Table
    """``_change_type``, ``_lsn`` and ``_timestamp`` of their last changes."""
    overflow: Mapping[str, pa.Array] = field(default_factory=dict)
    """By column, their overflow texts."""
    base: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """For each row that comes, which of the keys the table has it under. (-1: none of them)"""
    own: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """In a table with a key: for each row that comes, which of the keys it has now."""
    unsent: Mapping[str, Mask] = field(default_factory=dict)
    """By column, the rows whose value, and overflow text, is that of the table's row."""
    empties: bool = False
    """Whether all rows go that were there before: the table need not be asked for them."""
    removals: Ints | None = None
    """How many of the rows with each key go, those in the table first, and then those that come, in
    their order. None: all of the table, and none that come."""

    def without(self, gone: Mask) -> ColumnarChanges:
        """Without some of the rows that come. (There is nothing unsent.)"""
        at = pa.array(np.flatnonzero(~gone))
        return replace(
            self,
            rows=self.rows.take(at),
            origins=self.origins.take(at),
            overflow={name: texts.take(at) for name, texts in self.overflow.items()},
            base=self.base[~gone],
        )

    def without_removed(self, counts: Ints) -> ColumnarChanges | None:
        """Without those that went again, of a table without a key that has, and loses, so many rows
        with each key. None: it lacks rows that were removed from its source."""
        assert self.removals is not None
        lacking = np.maximum(self.removals - counts, 0)
        if not lacking.any():
            return self
        gone = (self.base >= 0) & (ranks(self.base) < lacking[self.base])
        return self.without(gone) if gone.sum() == lacking.sum() else None


def ranks(groups: Ints) -> Ints:
    """For each, the how-manieth of its group it is, from 0 on."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    firsts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    lengths = np.diff(np.concatenate([firsts, [len(groups)]]))
    found = np.empty(len(groups), dtype=np.int64)
    found[order] = np.arange(len(groups)) - np.repeat(firsts, lengths)
    return found


def first_of_each(numbers: Ints, removals: Ints, came: tuple[Ints, Ints]) -> Mask:
    """Of rows with these numbers, in the order of their places, those that go: as many of each
    number as ``removals`` says, by how they ``came`` (the position of their last changes, and the
    order of their kinds)."""
    order = np.lexsort((came[1], came[0], numbers))
    rank = np.empty(len(numbers), dtype=np.int64)
    rank[order] = ranks(numbers[order])
    return rank < removals[numbers]
