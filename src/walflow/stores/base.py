"""What a store is: the memory of one pipeline.

The small protocols say what each part keeps; ``Store`` is all of them. A store is opened for one
pipeline and never sees another's entries, wherever they are kept. Tables go by their oid in the
source. Reads come from a cache that the ``load_…`` calls fill, writes reach the persistent side
first: what a write returned from survives the process. All calls may come from several threads.

Leases and requests are for several processes, and so are never cached.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, Self, runtime_checkable

from walflow.model import Lsn, TableName, TableSchema
from walflow.states import TableReplicationState

__all__ = [
    "Action",
    "CleanupStore",
    "Holder",
    "Lease",
    "LeaseStore",
    "Report",
    "Request",
    "RequestStore",
    "SchemaStore",
    "StateStore",
    "Store",
]


class SchemaStore(Protocol):
    """The forms that tables have had, each from a log position (its ``version``) on."""

    def get_table_schema(self, table: int, at: Lsn | None = None) -> TableSchema | None:
        """The newest form; at a position: the one with the largest version not after it."""

    def get_table_schemas(self) -> list[TableSchema]:
        """The newest form of every table."""

    def load_table_schemas(self) -> int:
        """Fill the cache anew; returns how many forms there are."""

    def store_table_schema(self, schema: TableSchema) -> None:
        """Keep a form; one of the same table and version is replaced."""


class StateStore(Protocol):
    """Where tables stand, how they got there, and what the destination calls them."""

    def get_table_replication_state(self, table: int) -> TableReplicationState | None: ...

    def get_table_replication_states(self) -> dict[int, TableReplicationState]: ...

    def load_table_replication_states(self) -> int:
        """Fill the cache anew; returns how many tables there are."""

    def update_table_replication_state(self, table: int, state: TableReplicationState) -> None:
        """Make this the table's state.

        A state with the same phase and ``since`` as the current one takes its place (progress is
        not history); any other is added to the history.
        """

    def update_table_replication_states(self, states: Mapping[int, TableReplicationState]) -> None:
        """The same for several tables, all or none."""

    def rollback_table_replication_state(self, table: int) -> TableReplicationState:
        """Drop the current state, and return the one before, which is then the current one.
        Raises NothingToRollBack, and changes nothing, if there is none before."""

    def get_table_replication_history(self, table: int) -> list[TableReplicationState]:
        """All states, the current one last; empty for an unknown table. Read from the persistent
        side. A store may forget the oldest of more than a hundred."""

    def get_table_mapping(self, table: int) -> TableName | None:
        """The destination's name for the table."""

    def get_table_mappings(self) -> dict[int, TableName]: ...

    def load_table_mappings(self) -> int: ...

    def store_table_mapping(self, table: int, destination: TableName) -> None: ...


class CleanupStore(Protocol):
    def cleanup_table_state(self, table: int) -> None:
        """Forget a table: states, history, forms, mapping. Repeats safely."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that runs a pipeline, or tries to."""

    id: str
    """Its own, never used again."""
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Report:
    """How a running pipeline was doing when it last said so."""

    wal_end: Lsn
    log_end: Lsn
    applied: Lsn
    """All up to here is in the destination, of every table that is followed."""
    lag_seconds: float
    at: float
    """Unix time."""
    routed: Lsn = Lsn(0)
    """The position of every table that is followed, but for those in ``behind``."""
    behind: Mapping[int, Lsn] = field(default_factory=dict)
    """By oid, the positions of tables that are followed and that changes wait for."""
    batches: Mapping[str, int] = field(default_factory=dict)
    """How many were written since the start, by the destination's engine."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "wal_end": int(self.wal_end),
            "log_end": int(self.log_end),
            "applied": int(self.applied),
            "lag_seconds": self.lag_seconds,
            "at": self.at,
            "routed": int(self.routed),
            "behind": {str(oid): int(position) for oid, position in self.behind.items()},
            "batches": dict(self.batches),
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        return cls(
            Lsn(raw["wal_end"]),
            Lsn(raw["log_end"]),
            Lsn(raw["applied"]),
            raw["lag_seconds"],
            raw["at"],
            Lsn(raw.get("routed", 0)),
            {int(oid): Lsn(position) for oid, position in raw.get("behind", {}).items()},
            raw.get("batches", {}),
        )


@dataclass(frozen=True, slots=True)
class Lease:
    holder: Holder
    seconds_left: float
    """By the store's own clock; 0 or less: it has run out, and anyone may take the pipeline."""
    report: Report | None = None


class LeaseStore(Protocol):
    """One process at a time runs a pipeline. A process that dies loses its lease by time."""

    def acquire_lease(self, holder: Holder, seconds: float) -> None:
        """Take the pipeline, or keep it. Raises PipelineInUse, which names the holder, while
        another's lease has not run out."""

    def renew_lease(self, holder: Holder, seconds: float, report: Report | None = None) -> None:
        """Raises LeaseLost if another process has taken the pipeline. A lease that ran out and
        was taken by nobody is simply renewed."""

    def release_lease(self, holder: Holder) -> None:
        """Nothing if it is not this holder's. Repeats safely."""

    def get_lease(self) -> Lease | None:
        """The lease, run out or not; None if it was released or never taken."""


class Action(StrEnum):
    """What an operator can ask of a pipeline for a table."""

    RETRY = "retry"
    ROLLBACK = "rollback"
    RESYNC = "resync"


@dataclass(frozen=True, slots=True)
class Request:
    """What a command asks of a pipeline that runs in another process."""

    id: str
    table: TableName
    action: Action
    asked: float
    """Unix time."""
    outcome: str | None = None
    """What came of it, in words; None while it waits."""
    refused: bool = False

    @classmethod
    def new(cls, table: TableName, action: Action) -> Self:
        return cls(str(uuid.uuid4()), table, action, time.time())


class RequestStore(Protocol):
    def put_request(self, request: Request) -> None: ...

    def open_requests(self) -> list[Request]:
        """Those without an outcome, oldest first."""

    def finish_request(self, id: str, outcome: str, *, refused: bool = False) -> None:
        """Nothing if it is unknown. Finished requests may be forgotten after a day."""

    def get_request(self, id: str) -> Request | None: ...


@runtime_checkable
class Store(SchemaStore, StateStore, CleanupStore, LeaseStore, RequestStore, Protocol):
    """All that a pipeline remembers."""

    def drop(self) -> None:
        """Forget the pipeline: all of its entries, and nothing of any other's."""

    def close(self) -> None:
        """Repeats safely."""
