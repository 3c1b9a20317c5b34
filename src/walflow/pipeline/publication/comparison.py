"""Compares a published table with the state that the pipeline has of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from walflow.destinations.base import Destination
from walflow.errors import WalflowError
from walflow.evolution import NotFollowed
from walflow.mapping import TableMapping, conflict
from walflow.model import Lsn, Phase
from walflow.pipeline.apply.schema_changes import SchemaChanger
from walflow.pipeline.state.phases import FOLLOWED
from walflow.pipeline.state.table_states import Tables, TableState
from walflow.source.catalog.published_tables import PublishedTable
from walflow.states import Gap, TableReplicationState, stands_at

__all__ = [
    "PublicationComparison",
    "check_rivals",
    "followed_publications",
    "in_conflict",
    "is_passing",
]


@dataclass(frozen=True, slots=True)
class PublicationComparison:
    mapping: TableMapping
    tables: Tables
    schema_changer: SchemaChanger
    destination: Destination

    def why_copied_again(self, state: TableState, table: PublishedTable, began: Lsn) -> str | None:
        """Why the table has to be copied again. None: its changes are enough, even if its schema or
        name is another one now. What was done to the table before ``began`` shows in how it is
        published."""
        if self.has_other_name(state, table) and not self._can_be_renamed(state, table):
            if state.name != table.name:
                return f"it was {state.name}"
            return f"the destination's name for it was {state.destination}"
        phase = stands_at(state)
        if phase is Phase.INIT:
            return None  # the copy looks at the table as it is when it begins
        gap = state.membership.gap(table.membership)
        if gap is Gap.REWRITTEN and self.schema_changer.trust_rewrites:
            gap = None
        if gap is not None:
            # The schema may tell why the rows were written anew.
            reason = self._why_not_followed(state, table) if gap is Gap.REWRITTEN else None
            return reason or gap.value
        if phase is Phase.DATA_SYNC or (state.stored.changing and state.waits_for_operator):
            # It is read in one schema; and one that the destination refused may be gone again.
            return None if state.schema.same_columns(table.schema) else "its schema has changed"
        if state.schema.version >= began:
            return None  # the log has told of a newer schema since
        return self._why_not_followed(state, table)

    def _why_not_followed(self, state: TableState, table: PublishedTable) -> str | None:
        try:
            self.schema_changer.way(state.schema, table.schema)
        except NotFollowed as refusal:
            return refusal.reason
        return None

    def has_other_name(self, state: TableState, table: PublishedTable) -> bool:
        """Whether its name in the source, or its mapped name, has changed."""
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
        """Why the table cannot be followed as it is published."""
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


def check_rivals(state: TableState, tables: Tables) -> None:
    """Raise MappingConflict if another table uses the same table of the destination."""
    rivals = [
        other.name
        for other in tables.all()
        if other.schema.oid != state.schema.oid
        and other.destination == state.destination
        and not in_conflict(other)
    ]
    if rivals:
        raise conflict((state.name, *rivals), state.destination)


def followed_publications(
    states: Iterable[TableState] | Iterable[TableReplicationState],
) -> frozenset[str]:
    """The oids of the publications by which the tables have been followed."""
    begun = (state.membership for state in states if stands_at(state) is not Phase.INIT)
    return frozenset(each.publication_oid for each in begun if each.publication)


def is_passing(state: TableState) -> bool:
    """Whether the table was set aside for a cause that a newer look at the catalog may find
    gone."""
    return state.set_aside is not None and state.set_aside.passing


def in_conflict(state: TableState | TableReplicationState) -> bool:
    """Whether the table was set aside because of its name. Then it has no table in the
    destination."""
    error = state.error if state.phase is Phase.ERRORED else None
    return error is not None and error.code == "MappingConflict"
