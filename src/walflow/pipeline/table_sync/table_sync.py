"""Tables on their way into the destination: read under a snapshot, then handed over."""

from __future__ import annotations

import contextlib
import heapq
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from walflow.changelog import ChangeLog
from walflow.destinations.base import Destination, TableCopy
from walflow.errors import Stopped
from walflow.failpoints import failpoint
from walflow.model import Lsn, Phase
from walflow.observe.metrics import PipelineMetrics
from walflow.pipeline.state.retries import is_of_the_source
from walflow.pipeline.state.table_states import Tables, TableState
from walflow.pipeline.table_sync.snapshots import Snapshots
from walflow.pipeline.table_sync.table_copy import CopyReader, FinishedCopy
from walflow.spark.jobs import cancel_jobs, in_pool
from walflow.stores.base import SchemaStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SYNCED_PHASES", "Postponed", "TableSync", "next_pause"]

SYNCED_PHASES = frozenset({Phase.INIT, Phase.DATA_SYNC, Phase.FINISHED_COPY})
"""The phases that are the syncer's work."""

_CANCEL_SECONDS = 0.2
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_SHORT_PAUSE = 4.0

_logger = structlog.get_logger(__name__)


@dataclass(slots=True)
class Postponed:
    """The source was in trouble: nobody's fault, so it is tried again for as long as it takes."""

    until: float
    bytes: int
    pause: float
    rows: int
    """How many were read by then."""


def next_pause(before: Postponed | None, rows: int) -> float:
    """How long a copy waits that was interrupted when so many rows had been read."""
    # One that came on in between is interrupted for the first time again.
    if before is None or rows > before.rows:
        return _FIRST_PAUSE
    return min(before.pause * 2, _LONGEST_PAUSE)


