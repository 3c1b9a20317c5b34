"""Schema changes: the destination's table follows the source's."""

from __future__ import annotations

import threading
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

__all__ = ["SchemaChanger"]

_logger = structlog.get_logger(__name__)


class SchemaChanger:
    """All calls may come from several threads, but only one at a time for the same table.

    The next schema of a table is stored before the destination is changed. After a kill, the next
    process finishes exactly this change first, and a destination need not remember unfinished
    changes.
    """

    def __init__(
        self,
        log: ChangeLog,
        destination: Destination,
        tables: Tables,
        metrics: PipelineMetrics,
        *,
        trust_rewrites: bool,
    ) -> None:
        self._log = log
        self._destination = destination
        self._tables = tables
        self._metrics = metrics
        self.trust_rewrites = trust_rewrites
        self.look_again = threading.Event()
        """Set when the catalog's last schema may be outdated."""

    def way(self, before: TableSchema, after: TableSchema) -> Evolution:
        """The evolution between two schemas, with the values of added columns. Raises
        NotFollowed."""
        if any(map(_is_reserved, after.column_names)):
            raise NotFollowed("it has a column with a name that the change log needs for itself")
        found = evolution(before, after, trust_rewrites=self.trust_rewrites)
        if _is_needed(found) and not self._destination.capabilities.evolves:
            raise NotFollowed("its schema has changed")
        values = {
            column.name: missing_array(column)[0].as_py()
            for column in found.added
            if column.missing is not None
        }
        return replace(found, missing=values)

    def check_steps(self, schemas: Iterable[TableSchema]) -> None:
        """Raise NotFollowed if one of the schemas cannot be followed from the one before it.
        Otherwise a type that was changed and changed back would go unnoticed."""
        in_order = {
            schema.version: schema for schema in sorted(schemas, key=lambda schema: schema.version)
        }
        for before, after in pairwise(in_order.values()):
            self.way(before, after)

    def schema_of(self, oid: int, version: Lsn) -> TableSchema:
        """The schema of the log's files of this version."""
        # The store's knows where the rows lay last before the schema changed.
        stored = self._tables.schema_at(oid, version)
        if stored is not None and stored.version == version:
            return stored
        return self._log.schema(oid, version)

    def bring(self, state: TableState, schema: TableSchema) -> TableState:
        """Bring the destination's table to this schema. Raises NotFollowed."""
        schema = replace(schema, name=state.name)
        way = self.way(state.schema, schema)
        oid = schema.oid
        if not _is_needed(way):
            return state if state.schema == schema else self._tables.adopt(oid, schema)
        state = self._tables.begin_change(oid, schema)
        return self._change(state, way)

    def follow(self, state: TableState, schema: TableSchema) -> TableState:
        """Bring the destination's table to a schema that has no changes in the log yet. All changes
        of earlier schemas must be applied. Raises NotFollowed."""
        if _is_needed(self.way(state.schema, schema)):
            # So that the first changes of it have its version.
            self._log.store_schema(replace(schema, name=state.name))
        else:
            # Changes that come are still of the version that is known.
            schema = replace(schema, version=state.schema.version)
        return self.bring(state, schema)

    def finish(self, state: TableState) -> TableState:
        """Finish a schema change that was begun, if there is one. Raises NotFollowed."""
        if not state.stored.changing:
            return state
        oid = state.schema.oid
        former = self._tables.schema_at(oid, state.stored.schema_version)
        if former is None or former.version == state.schema.version:
            # That it was to be changed was stored, but not to what.
            return self._tables.end_change(oid)
        return self._change(state, self.way(former, state.schema))

    def _change(self, state: TableState, way: Evolution) -> TableState:
        failpoint("evolve.change", state.name)
        self._destination.evolve(
            replace(
                way,
                before=replace(way.before, name=state.destination),
                after=replace(way.after, name=state.destination),
            )
        )
        failpoint("evolve.changed", state.name)
        state = self._tables.end_change(state.schema.oid)
        self._metrics.schema_changes(state.name).inc()
        _logger.info("a table's schema has changed", table=str(state.name), **_in_words(way))
        return state


def _is_reserved(name: str) -> bool:
    """Whether the name is reserved, or replaces a reserved one in the log."""
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
