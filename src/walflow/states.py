"""The stored state of a table: its phase, since when, its position, and its error.

Values only, like ``model``. Stores store them, the pipeline changes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from walflow.model import Lsn, Phase, TableName

__all__ = [
    "Gap",
    "Membership",
    "RetryKind",
    "RetryPolicy",
    "Storage",
    "TableError",
    "TableReplicationState",
    "stands_at",
]


_PASSING = frozenset({"MappingConflict", "NoSelectRight", "ReservedColumnName"})


class RetryKind(StrEnum):
    NONE = "none"
    """Trying again cannot help: the table must be copied again (``walflow resync``)."""
    MANUAL = "manual"
    """Someone must fix the cause first, and then run ``walflow retry``."""
    TIMED = "timed"
    """It is tried again automatically."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    kind: RetryKind
    at: float | None = None
    """Unix time of the next attempt, if there is one."""


@dataclass(frozen=True, slots=True)
class TableError:
    """Why a table was set aside. It stays until a later attempt succeeds."""

    code: str
    """The error's stable name."""
    reason: str
    hint: str
    retry: RetryPolicy
    phase: Phase
    """The phase in which it happened. After a retry, the table continues from there."""

    @property
    def passing(self) -> bool:
        """Whether a newer look at the source's catalog may find the cause gone."""
        return self.code in _PASSING


class Gap(StrEnum):
    """Why the log may lack something that happened to a table's rows."""

    PUBLISHED = "it is published in another way, or was for a time"
    """It was not published for a time, other rows are published than before, the publication's
    settings were written (kinds of change may have been left out for a time; a new owner looks the
    same), a partition was detached or dropped, or one was attached that may have had rows."""
    TYPES = "a type of its columns was altered, and with it the values in rows that were there"
    REWRITTEN = "its rows were written anew, and not all that became of them is in the log"
    """By ALTER TABLE: a column may have other values (TYPE … USING), or the table may have been
    UNLOGGED for a time."""


class Storage(NamedTuple):
    """A relation's file, and facts that show how its rows were written."""

    relation: int
    file: int
    toast: int
    """Its TOAST table. 0 if it has none, because its columns are short."""
    entry: int
    """Its own entry in a publication. 0 if it has none."""
    columns: int
    """A number that changes with every ALTER of a column."""

    def may_be_rewritten_since(self, before: Storage) -> bool:
        """Whether ALTER TABLE may have written all rows anew, with values that are not in the log
        or after a time without one.

        TRUNCATE, VACUUM FULL and CLUSTER make a new file too, but keep the TOAST table. Without
        one, two things are known: a change of values alters a column, and a table with an entry in
        a publication cannot be made UNLOGGED.
        """
        if self.file == before.file:
            return False
        if self.toast and before.toast:
            return self.toast != before.toast
        same_entry = self.entry != 0 and self.entry == before.entry
        return not same_entry or self.columns != before.columns


@dataclass(frozen=True, slots=True)
class Membership:
    """How the source publishes a table, and by which relations and types: this shows whether its
    rows came, went or became others without a change in the log."""

    entries: frozenset[str] = frozenset()
    """What it is published by: the publication (FOR ALL TABLES), or entries for itself, for its
    schema, or for a table that it is a partition of. An entry changes if it, or the table's place
    in that schema or below that table, was removed and added again."""
    row_filter: str | None = None
    kinds: frozenset[str] = frozenset()
    """The kinds of change that are published: insert, update, delete, truncate."""
    relations: frozenset[tuple[int, int]] = frozenset()
    """The table itself as (oid, 0), and its partitions on all levels as (oid, transaction that
    attached it)."""
    came_empty: frozenset[int] = field(default=frozenset(), compare=False)
    """The oids of partitions that cannot have brought rows with them: they were created as
    partitions, or have no rows yet."""
    publication: str = ""
    """The version of the publication's settings, which begins with its oid. Kinds that were
    switched off and on again look the same, but the version does not. Empty if it was not read."""

    files: frozenset[Storage] = frozenset()
    """The relations with the rows. Empty if they were not read."""
    types: frozenset[tuple[int, str]] = frozenset()
    """The facts that the values of the columns' types depend on, as (type, fact): see
    read_type_facts."""

    def continues(self, now: Membership) -> bool:
        """Whether the log has everything that happened to the table's rows between this and
        ``now``."""
        return self.gap(now) is None

    def gap(self, now: Membership) -> Gap | None:
        """Why the log may lack something that happened to the table's rows between this and
        ``now``: then the table must be copied again. None: it has everything.

        What was not read then is assumed to be as it is now. If the settings' version is not known,
        only kinds of change that were added count.
        """
        new = {oid for oid, _ in now.relations - self.relations}
        if not (
            not self.entries.isdisjoint(now.entries)
            and self.row_filter == now.row_filter
            and now.kinds <= self.kinds
            and self.publication in ("", now.publication)
            and self.relations <= now.relations
            and new <= now.came_empty
        ):
            return Gap.PUBLISHED
        if not self._same_values(now):
            return Gap.TYPES
        return Gap.REWRITTEN if self._may_be_rewritten(now) else None

    def _same_values(self, now: Membership) -> bool:
        """Whether rows that nobody wrote to still print the same texts. Types that only one of both
        uses belong to columns that were added or dropped, and additional facts (an enum's new
        label) to values that no row had."""
        used = {oid for oid, _ in now.types}
        return now.types >= {(oid, fact) for oid, fact in self.types if oid in used}

    def _may_be_rewritten(self, now: Membership) -> bool:
        before = {storage.relation: storage for storage in self.files}
        return any(
            storage.may_be_rewritten_since(before[storage.relation])
            for storage in now.files
            if storage.relation in before
        )

    @property
    def publication_oid(self) -> str:
        """Empty if it is not known."""
        return self.publication.partition(":")[0]


@dataclass(frozen=True, slots=True)
class TableReplicationState:
    """One entry of a table's history."""

    table: TableName
    """The source's name for it at that time."""
    phase: Phase = Phase.INIT
    since: float = 0.0
    """Unix time at which the phase was entered."""
    position: Lsn = Lsn(0)
    """All changes of the table up to this are in the destination, as far as the pipeline knows. A
    destination that stores positions itself knows better."""
    rows_expected: int = 0
    """The planner's estimate, for progress only."""
    rows_copied: int = 0
    copy_seconds: float = 0.0
    changes_applied: int = 0
    attempts: int = 0
    """Failures since the last success."""
    error: TableError | None = None
    """The last failure. The table is set aside only while its phase is ``Errored``."""
    membership: Membership = field(default_factory=Membership)
    schema_version: Lsn = Lsn(0)
    """The version of the schema that the destination's table has; 0: not known."""
    changing: bool = False
    """Whether it is being brought from that schema to the newest one, as far as is known."""


class _Standing(Protocol):
    @property
    def phase(self) -> Phase: ...

    @property
    def error(self) -> TableError | None: ...


def stands_at(state: _Standing) -> Phase:
    """A table's phase; if it was set aside, the one that it was in."""
    if state.phase is not Phase.ERRORED or state.error is None:
        return state.phase
    return state.error.phase
