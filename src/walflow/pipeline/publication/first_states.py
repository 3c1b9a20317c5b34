"""The tables' states when a pipeline starts: from the store, or else from the destination."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import structlog

from walflow.changelog import ChangeLog
from walflow.destinations.base import Destination
from walflow.errors import DestinationForeign
from walflow.mapping import TableMapping, check_distinct
from walflow.model import Lsn, Phase, TableName, TableSchema
from walflow.pipeline.publication.comparison import in_conflict
from walflow.pipeline.state.retries import first_line
from walflow.pipeline.state.table_states import Tables, TableState
from walflow.source.catalog.published_tables import PublishedTable
from walflow.states import TableReplicationState, stands_at

__all__ = ["FirstStates"]

_SHOWN = 20

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FirstStates:
    mapping: TableMapping
    tables: Tables
    log: ChangeLog
    destination: Destination

    def take_over(self, tables: Collection[PublishedTable], *, new_slot: bool) -> None:
        """Give a state to every table that is published or in the store. Raises MappingConflict if
        two tables would share a table of the destination, and it is not known which of them was
        first."""
        published = {table.schema.oid: table for table in tables}
        stored, mapped = self.tables.stored(), self.tables.stored_destinations()
        self._check_distinct(published, stored)
        for oid, state in stored.items():
            self.tables.take_over(self._stored(oid, state, mapped.get(oid), published.get(oid)))
        new = [table for oid, table in published.items() if oid not in stored]
        unknown = self._unknown(new, frozenset(mapped.values()), new_slot=new_slot)
        if not stored:
            self._warn_of_loss(unknown, new_slot=new_slot)
        self.tables.add(*unknown)

    def _check_distinct(
        self,
        published: Mapping[int, PublishedTable],
        stored: Mapping[int, TableReplicationState],
    ) -> None:
        """Raise MappingConflict for names that several tables would share, unless the conflict is
        an old one. A table that was set aside for its name, or that appeared while no pipeline ran,
        does not keep the others from starting."""
        check_distinct(
            {
                table.name: self.mapping.destination(table.name)
                for oid, table in published.items()
                if not stored or (oid in stored and not in_conflict(stored[oid]))
            }
        )

    def _stored(
        self,
        oid: int,
        state: TableReplicationState,
        destination: TableName | None,
        table: PublishedTable | None,
    ) -> TableState:
        """The state of a table in the store, with its name in the destination. ``table``: as it is
        published."""
        schema = self._last_schema(oid, state, table)
        name = destination or self.mapping.destination(state.table)
        return TableState(state, schema, name)

    def _last_schema(
        self, oid: int, state: TableReplicationState, table: PublishedTable | None
    ) -> TableSchema:
        """The schema that the destination's table has, if that is stored."""
        if stands_at(state) in (Phase.INIT, Phase.DATA_SYNC) and table is not None:
            # What was read so far knows its own schema.
            return replace(table.schema, name=state.table)
        at = state.schema_version if state.schema_version and not state.changing else None
        schema = self.tables.schema_at(oid, at) or (None if table is None else table.schema)
        if schema is None:
            return TableSchema(oid, state.table, (), ())
        return replace(schema, name=state.table)

    def _unknown(
        self, tables: Collection[PublishedTable], taken: Collection[TableName], *, new_slot: bool
    ) -> list[TableState]:
        """The states of tables that are not in the store: by their positions in the destination,
        unless the store gives that destination table to another one.

        A table whose position cannot be read is copied: its copy meets the same error, and sets
        only this table aside. If no position can be read, the error is raised.
        """
        states = [self.fresh(table) for table in tables]
        asked = [
            state
            for state in states
            if not (new_slot or state.destination in taken)
            and self.destination.capabilities.keeps_position
            and self.log.latest_schema(state.schema.oid) is not None  # else never heard of
        ]
        positions: dict[int, Lsn | None] = {}
        failure: Exception | None = None
        for state in asked:
            try:
                positions[state.schema.oid] = self._applied(state)
            except Exception as error:
                failure = failure or error
                _logger.warning(
                    "the destination cannot read a table that the store does not know; it is "
                    "copied again",
                    table=str(state.name),
                    error=first_line(error),
                )
        if failure is not None and not positions:
            raise failure
        return [self._gone_on_with(state, positions.get(state.schema.oid)) for state in states]

    def _gone_on_with(self, fresh: TableState, position: Lsn | None) -> TableState:
        """``position``: of the table in the destination."""
        oid = fresh.schema.oid
        if position is None or not self.log.covers(oid, position):
            return fresh
        # The schema that the destination's table has is the last one before its position.
        schema = self.log.latest_schema(oid, Lsn(position - 1))
        if schema is None or schema.name != fresh.name:
            return fresh
        _logger.warning(
            "the store does not know a table that the destination has; going on with it",
            table=str(fresh.name),
            position=str(position),
        )
        return fresh.changed(schema=schema, phase=Phase.CATCHUP, position=position)

    def _warn_of_loss(self, states: Collection[TableState], *, new_slot: bool) -> None:
        """Warn if the store is empty, and tables are copied that the destination has. An operator
        who lost the store and the log (or the slot too) would otherwise see only a long first copy.
        """
        new = [state for state in states if state.phase is Phase.INIT]
        if not new:
            return
        hint = (
            f"If the store or the log's folder ({self.log.folder}) was removed, or another one was "
            "meant (--name, --log, store.uri), stop now, and put it back or name it"
        )
        hint += "." if new_slot else ": with it, only tables that have changed since are copied."
        if not self.destination.capabilities.keeps_position:
            if not new_slot:  # else it is as at any first start
                _logger.warning(
                    "the slot is there, but the store knows of no table: all are copied, also what "
                    "the destination has",
                    tables=len(new),
                    hint=hint,
                )
            return
        # At a first start, which this looks like, the destination is not asked for hundreds.
        there = [
            str(state.name)
            for state in new[: _SHOWN if new_slot else None]
            if self._is_there(state)
        ]
        if there:
            more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
            _logger.warning(
                "the slot is a new one, and the store knows nothing, but the destination has "
                "tables of this pipeline: they are copied again"
                if new_slot
                else "the slot is there, and the destination has tables of this pipeline, but the "
                "change log and the store know nothing of them: they are copied again",
                tables=f"{', '.join(there[:_SHOWN])}{more}",
                hint=hint,
            )

    def _is_there(self, state: TableState) -> bool:
        try:
            return self._applied(state) is not None
        except Exception:
            return False  # its copy meets it again, and tells it

    def _applied(self, state: TableState) -> Lsn | None:
        try:
            return self.destination.applied(state.destination_schema)
        except DestinationForeign:
            return None  # its copy meets it again, and sets this one table aside

    def fresh(self, table: PublishedTable) -> TableState:
        """The state of a table that has to be copied."""
        return TableState.new(
            table.schema, self.mapping.destination(table.name), membership=table.membership
        )
