"""A store that lasts as long as the process: for tests, and for pipelines that need no state
afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from walflow.model import Lsn, TableName, TableSchema
from walflow.states import TableReplicationState
from walflow.stores.base import Holder, Lease, Report, Request
from walflow.stores.cached import HISTORY_LENGTH, CachedStore
from walflow.stores.refusals import lease_lost, nothing_to_roll_back, pipeline_in_use

__all__ = ["Memory", "MemoryStore"]


@dataclass(slots=True)
class _Entries:
    """The entries of one pipeline."""

    histories: dict[int, list[TableReplicationState]] = field(default_factory=dict)
    schemas: dict[tuple[int, Lsn], TableSchema] = field(default_factory=dict)
    mappings: dict[int, TableName] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    holder: Holder | None = None
    held_until: float = 0.0
    report: Report | None = None


class Memory:
    """What stores of one process share, like a database."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._pipelines: dict[str, _Entries] = {}

    def of(self, pipeline: str) -> _Entries:
        """Call this, and use its result, under the lock."""
        return self._pipelines.setdefault(pipeline, _Entries())

    def forget(self, pipeline: str) -> None:
        self._pipelines.pop(pipeline, None)


class MemoryStore(CachedStore):
    """Stores over one ``Memory`` are like stores over one database. Without one, a store shares
    nothing."""

    def __init__(self, pipeline: str, shared: Memory | None = None) -> None:
        super().__init__()
        self._pipeline = pipeline
        self._memory = Memory() if shared is None else shared
        self.load()

    @property
    def _entries(self) -> _Entries:
        return self._memory.of(self._pipeline)

    def close(self) -> None:
        """Does nothing: there is nothing to close."""

    # -- schemas, states, mappings ------------------------------------------------------------

    def get_table_replication_history(self, table: int) -> list[TableReplicationState]:
        with self._memory.lock:
            return list(self._entries.histories.get(table, ()))

    def read_schemas(self) -> Iterable[TableSchema]:
        with self._memory.lock:
            return list(self._entries.schemas.values())

    def write_schema(self, schema: TableSchema) -> None:
        with self._memory.lock:
            self._entries.schemas[schema.oid, schema.version] = schema

    def read_states(self) -> Mapping[int, TableReplicationState]:
        with self._memory.lock:
            return {table: history[-1] for table, history in self._entries.histories.items()}

    def write_states(self, states: Mapping[int, TableReplicationState]) -> None:
        with self._memory.lock:
            histories = self._entries.histories
            histories.update(
                {table: _added(histories.get(table, []), state) for table, state in states.items()}
            )

    def roll_back(self, table: int) -> TableReplicationState:
        with self._memory.lock:
            history = self._entries.histories.get(table, [])
            if len(history) < 2:
                raise nothing_to_roll_back(self._pipeline, table)
            del history[-1]
            return history[-1]

    def read_mappings(self) -> Mapping[int, TableName]:
        with self._memory.lock:
            return dict(self._entries.mappings)

    def write_mapping(self, table: int, destination: TableName) -> None:
        with self._memory.lock:
            self._entries.mappings[table] = destination

    def forget_table(self, table: int) -> None:
        with self._memory.lock:
            entries = self._entries
            entries.histories.pop(table, None)
            entries.mappings.pop(table, None)
            for key in [key for key in entries.schemas if key[0] == table]:
                del entries.schemas[key]

    def forget_pipeline(self) -> None:
        with self._memory.lock:
            self._memory.forget(self._pipeline)

    # -- leases -------------------------------------------------------------------------------

    def acquire_lease(self, holder: Holder, seconds: float) -> None:
        with self._memory.lock:
            entries, now = self._entries, time.monotonic()
            if entries.holder is not None and entries.holder.id != holder.id:
                left = entries.held_until - now
                if left > 0:
                    raise pipeline_in_use(self._pipeline, entries.holder, left)
                entries.report = None
            entries.holder, entries.held_until = holder, now + seconds

    def renew_lease(self, holder: Holder, seconds: float, report: Report | None = None) -> None:
        with self._memory.lock:
            entries = self._entries
            if entries.holder is None or entries.holder.id != holder.id:
                raise lease_lost(self._pipeline, entries.holder)
            entries.held_until = time.monotonic() + seconds
            entries.report = report or entries.report

    def release_lease(self, holder: Holder) -> None:
        with self._memory.lock:
            entries = self._entries
            if entries.holder is not None and entries.holder.id == holder.id:
                entries.holder, entries.report = None, None

    def get_lease(self) -> Lease | None:
        with self._memory.lock:
            entries = self._entries
            if entries.holder is None:
                return None
            return Lease(entries.holder, entries.held_until - time.monotonic(), entries.report)

    # -- requests -----------------------------------------------------------------------------

    def put_request(self, request: Request) -> None:
        with self._memory.lock:
            self._entries.requests.setdefault(request.id, request)

    def open_requests(self) -> list[Request]:
        with self._memory.lock:
            waiting = [r for r in self._entries.requests.values() if r.outcome is None]
        return sorted(waiting, key=lambda request: request.asked)

    def finish_request(self, id: str, outcome: str, *, refused: bool = False) -> None:
        with self._memory.lock:
            requests = self._entries.requests
            if id in requests:
                requests[id] = replace(requests[id], outcome=outcome, refused=refused)

    def get_request(self, id: str) -> Request | None:
        with self._memory.lock:
            return self._entries.requests.get(id)


def _added(
    history: list[TableReplicationState], state: TableReplicationState
) -> list[TableReplicationState]:
    current = history[-1] if history else None
    takes_place = current is not None and (current.phase, current.since) == (
        state.phase,
        state.since,
    )
    before = history[:-1] if takes_place else history
    return [*before, state][-HISTORY_LENGTH:]
