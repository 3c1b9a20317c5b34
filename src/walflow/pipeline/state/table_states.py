"""The states of a pipeline's tables, in memory and in the store."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from walflow.failpoints import failpoint
from walflow.model import Lsn, Phase, TableName, TableSchema
from walflow.pipeline.state.phases import FOLLOWED, check_move, resumed
from walflow.pipeline.state.retries import Retries
from walflow.states import (
    Membership,
    RetryKind,
    RetryPolicy,
    TableError,
    TableReplicationState,
    stands_at,
)
from walflow.stores.base import Store

__all__ = ["TableState", "Tables"]


@dataclass(frozen=True, slots=True)
class TableState:
    """One table now: its stored state, and what the store has of it elsewhere."""

    stored: TableReplicationState
    """As it is in the store, or will be when progress is saved."""
    schema: TableSchema
    """The schema that the destination's table has or is being brought to, with the source's
    name."""
    destination: TableName
    """The destination's name for it."""
    lag_seconds: float = 0.0
    """The age of the oldest transaction that waits for the table; 0 if none does."""

    @classmethod
    def new(
        cls, schema: TableSchema, destination: TableName, phase: Phase = Phase.INIT, **stored: Any
    ) -> TableState:
        """A table that enters the phase now. ``stored``: further fields of the stored state."""
        stored = {"since": time.time(), **stored}
        state = TableReplicationState(schema.name, phase, schema_version=schema.version, **stored)
        return cls(state, schema, destination)

    def changed(
        self,
        *,
        schema: TableSchema | None = None,
        destination: TableName | None = None,
        **stored: Any,
    ) -> TableState:
        """The same with another schema or destination, or other fields of the stored state."""
        schema = schema or self.schema
        now = replace(self.stored, **stored, table=schema.name)
        if not now.changing:
            now = replace(now, schema_version=schema.version)
        return replace(self, stored=now, schema=schema, destination=destination or self.destination)

    @property
    def name(self) -> TableName:
        return self.schema.name

    @property
    def phase(self) -> Phase:
        return self.stored.phase

    @property
    def since(self) -> float:
        return self.stored.since

    @property
    def position(self) -> Lsn:
        """All changes of the table up to here are in the destination. While it is copied: changes
        after this are needed."""
        return self.stored.position

    @property
    def rows_expected(self) -> int:
        return self.stored.rows_expected

    @property
    def rows_copied(self) -> int:
        return self.stored.rows_copied

    @property
    def changes_applied(self) -> int:
        return self.stored.changes_applied

    @property
    def attempts(self) -> int:
        return self.stored.attempts

    @property
    def error(self) -> TableError | None:
        return self.stored.error

    @property
    def membership(self) -> Membership:
        return self.stored.membership

    @property
    def followed(self) -> bool:
        """Whether the log's changes are applied to it."""
        return self.phase in FOLLOWED

    @property
    def set_aside(self) -> TableError | None:
        """Why nobody works on it. None: it was not set aside, or it is being tried again."""
        return self.error if self.phase is Phase.ERRORED else None

    @property
    def waits_for_operator(self) -> bool:
        """Whether it was set aside and is not tried again by itself."""
        return self.set_aside is not None and self.set_aside.retry.kind is not RetryKind.TIMED

    def comes_back(self, by: float) -> bool:
        """Whether it was set aside and is tried again by itself until this time (Unix)."""
        error = self.set_aside
        if error is None or error.retry.kind is not RetryKind.TIMED:
            return False
        return error.retry.at is None or error.retry.at <= by

    @property
    def destination_schema(self) -> TableSchema:
        """The schema, as the destination gets it."""
        return replace(self.schema, name=self.destination)


