"""What is remembered of a table: where it stands, since when, and what went wrong.

Values only, like ``model``; stores keep them, the pipeline moves them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from walflow.model import Lsn, Phase, TableName

__all__ = [
    "Membership",
    "RetryKind",
    "RetryPolicy",
    "TableError",
    "TableReplicationState",
]


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
    """Why a table was set aside."""

    code: str
    """The error's stable name."""
    reason: str
    hint: str
    retry: RetryPolicy
    phase: Phase
    """Where the table stood when it happened, and goes on from after a retry."""

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
    """How the source publishes a table: if this changes, rows came or went without a change that
    says so, and the table has to be copied again."""

    entries: frozenset[int] = frozenset()
    """Oids of the publication's entries that the table is published by: itself, its schema, a
    table that it is a partition of, or the publication (FOR ALL TABLES)."""
    row_filter: str | None = None
    relations: frozenset[int] = frozenset()
    """Oids of the relations that hold its rows, without those that were born as its partitions
    (and so were empty when they came)."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "entries": sorted(self.entries),
            "row_filter": self.row_filter,
            "relations": sorted(self.relations),
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        return cls(frozenset(raw["entries"]), raw["row_filter"], frozenset(raw["relations"]))


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
    membership: Membership = field(default_factory=Membership)

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
        )
