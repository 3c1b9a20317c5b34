"""The first copy of a table: read under a snapshot, then loaded into the destination."""

from __future__ import annotations

import contextlib
import heapq
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from walflow.changelog import ChangeLog, FinishedCopy
from walflow.destinations import OpenDestination
from walflow.destinations.base import TableCopy
from walflow.model import Lsn
from walflow.observe.metrics import PipelineMetrics
from walflow.pipeline.state.table_states import Tables, TableState
from walflow.pipeline.table_sync.snapshots import Snapshots
from walflow.pipeline.table_sync.table_copy import CopyReader
from walflow.source.catalog.published_tables import PublishedTable
from walflow.source.copy.snapshot import OpenSnapshot
from walflow.spark.jobs import cancel_jobs, in_pool

__all__ = ["BegunCopy", "LargestFirst", "TableSync"]

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BegunCopy:
    """A table as it is published now, and a snapshot that serves it."""

    table: PublishedTable
    snapshot: OpenSnapshot
    position: Lsn
    """The copy needs the log from here on."""


@dataclass(frozen=True, slots=True)
class TableSync:
    """How tables are copied. All calls may come from several threads, for one table from one at a
    time."""

    target: OpenDestination
    log: ChangeLog
    tables: Tables
    snapshots: Snapshots
    reader: CopyReader
    metrics: PipelineMetrics

    @contextmanager
    def begun(self, state: TableState) -> Iterator[BegunCopy]:
        """Hold a snapshot for the table's copy."""
        oid = state.schema.oid
        with self.snapshots.use(oid, self.log) as (snapshot, table):
            if table.problem is not None:
                raise table.problem
            goes_on = state.membership.continues(table.membership)
            if not goes_on:
                # What was read before is of a time that the log does not reach back to.
                self.reader.drop(oid)
            # A copy that goes on needs the log from its first snapshot on.
            position = state.position if goes_on and state.position else snapshot.position
            yield BegunCopy(table, snapshot, position)

    def read(self, begun: BegunCopy, stop: threading.Event) -> FinishedCopy:
        """The table's rows, in the log's folder; see ``CopyReader.read``."""
        oid = begun.table.schema.oid
        return self.reader.read(
            begun.table,
            begun.snapshot,
            progress=lambda rows: self._progress(oid, rows),
            stop=stop,
        )

    def _progress(self, oid: int, rows: int) -> None:
        self.tables.update(oid, rows_copied=rows)

    def finished(self, state: TableState) -> FinishedCopy | None:
        """The table's copy as it was read, if it is whole."""
        return self.reader.finished(state.schema.oid, state.membership)

    def load(self, state: TableState, copy: FinishedCopy) -> None:
        """Make the destination's table from the copy. May be repeated."""
        schema, spark = state.destination_schema, self.target.spark
        files = self.log.copy(schema.oid).paths(copy)
        self.target.destination.copy(TableCopy(schema, files, copy.position, copy.overflow, spark))

    def loaded(self, state: TableState, copy: FinishedCopy) -> None:
        """The table has its rows, and the copy is of no more use."""
        self.reader.drop(state.schema.oid)
        self.metrics.table_copy_duration(state.name).observe(state.stored.copy_seconds)
        _logger.info(
            "copied",
            table=str(state.name),
            rows=copy.rows,
            seconds=round(state.stored.copy_seconds, 1),
            position=str(copy.position),
        )

    def drop(self, oid: int) -> None:
        """Forget what was read of the table. Repeats safely."""
        self.reader.drop(oid)

    @contextmanager
    def in_pool(self) -> Iterator[None]:
        with in_pool(self.target.spark, "copy"):
            yield

    def cancel(self) -> None:
        """Break off what is being read, of all tables: their reads fail, and what was read of them
        stays."""
        # A JVM that is gone has no jobs; what it was asked for fails by itself.
        with contextlib.suppress(Exception):
            cancel_jobs(self.target.spark, self.reader.tag)


class LargestFirst:
    """Runs jobs on a few threads: of those that wait, the largest first."""

    def __init__(self, threads: int, name: str) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def submit(self, size: int, job: Callable[[], None]) -> None:
        """``job`` must not raise."""
        with self._lock:
            self._count += 1
            heapq.heappush(self._waiting, (-size, self._count, job))
        self._pool.submit(self._next)

    def _next(self) -> None:
        with self._lock:
            *_, job = heapq.heappop(self._waiting)
        job()

    def close(self) -> None:
        """Begin no other job, and wait for those that run."""
        self._pool.shutdown(cancel_futures=True)
