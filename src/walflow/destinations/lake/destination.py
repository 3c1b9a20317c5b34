"""The destination that keeps tables of a lake, in whichever format."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from walflow.config import MaintenanceSettings
from walflow.config.lake import EngineChoice, TablePlan
from walflow.destinations.base import (
    Capabilities,
    ConsistentCut,
    Destination,
    TableChanges,
    TableCopy,
    Written,
)
from walflow.destinations.lake.batch import Batch, stored_rows
from walflow.destinations.lake.consistent_cuts import AsOf, ConsistentCuts, RecordedCut, query_as_of
from walflow.destinations.lake.dropped_columns import may_have_dropped_columns, with_dropped_columns
from walflow.destinations.lake.engines import Engines
from walflow.destinations.lake.format import Constant, LakeFormat, Stored
from walflow.destinations.lake.maintenance import Schedule, maintain
from walflow.destinations.lake.modes import MODES
from walflow.destinations.lake.noted_cuts import NotedCuts
from walflow.destinations.lake.owner import Owner, Stamp
from walflow.destinations.lake.properties import TableCache
from walflow.destinations.lake.recopying import (
    bring_to_schema,
    check_key,
    has_past,
    write_differences,
)
from walflow.destinations.lake.schema_changes import change_schema
from walflow.destinations.lake.sessions import SessionPool
from walflow.destinations.lake.spark_errors import as_our_errors
from walflow.destinations.lake.table_schema import (
    COPY,
    EXACT,
    LakeTableSchema,
    has_columns,
    is_as_planned,
    lake_table_schema,
)
from walflow.destinations.lake.trial import scratch_name, try_out
from walflow.destinations.lake.warming import warm_up_writes
from walflow.errors import TableMoved, WalflowError
from walflow.evolution import Evolution, NotFollowed
from walflow.model import Lsn, Span, TableName, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LakeDestination"]


class LakeDestination(Destination):
    """Keeps tables ``<schema>.<table>`` in a lake. Rows and position are committed together, once
    a table a batch."""

    capabilities = Capabilities(
        keeps_position=True,
        evolves=True,
        renames=True,
        drops=True,
        keeps_cuts=True,
        maintains_beside=True,
        checks=True,
    )

    def __init__(
        self,
        spark: SparkSession,
        format: LakeFormat,
        owner: Owner,
        plan: Callable[[TableName], TablePlan] = lambda table: TablePlan(),
        *,
        maintenance: MaintenanceSettings | None = None,
        engine: EngineChoice = "auto",
        noted: NotedCuts | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``plan`` says what is wanted of a table, by the destination's name; ``noted``: where
        consistent cuts are noted, too."""
        self._spark = spark
        self._format = format
        self._owner = owner
        self._plan = plan
        self._maintenance = maintenance or MaintenanceSettings()
        self._schedule = Schedule(self._maintenance)
        self._clock = clock
        self._engines = Engines(format, engine)
        self._cuts = ConsistentCuts(
            format, self._engines, owner, self._maintenance.keep_snapshots_seconds, noted, clock
        )
        self._sessions = SessionPool(spark, format.session_conf)
        self._tables = TableCache(format, owner)
        self._namespaces: set[str] = set()
        self._locks: dict[TableName, threading.Lock] = {}

    @property
    def name(self) -> str:
        return self._format.name

    def startup(self) -> None:
        """Warm up: takes some seconds the first time, and is meant to run beside the copy."""
        warm_up_writes(self._spark, self._format)
        self._format.opened(self._spark)

    def shutdown(self) -> None:
        self._sessions.close()

    def check_catalog(self) -> None:
        """Raise a DestinationError if the catalog cannot be reached."""
        name = scratch_name()
        with as_our_errors("the catalog cannot be used"), self._sessions.borrowed() as spark:
            self._format.opened(self._spark)
            self._format.has_namespace(spark, name)

    def check_writable(self) -> None:
        """See Destination. With a row in a table of its own, in the namespace of what walflow keeps
        for itself."""
        name = scratch_name()
        with self._session(name) as spark:
            try_out(spark, self._format, name, self._owner)

    # Copies.

    def copy(self, copy: TableCopy) -> None:
        """See Destination. The files are taken over as they are where the format can; where not,
        Spark writes their rows.

        Former snapshots of the table stay for their readers until they expire. A table that keeps
        the past is not replaced: see lake.recopying.
        """
        table, position, overflow = copy.schema, copy.position, copy.overflow
        lake_schema, stamp = (
            self._lake_schema(table, overflow=overflow),
            Stamp(self._owner, position),
        )
        constants = self._constants(lake_schema, position)
        with self._making(table.name) as spark:
            # Whose it is decides whether it may be replaced.
            stored = self._tables.look(spark, table.name)
            if stored is not None and has_past(spark, self._format, table.name, stored):
                lake_schema = self._lake_schema(table, overflow=EXACT in stored.columns)
                bring_to_schema(spark, self._format, lake_schema, stored, stamp)
                rows = copy.using(spark).rows
                write_differences(rows, self._format, lake_schema, stamp, datetime.now(UTC))
                return
            if not self._format.adopt(spark, lake_schema, copy.files, constants, stamp):
                rows = copy.using(spark).rows
                self._format.replace(stored_rows(rows, lake_schema, constants), lake_schema, stamp)

    def _constants(
        self, lake_schema: LakeTableSchema, position: Lsn | None
    ) -> Mapping[str, Constant]:
        """What our columns have in rows of a copy."""
        names, time = lake_schema.metadata, datetime.now(UTC)
        metadata: dict[str, Constant] = {}
        if names is not None:
            metadata = {
                names.change_type: COPY,
                names.lsn: None if position is None else int(position),
                names.timestamp: time,
            }
        return MODES[lake_schema.plan.mode].copied(lake_schema, metadata, time)

    # Changes.

    def applied(self, table: TableSchema) -> Lsn | None:
        """None also if the table is of another mode than is wanted now: only a copy makes it so."""
        with self._session(table.name) as spark:
            stored = self._tables.current(spark, table.name)
        if stored is None or not self._is_as_planned(table, stored):
            return None
        return stored.position

    def apply(self, changes: TableChanges) -> Written | None:
        """See Destination. Nothing is written to a table that is not where the changes begin. What
        happens to it while they are written shows afterwards: the commit says what it was made
        for."""
        table, span = changes.schema, changes.span
        with self._writing(table.name) as spark:
            stored = self._tables.current(spark, table.name)
            position = self._check_place(table, stored, span)
            if position >= span.upto:
                return None
            assert stored is not None
            todo = changes.using(spark)
            if position > span.after:
                todo = todo.since(position)
            plan = self._plan(table.name)
            if may_have_dropped_columns(todo, plan):
                todo = with_dropped_columns(todo, plan, stored)
            lake_schema = self._lake_schema(todo.schema, overflow=EXACT in stored.columns)
            stamp = Stamp(self._owner, span.upto, position)
            written = self._engines.merge(Batch(self._format, lake_schema, todo, position, stamp))
            after = self._tables.reload(spark, table.name)
            if after is None or after.position != span.upto:
                raise TableMoved(
                    f"{self._format.identifier(table.name)} was changed by someone else while its "
                    f"changes up to {span.upto} were written"
                )
        self._schedule.committed(table.name)
        return written

    def _check_place(self, table: TableSchema, stored: Stored | None, span: Span) -> Lsn:
        """The table's position. TableMoved if changes that begin there cannot be written to it."""
        identifier = self._format.identifier(table.name)
        if stored is None or stored.position is None:
            raise TableMoved(f"{identifier} has no complete copy to apply changes to")
        if stored.position < span.after:
            raise TableMoved(
                f"{identifier} is at {stored.position}, and the changes begin at {span.after}"
            )
        if not has_columns(stored.properties, stored.columns, table):
            raise TableMoved(f"{identifier} does not have the columns that it was given")
        return stored.position

    # Tables.

    def evolve(self, evolution: Evolution) -> None:
        """See Destination, and lake.schema_changes for what becomes of rows that are there."""
        name = evolution.after.name
        with self._writing(name) as spark:
            self._tables.forget(name)
            stored = self._tables.look(spark, name)
            if (
                stored is None
                or stored.position is None
                or not self._is_as_planned(evolution.after, stored)
            ):
                raise NotFollowed("the destination has no complete copy that could be changed")
            lake_schema = self._lake_schema(evolution.after, overflow=EXACT in stored.columns)
            change_schema(spark, self._format, lake_schema, evolution, self._owner)
            if evolution.key_changed:
                check_key(spark, self._format, lake_schema)

    def rename(self, table: TableSchema, name: TableName) -> bool:
        """See Destination. False also if there is another table of that name."""
        with self._writing(table.name) as spark:
            self._tables.forget(table.name)
            self._tables.forget(name)
            taken = self._tables.look(spark, name) is not None
            stored = self._tables.look(spark, table.name)
            if stored is None:
                return taken
            if taken:
                return False
            self._cuts.forget(name)
            return self._format.rename(spark, table.name, name)

    def drop(self, table: TableSchema) -> None:
        """Remove the table with its files; DestinationForeign if it is not ours."""
        with self._writing(table.name) as spark:
            self._tables.forget(table.name)
            self._tables.look(spark, table.name)
            self._format.drop(spark, table.name)
            self._cuts.forget(table.name)

    def own_tables(self) -> list[TableName]:
        with as_our_errors("The catalog's tables"), self._sessions.borrowed() as spark:
            return sorted(self._format.owned_tables(spark, self._owner))

    def check_owned(self, name: TableName) -> None:
        """DestinationForeign if there is such a table, and it is not this pipeline's."""
        with self._session(name) as spark:
            self._tables.look(spark, name)

    # Maintenance, and consistent cuts.

    def maintenance_due(self, table: TableSchema) -> bool:
        return self._schedule.is_due(table.name)

    def maintain(self, table: TableSchema) -> None:
        """See Destination."""
        if not self._schedule.is_due(table.name):
            return
        due = self._schedule.begin(table.name)
        with self._session(table.name) as spark:
            with self._lock(table.name):
                stored = self._tables.current(spark, table.name)
            if stored is None or stored.position is None:
                return
            maintain(
                spark,
                self._format,
                self._engines,
                table.name,
                self._maintenance,
                due,
                partial(self._cuts.needed, spark, table.name),
                partial(self._turn, spark, table.name),
                self._clock,
            )

    @contextmanager
    def _turn(self, spark: SparkSession, name: TableName) -> Iterator[Stamp]:
        """See lake.format.Turn."""
        with self._lock(name):
            stored = self._tables.current(spark, name)
            if stored is None or stored.position is None:
                raise TableMoved(f"{name} is being copied anew")
            yield Stamp(self._owner, stored.position, stored.position)

    def keep_cut(self, cut: ConsistentCut) -> bool:
        """See Destination."""
        with as_our_errors("The table of consistent cuts"), self._sessions.borrowed() as spark:
            return self._cuts.record(spark, cut)

    def as_of(self, position: Lsn | None = None, moment: datetime | None = None) -> AsOf | None:
        """The newest cut, or the newest one up to the position or the time."""
        with as_our_errors("The table of consistent cuts"), self._sessions.borrowed() as spark:
            cut = self._cuts.newest(spark, position, moment)
            if cut is None:
                return None
            queries = [query_as_of(spark, self._format, table) for table in cut.tables]
            return AsOf(cut, tuple(queries))

    def oldest_cut(self) -> RecordedCut | None:
        with as_our_errors("The table of consistent cuts"), self._sessions.borrowed() as spark:
            return self._cuts.oldest(spark)

    # What is wanted.

    def _lake_schema(self, table: TableSchema, *, overflow: bool) -> LakeTableSchema:
        return lake_table_schema(table, self._plan(table.name), overflow=overflow)

    def _is_as_planned(self, table: TableSchema, stored: Stored) -> bool:
        return is_as_planned(self._plan(table.name), stored.properties)

    # Sessions.

    def _lock(self, name: TableName) -> threading.Lock:
        """Held by every commit to the table: maintenance goes on beside batches."""
        return self._locks.setdefault(name, threading.Lock())

    @contextmanager
    def _writing(self, name: TableName) -> Iterator[SparkSession]:
        """A session for who writes the table; nobody else of this process does meanwhile."""
        with self._lock(name), self._session(name) as spark:
            yield spark

    @contextmanager
    def _making(self, name: TableName) -> Iterator[SparkSession]:
        """A session for what makes the table, or moves it by other means than changes."""
        with self._writing(name) as spark:
            self._tables.forget(name)
            if name.schema not in self._namespaces:
                self._format.make_namespace(spark, name)
                self._namespaces.add(name.schema)
            try:
                yield spark
            finally:
                self._cuts.forget(name)

    @contextmanager
    def _session(self, name: TableName) -> Iterator[SparkSession]:
        """A session; what Spark complains of inside becomes a DestinationError."""
        try:
            subject = self._format.identifier(name)
            with as_our_errors(subject), self._sessions.borrowed() as spark:
                yield spark
        except WalflowError:
            self._tables.forget(name)
            raise
