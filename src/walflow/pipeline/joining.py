"""How tables come in and go: what the source publishes, against what the pipeline knows."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import replace

import structlog

from walflow.changelog import ChangeLog
from walflow.destinations.base import Destination, DropsTables, Positioned
from walflow.errors import PublicationChanged, SourceError, WalflowError
from walflow.model import Lsn, Phase, TableSchema
from walflow.pipeline.dispatching import Dispatcher
from walflow.pipeline.mapping import TableMapping, check_apart, conflict
from walflow.pipeline.published import Published
from walflow.pipeline.reading import CopyReader
from walflow.pipeline.syncing import SYNCED_PHASES
from walflow.pipeline.tables import Tables, TableState
from walflow.source.catalog import PublishedTable
from walflow.stores.base import Store

__all__ = ["Joiner"]

_LOOK_SECONDS = 2.0
_PASSING = frozenset({"MappingConflict", "NoSelectRight", "ReservedColumnName"})
"""Errors that another look at the publication may find gone."""

_logger = structlog.get_logger(__name__)


class Joiner:
    """Used by the coordinating thread, but for ``outgrown``."""

    def __init__(
        self,
        published: Published,
        mapping: TableMapping,
        store: Store,
        log: ChangeLog,
        destination: Destination,
        tables: Tables,
        reader: CopyReader,
        dispatcher: Dispatcher,
        *,
        drop_removed: bool,
    ) -> None:
        self._published = published
        self._mapping = mapping
        self._store = store
        self._log = log
        self._destination = destination
        self._tables = tables
        self._reader = reader
        self._dispatcher = dispatcher
        self._drop_removed = drop_removed
        self._looked = 0.0
        self._fingerprint = ""
        self._lock = threading.Lock()
        self._outgrown: dict[int, str] = {}
        """Tables that have to be copied again, and why."""

    def begin(self, *, new_slot: bool) -> None:
        """Take over what the store knows, and go on with each table where it stands.

        A new slot says nothing of the time before it, so with one everything is copied. Raises
        MappingConflict if two tables would share one of the destination.
        """
        self._fingerprint = self._published.fingerprint()
        published = {table.schema.oid: table for table in self._published.read()}
        check_apart({t.name: self._mapping.destination(t.name) for t in published.values()})
        stored = self._store.get_table_replication_states()
        mapped = self._store.get_table_mappings()
        for oid, state in stored.items():
            table = published.get(oid)
            schema = self._store.get_table_schema(oid) or (
                table.schema if table is not None else TableSchema(oid, state.table, (), ())
            )
            destination = mapped.get(oid) or self._mapping.destination(state.table)
            self._tables.take_over(TableState(schema, destination).with_stored(state))
        new = [table for oid, table in published.items() if oid not in stored]
        self._tables.add(*(self._first_state(table, new_slot) for table in new))
        for oid in stored:
            if oid not in published:
                self._leave(oid, published.values())
            elif new_slot:
                self._start_over(published[oid], "the slot is a new one")
            else:
                self._review(published[oid], published.values())
        for oid, table in published.items():
            if not self._dispatcher.has(oid):
                self._dispatcher.dispatch(oid, table.bytes)

    def outgrown(self, oid: int, reason: str) -> None:
        """The table has to be copied again. From the threads that work."""
        with self._lock:
            self._outgrown[oid] = reason

    def resync(self, oid: int) -> None:
        """Copy the table again. Nobody may be working on it."""
        for table in self._published.read():
            if table.schema.oid == oid:
                self._reader.drop(oid)
                self._start_over(table, "an operator asked for it")
                return
        raise PublicationChanged("The table is not published any more.")

    def look(self, *, hurry: bool = False) -> None:
        """Every few seconds: has the publication changed? ``hurry``: there is a reason to think
        so."""
        patience = _LOOK_SECONDS / 10 if hurry or self._outgrown else _LOOK_SECONDS
        if time.monotonic() - self._looked < patience:
            return
        self._looked = time.monotonic()
        try:
            fingerprint = self._published.fingerprint()
            changed = fingerprint != self._fingerprint or bool(self._outgrown)
            if changed and self._compare(self._published.read()):
                self._fingerprint = fingerprint
        except SourceError as error:
            if not error.retry:
                raise
            # Receiving meets the same trouble, and tells it.
            _logger.debug("the publication cannot be read just now", error=str(error))

    def _compare(self, tables: Collection[PublishedTable]) -> bool:
        """Bring what is followed in line with what is published; False: not all of it, yet."""
        published = {table.schema.oid: table for table in tables}
        done = True
        for state in self._tables.all():
            if state.schema.oid not in published:
                done &= self._leave(state.schema.oid, tables)
        for oid, table in published.items():
            if self._tables.get(oid) is None:
                self._join(table)
            else:
                done &= self._review(table, tables)
        return done

    def _join(self, table: PublishedTable) -> None:
        _logger.info("a table was published", table=str(table.name))
        self._tables.add(self._first_state(table, new_slot=False))
        self._admit(table)

    def _review(self, table: PublishedTable, tables: Iterable[PublishedTable]) -> bool:
        """See to a table that is known; False if that has to wait."""
        oid = table.schema.oid
        state = self._tables.get(oid)
        assert state is not None
        reason = self._outgrown.get(oid) or self._changed(state, table)
        if reason is not None:
            if not self._dispatcher.withdraw(oid):
                return False
            with self._lock:
                self._outgrown.pop(oid, None)
            if not state.membership.continues(table.membership):
                self._log.break_off(oid)
            self._start_over(table, reason)
        elif state.error is not None and state.error.code in _PASSING and not self._refusal(table):
            self._dispatcher.retry(oid)
        elif state.membership != table.membership:
            # A partition more: it must be known, for the day that it goes.
            self._tables.update(oid, membership=table.membership)
        return True

    def _changed(self, state: TableState, table: PublishedTable) -> str | None:
        """Why the table has to be copied again; None: it need not."""
        if state.name != table.name:
            return f"it was {state.name}"
        destination = self._mapping.destination(table.name)
        if state.destination != destination:
            return f"the destination's name for it was {state.destination}"
        phase = state.phase if state.error is None else state.error.phase
        if phase in SYNCED_PHASES:
            return None  # the copy looks at the table as it is when it begins
        if not state.membership.continues(table.membership):
            return "it is published in another way"
        positions = [column.position for column in state.schema.columns]
        if not state.schema.same_form(table.schema) or positions != [
            column.position for column in table.schema.columns
        ]:
            return "its form has changed"
        return None

    def _start_over(self, table: PublishedTable, reason: str) -> None:
        oid = table.schema.oid
        _logger.info("a table is copied again", table=str(table.name), reason=reason)
        self._tables.start_over(
            oid,
            schema=table.schema,
            destination=self._mapping.destination(table.name),
            membership=table.membership,
        )
        self._admit(table)

    def _admit(self, table: PublishedTable) -> None:
        oid = table.schema.oid
        refusal = self._refusal(table)
        if refusal is not None:
            self._dispatcher.failed(oid, refusal)
        else:
            self._dispatcher.dispatch(oid, table.bytes)

    def _refusal(self, table: PublishedTable) -> WalflowError | None:
        """Why the table cannot be taken in as things are."""
        if table.problem is not None:
            return table.problem
        destination = self._mapping.destination(table.name)
        others = [
            state.name
            for state in self._tables.all()
            if state.destination == destination and state.schema.oid != table.schema.oid
        ]
        return conflict((table.name, *others), destination) if others else None

    def _leave(self, oid: int, tables: Iterable[PublishedTable]) -> bool:
        """The table is no longer published; if it comes back, it must be copied."""
        if not self._dispatcher.withdraw(oid):
            return False
        state = self._tables.get(oid)
        if state is None:
            return True
        _logger.info("a table is no longer published", table=str(state.name))
        self._log.break_off(oid)
        self._reader.drop(oid)
        taken = {self._mapping.destination(table.name) for table in tables}
        if self._drop_removed and state.destination not in taken:
            self._drop(state)
        self._tables.forget(oid)
        with self._lock:
            self._outgrown.pop(oid, None)
        return True

    def _drop(self, state: TableState) -> None:
        if isinstance(self._destination, DropsTables):
            self._destination.drop_table(state.destination_schema)
            _logger.info("dropped the destination's table", table=str(state.destination))

    def _first_state(self, table: PublishedTable, new_slot: bool) -> TableState:
        """Of a table that the store does not know: by what the destination says."""
        fresh = TableState(
            table.schema, self._mapping.destination(table.name), membership=table.membership
        )
        if new_slot or not isinstance(self._destination, Positioned):
            return fresh
        if self._log.latest_schema(table.schema.oid) is None:
            return fresh  # never heard of
        position = self._destination.applied(fresh.destination_schema)
        if position is None or not self._log.covers(table.schema.oid, position):
            return fresh
        # The form that the destination's table has is the last one before its position.
        schema = self._log.latest_schema(table.schema.oid, Lsn(position - 1))
        if schema is None or schema.name != table.name:
            return fresh
        _logger.warning(
            "the store does not know a table that the destination has; going on with it",
            table=str(table.name),
            position=str(position),
        )
        return replace(fresh, schema=schema, phase=Phase.CATCHUP, position=position)
