"""The contract of stores. A store holds the state of one pipeline.

The small protocols describe the parts. A store of your own needs those of ``BasicStore``. A
pipeline uses all of ``Store``; ``walflow.stores.own`` has defaults for the rest.

A store is opened for one pipeline and never sees another pipeline's entries. Tables are identified
by their oid in the source. Reads come from a cache, which the ``load_…`` calls fill. Writes reach
the persistent side first: after a write has returned, its content survives the process. All calls
may come from several threads. Leases and requests are shared by several processes, and so are never
cached.
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
    """The schemas of tables, each from a log position (its ``version``) on."""

    def get_table_schema(self, table: int, at: Lsn | None = None) -> TableSchema | None:
        """The newest schema. With a position: the one with the largest version that is not after
        it."""

    def get_table_schemas(self) -> list[TableSchema]:
        """The newest schema of every table."""

    def load_table_schemas(self) -> int:
        """Fill the cache again. Returns the number of schemas."""

    def store_table_schema(self, schema: TableSchema) -> None:
        """Store a schema. It replaces one of the same table and version."""


class StateStore(Protocol):
    """The states of tables, their histories, and their names in the destination."""

    def get_table_replication_state(self, table: int) -> TableReplicationState | None: ...

    def get_table_replication_states(self) -> dict[int, TableReplicationState]: ...

    def load_table_replication_states(self) -> int:
        """Fill the cache again. Returns the number of tables."""

    def update_table_replication_state(self, table: int, state: TableReplicationState) -> None:
        """Make this the table's state.

        A state with the same phase and ``since`` as the current one replaces it (progress is not
        history). Any other state is added to the history.
        """

    def rollback_table_replication_state(self, table: int) -> TableReplicationState:
        """Remove the current state. The one before becomes the current one, and is returned.

        If there is none before, raises NothingToRollBack and changes nothing.
        """

    def get_table_mapping(self, table: int) -> TableName | None:
        """The table's name in the destination."""

    def get_table_mappings(self) -> dict[int, TableName]: ...

    def load_table_mappings(self) -> int: ...

    def store_table_mapping(self, table: int, destination: TableName) -> None: ...


class CleanupStore(Protocol):
    def cleanup_table_state(self, table: int) -> None:
        """Remove a table: states, history, schemas, mapping. Repeats safely."""


class BasicStore(SchemaStore, StateStore, CleanupStore, Protocol):
    """The calls that a store of your own must have."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that runs a pipeline, or tries to."""

    id: str
    """Unique: it is never used again."""
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Report:
    """The status of a running pipeline, as it last reported it."""

    wal_end: Lsn
    log_end: Lsn
    applied: Lsn
    """Everything up to here is in the destination, for every followed table."""
    lag_seconds: float
    at: float
    """Unix time."""
    routed: Lsn = Lsn(0)
    """The position of every followed table, except those in ``behind``."""
    behind: Mapping[int, Lsn] = field(default_factory=dict)
    """By oid: the positions of followed tables that have changes waiting."""
    batches: Mapping[str, int] = field(default_factory=dict)
    """How many batches were written since the start, by the destination's engine."""


@dataclass(frozen=True, slots=True)
class Lease:
    holder: Holder
    seconds_left: float
    """By the store's own clock. 0 or less: it has run out, and any process may take the
    pipeline."""
    report: Report | None = None


class LeaseStore(Protocol):
    """Only one process at a time runs a pipeline. A process that dies loses its lease after a
    while.

    Check and take the lease in one step (one statement, one transaction with a lock, one script),
    by the store's own clock: if several processes ask at the same moment, exactly one gets it.
    """

    def acquire_lease(self, holder: Holder, seconds: float) -> None:
        """Take the lease, or renew it. Raises PipelineInUse, which names the holder, while another
        process's lease has not run out."""

    def renew_lease(self, holder: Holder, seconds: float, report: Report | None = None) -> None:
        """Renew the lease. Raises LeaseLost if another process has taken the pipeline. A lease that
        ran out and was not taken is simply renewed."""

    def release_lease(self, holder: Holder) -> None:
        """Release the lease. Does nothing if it is not this holder's. Repeats safely."""

    def get_lease(self) -> Lease | None:
        """The lease, even if it has run out. None if it was released or never taken."""


class Action(StrEnum):
    """What an operator can request for a table."""

    RETRY = "retry"
    ROLLBACK = "rollback"
    RESYNC = "resync"


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a command to a pipeline that runs in another process."""

    id: str
    table: TableName
    action: Action
    asked: float
    """Unix time."""
    outcome: str | None = None
    """The result, in words. None while it waits."""
    refused: bool = False

    @classmethod
    def new(cls, table: TableName, action: Action) -> Self:
        return cls(str(uuid.uuid4()), table, action, time.time())


class RequestStore(Protocol):
    def put_request(self, request: Request) -> None: ...

    def open_requests(self) -> list[Request]:
        """Requests without an outcome, oldest first."""

    def finish_request(self, id: str, outcome: str, *, refused: bool = False) -> None:
        """Store the outcome. Does nothing if the request is unknown. Finished requests may be
        removed after a day."""

    def get_request(self, id: str) -> Request | None: ...


class Store(BasicStore, LeaseStore, RequestStore, Protocol):
    """All calls of a store that a pipeline uses."""

    def update_table_replication_states(self, states: Mapping[int, TableReplicationState]) -> None:
        """``update_table_replication_state`` for several tables, all or none."""

    def get_table_replication_history(self, table: int) -> list[TableReplicationState]:
        """All states, the current one last. Empty for an unknown table. Read from the persistent
        side. A store may drop the oldest of more than a hundred."""

    def drop(self) -> None:
        """Remove all of this pipeline's entries, and no other's."""

    def close(self) -> None:
        """Repeats safely."""
