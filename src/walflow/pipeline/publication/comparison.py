"""A table as it is published, against what is known of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from walflow.destinations.base import Destination
from walflow.errors import WalflowError
from walflow.mapping import TableMapping, conflict
from walflow.model import Lsn, Phase
from walflow.pipeline.apply.schema_changes import Outgrown, SchemaChanger
from walflow.pipeline.state.phases import FOLLOWED
from walflow.pipeline.state.table_states import Tables, TableState
from walflow.source.catalog.published_tables import PublishedTable
from walflow.states import Gap, TableReplicationState, stands_at

__all__ = ["PublicationComparison", "followed_publications", "in_conflict", "is_passing"]


@dataclass(frozen=True, slots=True)
class PublicationComparison:
    mapping: TableMapping
    tables: Tables
    schema_changer: SchemaChanger
    destination: Destination
    trust_rewrites: bool
    """Rows that were written anew are taken to be the same."""

    def why_copied_again(self, state: TableState, table: PublishedTable, began: Lsn) -> str | None:
        """Why the table has to be copied again; None: it need not, though its form may be another
        now, and the destination's table need another name.

        What was done to the table before ``began`` is seen in how it is published.
        """
        if self.has_other_name(state, table) and not self._can_be_renamed(state, table):
            if state.name != table.name:
                return f"it was {state.name}"
            return f"the destination's name for it was {state.destination}"
        phase = stands_at(state)
        if phase is Phase.INIT:
            return None  # the copy looks at the table as it is when it begins
        gap = state.membership.gap(table.membership)
        if gap is Gap.REWRITTEN and self.trust_rewrites:
            gap = None
        if gap is not None:
            # What wrote the rows anew may be known.
            known = self._outgrown(state, table) if gap is Gap.REWRITTEN else None
            return known or gap.value
        if phase is Phase.DATA_SYNC or (state.stored.changing and state.waits_for_operator):
            # It is read in one form; and a form that the destination refused may be gone again.
            return None if state.schema.same_columns(table.schema) else "its form has changed"
        if state.schema.version >= began:
            return None  # the log has told of a newer form since
        return self._outgrown(state, table)

    def _outgrown(self, state: TableState, table: PublishedTable) -> str | None:
        try:
            self.schema_changer.way(state.schema, table.schema)
        except Outgrown as outgrown:
            return outgrown.reason
        return None

    def has_other_name(self, state: TableState, table: PublishedTable) -> bool:
        """Whether it has another name than was known, in the source or by the mapping."""
        destination = self.mapping.destination(table.name)
        return (state.name, state.destination) != (table.name, destination)

    def _can_be_renamed(self, state: TableState, table: PublishedTable) -> bool:
        destination = self.mapping.destination(table.name)
        if stands_at(state) not in FOLLOWED or in_conflict(state):
            return False
        if destination == state.destination:
            return True
        others = {other.destination for other in self.tables.all()}
        return self.destination.capabilities.renames and destination not in others

    def refusal(
        self, table: PublishedTable, tables: Collection[PublishedTable]
    ) -> WalflowError | None:
        """Why the table cannot be taken in as things are."""
        if table.problem is not None:
            return table.problem
        destination = self.mapping.destination(table.name)
        rivals = []
        for other in tables:
            state = self.tables.get(other.schema.oid)
            if (
                state is not None
                and other.schema.oid != table.schema.oid
                and self.mapping.destination(other.name) == destination
                and not in_conflict(state)
            ):
                rivals.append(other.name)
        return conflict((table.name, *rivals), destination) if rivals else None


def followed_publications(
    states: Iterable[TableState] | Iterable[TableReplicationState],
) -> frozenset[str]:
    """The oids of the publications by which tables have been copied and followed."""
    begun = (state.membership for state in states if stands_at(state) is not Phase.INIT)
    return frozenset(each.publication_oid for each in begun if each.publication)


def is_passing(state: TableState) -> bool:
    """Whether a table was set aside for something that another look may find gone."""
    return state.set_aside is not None and state.set_aside.passing


def in_conflict(state: TableState | TableReplicationState) -> bool:
    """Whether a table was set aside for its name: then it has no table of the destination."""
    error = state.error if state.phase is Phase.ERRORED else None
    return error is not None and error.code == "MappingConflict"
