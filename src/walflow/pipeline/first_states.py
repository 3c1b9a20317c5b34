"""Where tables stand when a pipeline starts: by the store, or else by what the destination says."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import structlog

from walflow.changelog import ChangeLog
from walflow.destinations.base import Destination, Positioned
from walflow.mapping import TableMapping
from walflow.model import Lsn, Phase, TableName, TableSchema
from walflow.pipeline.tables import TableState
from walflow.source.catalog import PublishedTable
from walflow.states import TableReplicationState, stands_at
from walflow.stores.base import SchemaStore

__all__ = ["FirstStates"]

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FirstStates:
    mapping: TableMapping
    store: SchemaStore
    log: ChangeLog
    destination: Destination

    def stored(
        self,
        oid: int,
        state: TableReplicationState,
        destination: TableName | None,
        table: PublishedTable | None,
    ) -> TableState:
        """Of a table that the store knows, with the destination's name for it; ``table``: as it is
        published."""
        schema = self._last_schema(oid, state, table)
        name = destination or self.mapping.destination(state.table)
        return TableState(schema, name).with_stored(state)

    def _last_schema(
        self, oid: int, state: TableReplicationState, table: PublishedTable | None
    ) -> TableSchema:
        """The form that the destination's table has, as far as is known."""
        if stands_at(state) in (Phase.INIT, Phase.DATA_SYNC) and table is not None:
            # What was read so far knows its own form.
            return replace(table.schema, name=state.table)
        at = state.form if state.form and not state.changing else None
        known = self.store.get_table_schema(oid, at) or (None if table is None else table.schema)
        if known is None:
            return TableSchema(oid, state.table, (), ())
        return replace(known, name=state.table)

    def unknown(
        self, table: PublishedTable, known: Collection[TableName], *, new_slot: bool
    ) -> TableState:
        """Of a table that the store does not know: by what the destination says, unless the store
        knows that table there as another one's."""
        fresh = self.fresh(table)
        if new_slot or fresh.destination in known or not isinstance(self.destination, Positioned):
            return fresh
        if self.log.latest_schema(table.schema.oid) is None:
            return fresh  # never heard of
        position = self.destination.applied(fresh.destination_schema)
        if position is None or not self.log.covers(table.schema.oid, position):
            return fresh
        # The form that the destination's table has is the last one before its position.
        schema = self.log.latest_schema(table.schema.oid, Lsn(position - 1))
        if schema is None or schema.name != table.name:
            return fresh
        _logger.warning(
            "the store does not know a table that the destination has; going on with it",
            table=str(table.name),
            position=str(position),
        )
        return replace(fresh, schema=schema, phase=Phase.CATCHUP, position=position)

    def fresh(self, table: PublishedTable) -> TableState:
        """Of a table that has to be copied."""
        return TableState(
            table.schema, self.mapping.destination(table.name), membership=table.membership
        )
