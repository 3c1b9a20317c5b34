"""Where tables stand when a pipeline starts: by the store, or else by what the destination says."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import structlog

from walflow.changelog import ChangeLog
from walflow.destinations.base import Destination, Positioned
from walflow.errors import DestinationForeign
from walflow.mapping import TableMapping
from walflow.model import Lsn, Phase, TableName, TableSchema
from walflow.pipeline.tables import TableState
from walflow.source.catalog import PublishedTable
from walflow.states import TableReplicationState, stands_at
from walflow.stores.base import SchemaStore

__all__ = ["FirstStates"]

_SHOWN = 20

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
        position = self._applied(fresh)
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

    def warn_of_loss(self, states: Collection[TableState]) -> None:
        """The slot was there before, and these tables are all that there are, but the store knew
        none of them. Say so if some are copied that the destination has: whoever lost the store and
        the log would otherwise see no more than a long first copy."""
        new = [state for state in states if state.phase is Phase.INIT]
        if not new:
            return
        hint = (
            f"If the store or the log's folder ({self.log.folder}) was removed, or another one was "
            "meant (--name, --log, store.uri), stop now, and put it back or name it: with it, only "
            "tables that have changed since are copied."
        )
        if not isinstance(self.destination, Positioned):
            _logger.warning(
                "the slot is there, but the store knows of no table: all are copied, also what "
                "the destination has",
                tables=len(new),
                hint=hint,
            )
            return
        there = [str(state.name) for state in new if self._applied(state) is not None]
        if there:
            more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
            _logger.warning(
                "the slot is there, and the destination has tables of this pipeline, but the "
                "change log and the store know nothing of them: they are copied again",
                tables=f"{', '.join(there[:_SHOWN])}{more}",
                hint=hint,
            )

    def _applied(self, state: TableState) -> Lsn | None:
        assert isinstance(self.destination, Positioned)
        try:
            return self.destination.applied(state.destination_schema)
        except DestinationForeign:
            return None  # its copy meets it again, and sets this one table aside

    def fresh(self, table: PublishedTable) -> TableState:
        """Of a table that has to be copied."""
        return TableState(
            table.schema, self.mapping.destination(table.name), membership=table.membership
        )
