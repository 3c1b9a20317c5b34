"""A cache for reads, and writes that reach the persistent side first: the base of our stores.

A store derives from ``CachedStore``, and implements how entries are read and written: ``read_…``,
``write_…``, ``roll_back`` and ``forget_table``. The rest of ``Store`` comes from the derived class,
or from defaults (``walflow.stores.own``).

Writing calls come one at a time. The cache's dictionaries are replaced, never changed, so getters
need no lock. A write and its place in the cache are one step, so that the cache never shows an
older write last. A write that fails leaves the cache as it was.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from walflow.model import Lsn, TableName, TableSchema
from walflow.states import TableReplicationState

__all__ = ["HISTORY_LENGTH", "CachedStore"]

HISTORY_LENGTH = 100
"""How many states of a table are stored at least."""


class CachedStore(ABC):
    """The cached half of a store: schemas, states and mappings."""

    def __init__(self) -> None:
        self._write_lock = threading.RLock()
        self._schemas: dict[int, dict[Lsn, TableSchema]] = {}
        self._states: dict[int, TableReplicationState] = {}
        self._mappings: dict[int, TableName] = {}

    def load(self) -> None:
        """Fill the whole cache again."""
        self.load_table_schemas()
        self.load_table_replication_states()
        self.load_table_mappings()

    # -- schemas ------------------------------------------------------------------------------

    def get_table_schema(self, table: int, at: Lsn | None = None) -> TableSchema | None:
        versions = self._schemas.get(table, {})
        version = max((v for v in versions if at is None or v <= at), default=None)
        return None if version is None else versions[version]

    def get_table_schemas(self) -> list[TableSchema]:
        return [versions[max(versions)] for versions in self._schemas.values()]

    def load_table_schemas(self) -> int:
        with self._write_lock:
            schemas: dict[int, dict[Lsn, TableSchema]] = {}
            for schema in self.read_schemas():
                schemas.setdefault(schema.oid, {})[schema.version] = schema
            self._schemas = schemas
        return sum(map(len, schemas.values()))

    def store_table_schema(self, schema: TableSchema) -> None:
        with self._write_lock:
            self.write_schema(schema)
            versions = {**self._schemas.get(schema.oid, {}), schema.version: schema}
            self._schemas = {**self._schemas, schema.oid: versions}

    # -- states -------------------------------------------------------------------------------

    def get_table_replication_state(self, table: int) -> TableReplicationState | None:
        return self._states.get(table)

    def get_table_replication_states(self) -> dict[int, TableReplicationState]:
        return dict(self._states)

    def load_table_replication_states(self) -> int:
        with self._write_lock:
            self._states = states = dict(self.read_states())
        return len(states)

    def update_table_replication_state(self, table: int, state: TableReplicationState) -> None:
        self.update_table_replication_states({table: state})

    def update_table_replication_states(self, states: Mapping[int, TableReplicationState]) -> None:
        if not states:
            return
        with self._write_lock:
            self.write_states(states)
            self._states = {**self._states, **states}

    def rollback_table_replication_state(self, table: int) -> TableReplicationState:
        with self._write_lock:
            state = self.roll_back(table)
            self._states = {**self._states, table: state}
        return state

    # -- mappings -----------------------------------------------------------------------------

    def get_table_mapping(self, table: int) -> TableName | None:
        return self._mappings.get(table)

    def get_table_mappings(self) -> dict[int, TableName]:
        return dict(self._mappings)

    def load_table_mappings(self) -> int:
        with self._write_lock:
            self._mappings = mappings = dict(self.read_mappings())
        return len(mappings)

    def store_table_mapping(self, table: int, destination: TableName) -> None:
        with self._write_lock:
            self.write_mapping(table, destination)
            self._mappings = {**self._mappings, table: destination}

    # -- forgetting ---------------------------------------------------------------------------

    def cleanup_table_state(self, table: int) -> None:
        with self._write_lock:
            self.forget_table(table)
            self._schemas = {key: value for key, value in self._schemas.items() if key != table}
            self._states = {key: value for key, value in self._states.items() if key != table}
            self._mappings = {key: value for key, value in self._mappings.items() if key != table}

    def drop(self) -> None:
        with self._write_lock:
            self.forget_pipeline()
            self._schemas, self._states, self._mappings = {}, {}, {}

    # -- the persistent side --------------------------------------------------------------------

    @abstractmethod
    def read_schemas(self) -> Iterable[TableSchema]:
        """All schemas of all tables."""

    @abstractmethod
    def write_schema(self, schema: TableSchema) -> None:
        """Store it. It replaces one of the same table and version."""

    @abstractmethod
    def read_states(self) -> Mapping[int, TableReplicationState]:
        """The current ones, by table."""

    @abstractmethod
    def write_states(self, states: Mapping[int, TableReplicationState]) -> None:
        """All or none. A state with the phase and ``since`` of the current one replaces it. Any
        other is added to the table's history."""

    @abstractmethod
    def roll_back(self, table: int) -> TableReplicationState:
        """Remove the current state and return the one before, or raise NothingToRollBack."""

    @abstractmethod
    def read_mappings(self) -> Mapping[int, TableName]:
        """The names in the destination, by table."""

    @abstractmethod
    def write_mapping(self, table: int, destination: TableName) -> None:
        """Store it in place of an earlier one."""

    @abstractmethod
    def forget_table(self, table: int) -> None:
        """Remove its schemas, states and mapping. Repeats safely."""

    def forget_pipeline(self) -> None:
        """Remove all of this pipeline's entries, its lease and requests too, and no other
        pipeline's."""
        self.load()
        for table in {*self._schemas, *self._states, *self._mappings}:
            self.forget_table(table)
