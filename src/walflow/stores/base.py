"""What a store is: the memory of one pipeline.

The small protocols say what each part keeps. A store of one's own needs those of ``BasicStore``;
``Store`` is all that a pipeline uses, and ``walflow.stores.own`` has defaults for the rest.

A store is opened for one pipeline and never sees another's entries, wherever they are kept. Tables
go by their oid in the source. Reads come from a cache that the ``load_…`` calls fill. Writes reach
the persistent side first: what a write returned from survives the process. All calls may come from
several threads.

Leases and requests are for several processes, and so are never cached.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, Self

from walflow.model import Lsn, TableName, TableSchema
from walflow.states import TableReplicationState

__all__ = [
    "Action",
    "BasicStore",
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
    """The schemas that tables have had, each from a log position (its ``version``) on."""

    def get_table_schema(self, table: int, at: Lsn | None = None) -> TableSchema | None:
        """The newest schema; at a position: the one with the largest version not after it."""

    def get_table_schemas(self) -> list[TableSchema]:
        """The newest schema of every table."""

    def load_table_schemas(self) -> int:
        """Fill the cache anew; returns how many schemas there are."""

    def store_table_schema(self, schema: TableSchema) -> None:
        """Keep a schema; one of the same table and version is replaced."""


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

    def rollback_table_replication_state(self, table: int) -> TableReplicationState:
        """Drop the current state, and return the one before, which is then the current one.
        Raises NothingToRollBack, and changes nothing, if there is none before."""

    def get_table_mapping(self, table: int) -> TableName | None:
        """The destination's name for the table."""

    def get_table_mappings(self) -> dict[int, TableName]: ...

    def load_table_mappings(self) -> int: ...

    def store_table_mapping(self, table: int, destination: TableName) -> None: ...


class CleanupStore(Protocol):
    def cleanup_table_state(self, table: int) -> None:
        """Forget a table: states, history, schemas, mapping. Repeats safely."""


class BasicStore(SchemaStore, StateStore, CleanupStore, Protocol):
    """What a store of one's own must have."""


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


@dataclass(frozen=True, slots=True)
class Lease:
    holder: Holder
    seconds_left: float
    """By the store's own clock; 0 or less: it has run out, and anyone may take the pipeline."""
    report: Report | None = None


class LeaseStore(Protocol):
    """One process at a time runs a pipeline. A process that dies loses its lease by time.

    Look and take in one step (one statement, one transaction with a lock, one script), by the
    store's own clock: of several processes that ask at the same moment, exactly one gets it.
    """

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


class Store(BasicStore, LeaseStore, RequestStore, Protocol):
    """All that a pipeline remembers."""

    def update_table_replication_states(self, states: Mapping[int, TableReplicationState]) -> None:
        """``update_table_replication_state`` of several tables, all or none."""

    def get_table_replication_history(self, table: int) -> list[TableReplicationState]:
        """All states, the current one last; empty for an unknown table. Read from the persistent
        side. A store may forget the oldest of more than a hundred."""

    def drop(self) -> None:
        """Forget the pipeline: all of its entries, and nothing of any other's."""

    def close(self) -> None:
        """Repeats safely."""