class Tables:
    """The states of all tables, by oid. All calls may come from several threads.

    A move is in the store before it is in memory, and so before anyone acts on it. Progress inside
    a phase is only in memory until ``save``.
    """

    def __init__(self, store: Store, retries: Retries) -> None:
        self._store = store
        self._retries = retries
        self._lock = threading.Lock()
        self._moving: dict[int, threading.RLock] = defaultdict(threading.RLock)
        """One move of a table at a time. The store may take long, but readers do not wait."""
        self._states: dict[int, TableState] = {}
        self._unsaved: set[int] = set()

    # Reading.

    def get(self, oid: int) -> TableState | None:
        with self._lock:
            return self._states.get(oid)

    def all(self) -> list[TableState]:
        """All states, ordered by table name."""
        with self._lock:
            return sorted(self._states.values(), key=lambda state: state.name)

    def find(self, name: TableName) -> TableState | None:
        return next((state for state in self.all() if state.name == name), None)

    def schema_at(self, oid: int, position: Lsn | None) -> TableSchema | None:
        """The stored schema of the table at a position of the log; None: the newest one."""
        return self._store.get_table_schema(oid, position)

    def store_schema(self, schema: TableSchema) -> None:
        self._store.store_table_schema(schema)

    def stored(self) -> Mapping[int, TableReplicationState]:
        """The stored states of all tables, including those that are not loaded yet."""
        return self._store.get_table_replication_states()

    def is_stored(self, oid: int) -> bool:
        return self._store.get_table_replication_state(oid) is not None

    def stored_destinations(self) -> Mapping[int, TableName]:
        return self._store.get_table_mappings()

    def history(self, oid: int) -> Sequence[TableReplicationState]:
        return self._store.get_table_replication_history(oid)

    # Moving.

    def take_over(self, state: TableState) -> None:
        """A table as the store has it."""
        with self._lock:
            self._states[state.schema.oid] = state

    def add(self, *states: TableState) -> None:
        """Add tables that the store does not have yet."""
        for state in states:
            self._store.store_table_mapping(state.schema.oid, state.destination)
        self._store.update_table_replication_states(
            {state.schema.oid: state.stored for state in states}
        )
        for state in states:
            failpoint("moved.init", state.name)
        with self._lock:
            self._states.update({state.schema.oid: state for state in states})

    def move(self, oid: int, phase: Phase, **changes: Any) -> TableState:
        """Move the table to another phase, with some fields changed, and store that."""
        with self._moving[oid]:
            before = self._state(oid)
            check_move(before.name, before.phase, phase)
            failpoint(f"move.{phase.name.lower()}", before.name)
            state = self._persist(before, phase=phase, since=time.time(), **changes)
            failpoint(f"moved.{phase.name.lower()}", before.name)
            return state

    def fail(self, oid: int, error: Exception) -> TableState:
        """Set the table aside."""
        with self._moving[oid]:
            before = self._state(oid)
            failed_in = stands_at(before)
            attempts = before.attempts + 1
            described = self._retries.describe(error, failed_in, attempts)
            return self.move(oid, Phase.ERRORED, attempts=attempts, error=described)

    def retry(self, oid: int, *, resolved: bool = False) -> TableState:
        """Continue a table that was set aside where it failed. Its error stays until the table
        succeeds, so that operators see it, unless the cause is gone (``resolved``)."""
        with self._moving[oid]:
            before = self._state(oid)
            assert before.set_aside is not None
            phase = resumed(before.set_aside.phase)
            if resolved:
                return self.move(oid, phase, error=None, attempts=0)
            return self.move(oid, phase)

    def give_up_changes(self, oid: int, hint: str) -> None:
        """The log has dropped changes that the table lacks: only a new copy helps."""
        with self._moving[oid]:
            before = self._state(oid)
            if before.set_aside is None:
                return
            error = replace(before.set_aside, retry=RetryPolicy(RetryKind.NONE), hint=hint)
            self._persist(before, error=error)

    def start_over(self, oid: int, **changes: Any) -> TableState:
        """Copy the table again from nothing. Its error stays until the copy has succeeded."""
        with self._moving[oid]:
            changed = self.move(
                oid,
                Phase.INIT,
                position=Lsn(0),
                rows_copied=0,
                changes_applied=0,
                changing=False,
                **changes,
            )
            self._store.store_table_mapping(oid, changed.destination)
            return changed

    def forget_positions(self) -> None:
        """Start all tables over, including those that only the store has, because their positions
        have no meaning any more. Call this before the source gives positions of another history:
        after a kill, old positions must not be mistaken for new ones."""
        now = time.time()
        stored = {
            oid: replace(state, phase=Phase.INIT, since=now, position=Lsn(0), changing=False)
            for oid, state in self._store.get_table_replication_states().items()
        }
        self._store.update_table_replication_states(stored)
        with self._lock:
            self._states = {
                oid: replace(state, stored=stored[oid]) for oid, state in self._states.items()
            }
            self._unsaved.clear()

    # Schema and name.

    def begin_change(self, oid: int, schema: TableSchema) -> TableState:
        """Note that the destination's table is about to get this schema."""
        with self._moving[oid]:
            # The one without the other says that nothing has happened yet.
            self._persist(self._state(oid), changing=True)
            return self._with_schema(oid, schema)

    def end_change(self, oid: int) -> TableState:
        """Note that it has this schema now."""
        with self._moving[oid]:
            return self._persist(self._state(oid), changing=False)

    def adopt(self, oid: int, schema: TableSchema) -> TableState:
        """The destination's table already has this schema."""
        with self._moving[oid]:
            state = self._with_schema(oid, schema)
            with self._lock:
                self._unsaved.add(oid)
            return state

    def rename(self, oid: int, name: TableName, destination: TableName) -> TableState:
        """Give the table, and the destination's table, other names."""
        with self._moving[oid]:
            before = self._state(oid)
            self._store.store_table_mapping(oid, destination)
            schema = replace(before.schema, name=name)
            return self._persist(before, schema=schema, destination=destination)

    def _with_schema(self, oid: int, schema: TableSchema) -> TableState:
        self._store.store_table_schema(schema)
        with self._lock:
            state = self._states[oid] = self._states[oid].changed(schema=schema)
        return state

    def roll_back(self, oid: int) -> TableState:
        """Go back to the previous state. Raises NothingToRollBack."""
        with self._moving[oid]:
            stored = self._store.rollback_table_replication_state(oid)
            # The schema that the destination's table had then, if there was one.
            at = None if stored.changing else stored.schema_version or stored.position
            schema = self._store.get_table_schema(oid, at)
            with self._lock:
                now = self._states[oid]
                schema = replace(schema or now.schema, name=stored.table)
                state = self._states[oid] = replace(now, stored=stored, schema=schema)
            return state

    def forget(self, oid: int) -> None:
        """The table is no longer published. Repeats safely."""
        with self._moving[oid]:
            self._store.cleanup_table_state(oid)
            with self._lock:
                self._states.pop(oid, None)
                self._unsaved.discard(oid)

    def _state(self, oid: int) -> TableState:
        with self._lock:
            return self._states[oid]

    def _persist(self, before: TableState, **changes: Any) -> TableState:
        oid = before.schema.oid
        self._store.update_table_replication_state(oid, before.changed(**changes).stored)
        with self._lock:
            # Progress that was made while the store was written stays, and is saved later.
            now = self._states.get(oid, before)
            if now == before:
                self._unsaved.discard(oid)
            state = self._states[oid] = now.changed(**changes)
        return state

    # Progress inside a phase.

    def update(self, oid: int, **changes: Any) -> TableState | None:
        """Change some fields of a table's state, but not its phase. None if the table has left
        meanwhile."""
        with self._lock:
            state = self._states.get(oid)
            if state is None:
                return None
            state = self._states[oid] = state.changed(**changes)
            self._unsaved.add(oid)
            return state

    def save(self, *only: int) -> None:
        """Store the progress since the last call, of all tables or of these."""
        with self._lock:
            oids = self._unsaved & set(only) if only else self._unsaved
            self._unsaved = self._unsaved - oids
        with ExitStack() as moves:
            # No move may come between reading the states and storing them.
            for oid in sorted(oids):
                moves.enter_context(self._moving[oid])
            states = {oid: state.stored for oid in oids if (state := self.get(oid)) is not None}
            if states:
                self._store.update_table_replication_states(states)
