"""A table's form changes: the destination's table is brought after it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import structlog

from walflow.changelog import ChangeLog
from walflow.destinations.base import Destination
from walflow.evolution import Evolution, NotFollowed, evolution
from walflow.failpoints import failpoint
from walflow.model import Lsn, TableSchema
from walflow.observe.metrics import PipelineMetrics
from walflow.pipeline.state.table_states import Tables, TableState
from walflow.source.catalog.attributes import missing_array
from walflow.source.catalog.published_tables import is_reserved
from walflow.stores.base import SchemaStore

__all__ = ["Outgrown", "SchemaChanger"]

_logger = structlog.get_logger(__name__)


class Outgrown(Exception):
    """The destination's table can no longer be brought up to date by changes alone."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SchemaChanger:
    """All calls may come from several threads, for one table from one at a time.

    That a table is about to get another form is stored first, so that whoever is killed in between
    finishes exactly this change before any other: a destination need not know what became of one
    that it never heard of again.
    """

    def __init__(
        self,
        store: SchemaStore,
        log: ChangeLog,
        destination: Destination,
        tables: Tables,
        metrics: PipelineMetrics,
        *,
        trust_rewrites: bool,
    ) -> None:
        self._store = store
        self._log = log
        self._destination = destination
        self._tables = tables
        self._metrics = metrics
        self.trust_rewrites = trust_rewrites

    def way(self, before: TableSchema, after: TableSchema) -> Evolution:
        """From one form to another, with the values of columns that were added. Raises Outgrown."""
        if any(map(_is_reserved, after.column_names)):
            raise Outgrown("it has a column with a name that the change log needs for itself")
        try:
            found = evolution(before, after, trust_rewrites=self.trust_rewrites)
        except NotFollowed as refusal:
            raise Outgrown(refusal.reason) from refusal
        if _is_needed(found) and not self._destination.capabilities.evolves:
            raise Outgrown("its form has changed")
        values = {
            column.name: missing_array(column)[0].as_py()
            for column in found.added
            if column.missing is not None
        }
        return replace(found, missing=values)

    def check_steps(self, forms: Iterable[TableSchema]) -> None:
        """Raise Outgrown if one of the forms cannot be followed from the one before it: a type that
        was changed, and changed back, is not seen otherwise."""
        in_order = {form.version: form for form in sorted(forms, key=lambda form: form.version)}
        for before, after in pairwise(in_order.values()):
            self.way(before, after)

    def form(self, oid: int, version: Lsn) -> TableSchema:
        """The form of the log's files of this version."""
        # The store's knows where the rows lay last before the form changed.
        known = self._store.get_table_schema(oid, version)
        if known is not None and known.version == version:
            return known
        return self._log.schema(oid, version)

    def bring(self, state: TableState, form: TableSchema) -> TableState:
        """Bring the destination's table to this form. Raises Outgrown."""
        form = replace(form, name=state.name)
        way = self.way(state.schema, form)
        oid = form.oid
        if not _is_needed(way):
            return state if state.schema == form else self._tables.adopt(oid, form)
        state = self._tables.begin_change(oid, form)
        return self._change(state, way)

    def follow(self, state: TableState, form: TableSchema) -> TableState:
        """Bring the destination's table to a form that there are no changes of in the log yet;
        all those of former ones are applied. Raises Outgrown."""
        if _is_needed(self.way(state.schema, form)):
            # So that the first changes of it have its version.
            self._log.store_schema(replace(form, name=state.name))
        else:
            # Changes that come are still of the version that is known.
            form = replace(form, version=state.schema.version)
        return self.bring(state, form)

    def finish(self, state: TableState) -> TableState:
        """Finish a change of form that was begun, if there is one. Raises Outgrown."""
        if not state.stored.changing:
            return state
        oid = state.schema.oid
        former = self._store.get_table_schema(oid, state.stored.schema_version)
        if former is None or former.version == state.schema.version:
            # That it was to be changed was stored, but not to what.
            return self._tables.end_change(oid)
        return self._change(state, self.way(former, state.schema))

    def _change(self, state: TableState, way: Evolution) -> TableState:
        failpoint("evolve.change", state.name)
        try:
            self._destination.evolve(
                replace(
                    way,
                    before=replace(way.before, name=state.destination),
                    after=replace(way.after, name=state.destination),
                )
            )
        except NotFollowed as refusal:
            raise Outgrown(refusal.reason) from refusal
        failpoint("evolve.changed", state.name)
        state = self._tables.end_change(state.schema.oid)
        self._metrics.schema_changes(state.name).inc()
        _logger.info("a table's form has changed", table=str(state.name), **_in_words(way))
        return state


def _is_reserved(name: str) -> bool:
    """Whether the name is one of ours, or what the log has in its place."""
    return is_reserved(name.lstrip("~"))


def _is_needed(way: Evolution) -> bool:
    """Whether the destination's table has to be changed."""
    return way.changes_columns or way.key_changed


def _in_words(way: Evolution) -> dict[str, str]:
    parts = {
        "added": [column.name for column in way.added],
        "dropped": [column.name for column in way.dropped],
        "renamed": [f"{old.name} to {new.name}" for old, new in way.renamed],
        "widened": [f"{new.name} to {new.spark_type}" for _, new in way.widened],
        "key": way.after.key if way.key_changed else (),
    }
    return {name: ", ".join(words) for name, words in parts.items() if words}
