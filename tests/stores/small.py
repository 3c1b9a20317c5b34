"""A store with no more calls than one must have."""

from __future__ import annotations

import threading
from collections import defaultdict

from walflow.errors import NothingToRollBack
from walflow.model import Lsn, TableName, TableSchema
from walflow.states import TableReplicationState

__all__ = ["Small"]


class Small:
    """The calls of BasicStore, and no others. It is falsy, too, while it is empty."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._schemas: dict[int, dict[Lsn, TableSchema]] = defaultdict(dict)
        self._states: dict[int, list[TableReplicationState]] = {}
        self._mappings: dict[int, TableName] = {}

    def __len__(self) -> int:
        return len(self._states)

    def get_table_schema(self, table: int, at: Lsn | None = None) -> TableSchema | None:
        known = self._schemas.get(table, {})
        return known.get(max((v for v in known if at is None or v <= at), default=Lsn(-1)))

    def get_table_schemas(self) -> list[TableSchema]:
        return [known[max(known)] for known in self._schemas.values()]

    def load_table_schemas(self) -> int:
        return sum(map(len, self._schemas.values()))

    def store_table_schema(self, schema: TableSchema) -> None:
        self._schemas[schema.oid][schema.version] = schema

    def get_table_replication_state(self, table: int) -> TableReplicationState | None:
        states = self._states.get(table)
        return states[-1] if states else None

    def get_table_replication_states(self) -> dict[int, TableReplicationState]:
        with self._lock:
            return {table: states[-1] for table, states in self._states.items()}

    def load_table_replication_states(self) -> int:
        return len(self._states)

    def update_table_replication_state(self, table: int, state: TableReplicationState) -> None:
        with self._lock:
            before = self._states.get(table, [])
            if before and (before[-1].phase, before[-1].since) == (state.phase, state.since):
                before = before[:-1]
            self._states[table] = [*before, state]

    def rollback_table_replication_state(self, table: int) -> TableReplicationState:
        with self._lock:
            if len(self._states.get(table, ())) < 2:
                raise NothingToRollBack("there is none before")
            self._states[table] = self._states[table][:-1]
            return self._states[table][-1]

    def get_table_mapping(self, table: int) -> TableName | None:
        return self._mappings.get(table)

    def get_table_mappings(self) -> dict[int, TableName]:
        return dict(self._mappings)

    def load_table_mappings(self) -> int:
        return len(self._mappings)

    def store_table_mapping(self, table: int, destination: TableName) -> None:
        self._mappings[table] = destination

    def cleanup_table_state(self, table: int) -> None:
        with self._lock:
            for kept in (self._schemas, self._states, self._mappings):
                kept.pop(table, None)