class TableSync:
    """Takes tables from ``Init`` to ``SyncWait``, some at a time, the largest first.

    All calls may come from several threads.
    """

    def __init__(
        self,
        spark: SparkSession,
        log: ChangeLog,
        store: SchemaStore,
        destination: Destination,
        tables: Tables,
        snapshots: Snapshots,
        reader: CopyReader,
        metrics: PipelineMetrics,
        *,
        workers: int,
        failed: Callable[[int, Exception], None],
        fatal: Callable[[BaseException], None],
    ) -> None:
        """``failed`` and ``fatal`` are told from the workers' threads."""
        self._spark = spark
        self._log = log
        self._store = store
        self._destination = destination
        self._tables = tables
        self._snapshots = snapshots
        self._reader = reader
        self._metrics = metrics
        self._failed = failed
        self._fatal = fatal
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._queue: list[tuple[int, int]] = []
        self._running: dict[int, threading.Event] = {}
        """What is being worked on, and how to have that broken off."""
        self._handed_over: set[int] = set()
        """Those of the running ones that need the source no more."""
        self._postponed: dict[int, Postponed] = {}
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="walflow-sync")

    def put(self, oid: int, size: int = 0) -> None:
        """Take the table on. It must not be here already."""
        with self._lock:
            if self._stop.is_set():
                return
            heapq.heappush(self._queue, (-size, oid))
            job = self._pool.submit(self._next)
        job.add_done_callback(self._check)

    def remove(self, oid: int) -> bool:
        """Take the table off; False if it is being worked on: that ends soon, ask again later."""
        with self._lock:
            if oid in self._running:
                self._running[oid].set()
                return False
            self._queue = [entry for entry in self._queue if entry[1] != oid]
            heapq.heapify(self._queue)
            self._postponed.pop(oid, None)
            return True

    def has(self, oid: int) -> bool:
        with self._lock:
            queued = any(entry[1] == oid for entry in self._queue)
            return queued or oid in self._running or oid in self._postponed

    def tick(self) -> None:
        """To be called now and then: for what was postponed, and to let snapshots go."""
        now = time.monotonic()
        with self._lock:
            due = {oid: wait for oid, wait in self._postponed.items() if wait.until <= now}
            for wait in due.values():
                # Once only; how long it waited stays known, should it have to wait again.
                wait.until = math.inf
            # Who is handed over, or waits for long, needs no snapshot: it holds the source back.
            read = self._running.keys() - self._handed_over
            soon = any(wait.pause <= _SHORT_PAUSE for wait in self._postponed.values())
            idle = not (self._queue or read or soon)
        for oid, wait in due.items():
            self.put(oid, wait.bytes)
        if idle:
            self._snapshots.release()

    @property
    def reading(self) -> bool:
        """Whether a table is being worked on."""
        with self._lock:
            return bool(self._running)

    def _check(self, job: Future[None]) -> None:
        if not job.cancelled() and (error := job.exception()) is not None:
            self._fatal(error)

    def _next(self) -> None:
        with self._lock:
            if self._stop.is_set() or not self._queue:
                return
            size, oid = heapq.heappop(self._queue)
            taken_off = self._running[oid] = threading.Event()
        try:
            with in_pool(self._spark, "copy"):
                self._sync(oid, taken_off)
        except Exception as error:
            # Of one that was taken off nobody cares how it ended.
            ended = isinstance(error, Stopped) and self._stop.is_set()
            if not ended and not taken_off.is_set():
                self._metrics.worker_failed("copy", error)
                self._after(oid, -size, error)
        else:
            with self._lock:
                self._postponed.pop(oid, None)
        finally:
            with self._lock:
                del self._running[oid]
                self._handed_over.discard(oid)

    def _after(self, oid: int, size: int, error: Exception) -> None:
        if not is_of_the_source(error):
            with self._lock:
                self._postponed.pop(oid, None)
            self._failed(oid, error)
            return
        state = self._tables.get(oid)
        rows = 0 if state is None else state.rows_copied
        with self._lock:
            pause = next_pause(self._postponed.get(oid), rows)
            self._postponed[oid] = Postponed(time.monotonic() + pause, size, pause, rows)
        _logger.warning(
            "a copy was interrupted; going on soon",
            table=str(oid if state is None else state.name),
            error=str(error),
            seconds=round(pause, 1),
        )

    def _sync(self, oid: int, taken_off: threading.Event) -> None:
        state = self._tables.get(oid)
        if state is None:
            return
        copy = None
        if state.phase is Phase.FINISHED_COPY:
            copy = self._reader.finished(oid, state.membership)
            if copy is None:
                self._tables.move(oid, Phase.DATA_SYNC)
        if copy is None:
            copy = self._read(oid, taken_off)
        if not taken_off.is_set():
            self._reader.check(oid)
            self._hand_over(oid, copy)

    def _read(self, oid: int, taken_off: threading.Event) -> FinishedCopy:
        began = time.monotonic()
        with self._snapshots.use(oid, self._log) as (snapshot, table):
            if table.problem is not None:
                raise table.problem
            state = self._known(oid)
            if not state.membership.continues(table.membership):
                # What was read before is of a time that the log does not reach back to.
                self._reader.drop(oid)
                state = state.changed(position=Lsn(0))
            facts = {
                "schema": table.schema,
                "membership": table.membership,
                "rows_expected": table.rows,
                # A copy that goes on needs the log from its first snapshot on.
                "position": state.position or snapshot.position,
            }
            if state.phase is Phase.INIT:
                self._tables.move(oid, Phase.DATA_SYNC, **facts)
            else:
                self._tables.update(oid, **facts)
            failpoint("sync.data_sync", table.name)
            copy = self._reader.read(
                table,
                snapshot,
                progress=lambda rows: self._progress(oid, rows),
                stop=taken_off,
            )
        self._log.store_schema(copy.schema)
        self._store.store_table_schema(copy.schema)
        self._tables.move(
            oid,
            Phase.FINISHED_COPY,
            schema=copy.schema,
            position=copy.position,
            rows_copied=copy.rows,
            copy_seconds=time.monotonic() - began,
        )
        return copy

    def _progress(self, oid: int, rows: int) -> None:
        self._tables.update(oid, rows_copied=rows)

    def _hand_over(self, oid: int, copy: FinishedCopy) -> None:
        state = self._known(oid)
        with self._lock:
            self._handed_over.add(oid)
        failpoint("sync.finished_copy", state.name)
        began = time.monotonic()
        self._destination.copy(
            TableCopy(
                state.destination_schema, copy.files, copy.position, copy.overflow, self._spark
            )
        )
        state = self._known(oid)
        seconds = state.stored.copy_seconds + time.monotonic() - began
        self._tables.move(oid, Phase.SYNC_WAIT, copy_seconds=seconds, attempts=0, error=None)
        self._reader.drop(oid)
        self._metrics.table_copy_duration(state.name).observe(seconds)
        _logger.info(
            "copied",
            table=str(state.name),
            rows=copy.rows,
            seconds=round(seconds, 1),
            position=str(copy.position),
        )

    def _known(self, oid: int) -> TableState:
        state = self._tables.get(oid)
        assert state is not None
        return state

    def cancel(self) -> None:
        """Break off what is being read: who reads fails, and what was read of it stays."""
        # A JVM that is gone has no jobs; what it was asked for fails by itself.
        with contextlib.suppress(Exception):
            cancel_jobs(self._spark, self._reader.tag)

    def close(self) -> None:
        """End soon: a copy that is under way is broken off, a hand-over finished."""
        with self._lock:
            self._stop.set()
            for taken_off in self._running.values():
                taken_off.set()
        while self.reading:
            self.cancel()
            time.sleep(_CANCEL_SECONDS)
        self._pool.shutdown(cancel_futures=True)
