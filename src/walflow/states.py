"""What is remembered of a table: where it stands, since when, and what went wrong.

Values only, like ``model``; stores keep them, the pipeline moves them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, Self

from walflow.model import Lsn, Phase, TableName

__all__ = [
    "Membership",
    "RetryKind",
    "RetryPolicy",
    "TableError",
    "TableReplicationState",
    "stands_at",
]


_PASSING = frozenset({"MappingConflict", "NoSelectRight", "ReservedColumnName"})


class RetryKind(StrEnum):
    NONE = "none"
    """Trying again cannot help: the table must be copied again (``walflow resync``)."""
    MANUAL = "manual"
    """Someone has to do something first, then ``walflow retry``."""
    TIMED = "timed"
    """It is tried again by itself."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    kind: RetryKind
    at: float | None = None
    """Unix time of the next attempt, if it is timed."""

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind.value, "at": self.at}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        return cls(RetryKind(raw["kind"]), raw["at"])


@dataclass(frozen=True, slots=True)
class TableError:
    """Why a table was set aside. It stays while the table is tried again, until that succeeds."""

    code: str
    """The error's stable name."""
    reason: str
    hint: str
    retry: RetryPolicy
    phase: Phase
    """Where the table stood when it happened, and goes on from after a retry."""

    @property
    def passing(self) -> bool:
        """Whether another look at the source's catalog may find the cause gone."""
        return self.code in _PASSING

    def to_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "reason": self.reason,
            "hint": self.hint,
            "retry": self.retry.to_dict(),
            "phase": self.phase.value,
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        return cls(
            code=raw["code"],
            reason=raw["reason"],
            hint=raw["hint"],
            retry=RetryPolicy.from_dict(raw["retry"]),
            phase=Phase(raw["phase"]),
        )


@dataclass(frozen=True, slots=True)
class Membership:
    """How the source publishes a table, and by which relations: what tells whether rows came or
    went without a change in the log that says so.

    One thing that it cannot tell: a table in a publication FOR ALL TABLES or TABLES IN SCHEMA
    (in one that names it, Postgres refuses) that is SET UNLOGGED, written to, and SET LOGGED
    again, all between two looks or while no pipeline runs. An unlogged table is not published, so
    one look in between is enough. What stays is only that the table was rewritten, as by VACUUM
    FULL, and copying again after each of those would cost more than it saves.
    """

    entries: frozenset[str] = frozenset()
    """What it is published by: the publication (FOR ALL TABLES), or entries for itself, for its
    schema, or for a table that it is a partition of. Each is another one after it, or the
    table's place in that schema or below that table, was given up and taken again."""
    row_filter: str | None = None
    kinds: frozenset[str] = frozenset()
    """The kinds of change that are published: insert, update, delete, truncate."""
    relations: frozenset[tuple[int, int]] = frozenset()
    """The table itself as (oid, 0), and its partitions on all levels as (oid, transaction that
    attached it)."""
    came_empty: frozenset[int] = field(default=frozenset(), compare=False)
    """Oids of those partitions that cannot have brought rows with them: they were made as
    partitions, or have no rows yet."""
    publication: str = ""
    """The version of the publication's settings: kinds that were switched off and on again are
    the same, but this is not. Empty if it was not looked at, as by walflow before it was kept."""

    def continues(self, now: Membership) -> bool:
        """Whether the log tells all that happened to the table's rows between this and ``now``.

        If not, the table must be copied again. It is not so if the table was not published for a
        time, if other rows are published than before, if the publication's settings were written
        (kinds of change may have been left out for a time; a new owner looks the same), if a
        partition was detached or dropped, and if one was attached that may have had rows. Where
        the settings' version is not known, more kinds of change than before are what counts.
        """
        new = {oid for oid, _ in now.relations - self.relations}
        return (
            not self.entries.isdisjoint(now.entries)
            and self.row_filter == now.row_filter
            and now.kinds <= self.kinds
            and self.publication in ("", now.publication)
            and self.relations <= now.relations
            and new <= now.came_empty
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "entries": sorted(self.entries),
            "row_filter": self.row_filter,
            "kinds": sorted(self.kinds),
            "publication": self.publication,
            "relations": sorted(self.relations),
            "came_empty": sorted(self.came_empty),
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        return cls(
            entries=frozenset(raw["entries"]),
            row_filter=raw["row_filter"],
            kinds=frozenset(raw["kinds"]),
            publication=raw.get("publication", ""),
            relations=frozenset((oid, attached) for oid, attached in raw["relations"]),
            came_empty=frozenset(raw["came_empty"]),
        )


@dataclass(frozen=True, slots=True)
class TableReplicationState:
    """One entry of a table's history."""

    table: TableName
    """The source's name for it at that time."""
    phase: Phase = Phase.INIT
    since: float = 0.0
    """Unix time at which the phase was entered."""
    position: Lsn = Lsn(0)
    """As far as is known here, all changes of the table up to this are in the destination. A
    destination that keeps positions itself knows better."""
    rows_copied: int = 0
    changes_applied: int = 0
    attempts: int = 0
    """Failures since the last success."""
    error: TableError | None = None
    """The last of them. The table is set aside only while its phase is ``Errored``."""
    membership: Membership = field(default_factory=Membership)
    form: Lsn = Lsn(0)
    """The version of the form that the destination's table has; 0: not known."""
    changing: bool = False
    """Whether it is being brought from that form to the newest one, as far as is known."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": self.table.schema,
            "name": self.table.name,
            "phase": self.phase.value,
            "since": self.since,
            "position": int(self.position),
            "rows_copied": self.rows_copied,
            "changes_applied": self.changes_applied,
            "attempts": self.attempts,
            "error": None if self.error is None else self.error.to_dict(),
            "membership": self.membership.to_dict(),
            "form": int(self.form),
            "changing": self.changing,
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        error = raw["error"]
        return cls(
            table=TableName(raw["schema"], raw["name"]),
            phase=Phase(raw["phase"]),
            since=raw["since"],
            position=Lsn(raw["position"]),
            rows_copied=raw["rows_copied"],
            changes_applied=raw["changes_applied"],
            attempts=raw["attempts"],
            error=None if error is None else TableError.from_dict(error),
            membership=Membership.from_dict(raw["membership"]),
            form=Lsn(raw.get("form", 0)),
            changing=raw.get("changing", False),
        )


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
