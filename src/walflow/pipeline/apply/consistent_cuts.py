"""Consistent cuts: which versions of the destination's tables belong together.

Every table goes through the log at its own pace. A version of a table shows the source as it was
at its position, and at all others up to the first change that it lacks. A consistent cut is at a
position that every table has a version for. It is recorded with the tables, by a destination that
can.

Tables with large batches would hardly ever meet. So the log is cut now and then, and batches do
not go across a cut.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from walflow.destinations.base import ConsistentCut, CutTable, Destination
from walflow.errors import WalflowError
from walflow.model import Lsn, Phase
from walflow.observe.metrics import PipelineMetrics
from walflow.pipeline.state.status import PipelineStatus
from walflow.pipeline.state.table_states import TableState
from walflow.pipeline.timing import Timing
from walflow.spark.jobs import in_pool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Committed", "ConsistentCuts", "newest_common"]

_FAR_BEHIND_SECONDS = 60.0
"""A table that is this many seconds late gets no limits: smaller batches would make it later."""
_RECORD_SECONDS = 1.0
_RECORD_SECONDS_A_TABLE = 0.05
_RECORD_SHARE = 0.05
"""Of the time is spent on recording, unless one record takes very long."""
_REMEMBERED = 1000
"""How many versions of a table are remembered for cuts. Only tables far ahead of others have
more."""

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Committed:
    """A batch that is in the destination."""

    begins: Lsn
    """Up to here the table was complete without it."""
    position: Lsn
    """The position of the table with it."""
    commit_time: int | None
    """Of the last transaction in it, in microseconds; None: not known."""


@dataclass(slots=True)
class _ReadyTable:
    ready_since: float
    """When the table became ready. If this changes, the table was copied again or set aside
    meanwhile."""
    batches: list[Committed]


class ConsistentCuts:
    """``batch_committed`` and ``before_cut`` are called by the tables' workers. Everything else is
    called by the coordinating thread and, after its end, by the thread that ends the pipeline."""

    def __init__(
        self,
        spark: SparkSession,
        destination: Destination,
        metrics: PipelineMetrics,
        clock: Callable[[], float] = time.time,
        *,
        timing: Timing = Timing(),
    ) -> None:
        self._spark = spark
        self._destination = destination if destination.capabilities.keeps_cuts else None
        self._metrics = metrics
        self._clock = clock
        self._cut_seconds = timing.cut
        self._lock = threading.Lock()
        self._new: list[tuple[int, Committed]] = []
        self._cuts: list[Lsn] = []
        self._cut_at = 0.0
        self._tables: dict[int, _ReadyTable] = {}
        self._recorded: tuple[CutTable, ...] = ()
        self._due = 0.0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="walflow-progress")
        self._recording: Future[None] | None = None

    # From the tables' workers.

    def batch_committed(self, oid: int, batch: Committed) -> None:
        """Call this before the table's new position is published to others."""
        if self._destination is not None:
            with self._lock:
                self._new.append((oid, batch))

    def before_cut(self, ends: Sequence[Lsn], oldest: int) -> int:
        """How many of the segment slices with these ends may go into one batch; ``oldest``: the
        commit time of the first of them."""
        if self._clock() - oldest / 1e6 > _FAR_BEHIND_SECONDS:
            return len(ends)
        with self._lock:
            crossed = next((cut for cut in self._cuts if ends[0] <= cut < ends[-1]), None)
        return len(ends) if crossed is None else bisect_right(ends, crossed)

    # From the coordinator.

    def look(self, status: PipelineStatus) -> None:
        """Cut the log, and record a consistent cut, if it is time. The status is of just now."""
        if self._destination is None:
            return
        ready = {s.schema.oid: s for s in status.tables if s.phase is Phase.READY}
        self._cut(status, ready)
        if self._recording is not None and not self._recording.done():
            return
        if time.monotonic() < self._due or status.uncertain:
            return
        if (cut := self._newest(ready)) is not None:
            self._recording = self._pool.submit(self._record, cut)

    def close(self, status: PipelineStatus | None) -> None:
        """Nothing is written any more. Record the last cut, if a status is given."""
        self._pool.shutdown()
        if self._destination is None or status is None or status.uncertain:
            return
        ready = {s.schema.oid: s for s in status.tables if s.phase is Phase.READY}
        if (cut := self._newest(ready)) is not None:
            self._record(cut)

    def _cut(self, status: PipelineStatus, ready: Mapping[int, TableState]) -> None:
        now = self._clock()
        # A single table needs no others to meet.
        if len(ready) < 2 or now - self._cut_at < self._cut_seconds:
            return
        self._cut_at = now
        with self._lock:
            passed = bisect_right(self._cuts, status.applied)
            self._cuts = self._cuts[passed:]
            if not self._cuts or self._cuts[-1] < status.routed:
                self._cuts.append(status.routed)

    def _newest(self, ready: Mapping[int, TableState]) -> ConsistentCut | None:
        """The newest cut, unless it was recorded already."""
        self._learn(ready)
        found = newest_common(
            {oid: table.batches for oid, table in self._tables.items()},
            {oid: state.position for oid, state in ready.items()},
        )
        if found is None:
            return None
        upto, batches = found
        tables = tuple(
            CutTable(ready[oid].name, ready[oid].destination, batch.position)
            for oid, batch in batches.items()
        )
        if tables == self._recorded:
            return None
        times = [batch.commit_time for batch in batches.values() if batch.commit_time is not None]
        since = max(batch.position for batch in batches.values())
        return ConsistentCut(since, upto, max(times, default=None), tables)

    def _learn(self, ready: Mapping[int, TableState]) -> None:
        """Note which tables are ready, and what was committed."""
        with self._lock:
            new, self._new = self._new, []
        tables: dict[int, _ReadyTable] = {}
        for oid, state in sorted(ready.items()):
            before = self._tables.get(oid)
            if before is None or before.ready_since != state.since:
                # What it was before is not known. It is what it is at its position.
                before = _ReadyTable(state.since, [Committed(Lsn(0), state.position, None)])
            tables[oid] = before
        self._tables = tables
        for oid, batch in new:
            if oid in tables and batch.position > tables[oid].batches[-1].position:
                tables[oid].batches.append(batch)
        for one in tables.values():
            del one.batches[:-_REMEMBERED]

    def _record(self, cut: ConsistentCut) -> None:
        assert self._destination is not None
        began = time.monotonic()
        try:
            with in_pool(self._spark, "progress"):
                kept = self._destination.keep_cut(cut)
            if kept:
                self._recorded = cut.tables
                _logger.debug("recorded a consistent cut", position=str(cut.upto))
        except Exception as error:
            self._metrics.worker_failed("progress", error)
            _logger.warning(
                "a consistent cut was not recorded; it is tried again later",
                error=str(error),
                hint=error.hint if isinstance(error, WalflowError) else None,
            )
        now = time.monotonic()
        self._due = now + max(
            _RECORD_SECONDS,
            _RECORD_SECONDS_A_TABLE * len(cut.tables),
            min((now - began) / _RECORD_SHARE, self._cut_seconds),
        )


def newest_common(
    batches: Mapping[int, Sequence[Committed]], complete: Mapping[int, Lsn]
) -> tuple[Lsn, dict[int, Committed]] | None:
    """The newest position that every table has a version for, and these; None: there is none.

    ``batches``: each table's, oldest first, without a gap. ``complete``: up to where it has all.
    """
    if not batches:
        return None
    upto = min(complete[table] for table in batches)
    while True:
        chosen: dict[int, Committed] = {}
        lowest = upto
        for table, of_table in batches.items():
            after = bisect_right(of_table, upto, key=lambda batch: batch.position)
            if after == 0:
                return None
            chosen[table] = of_table[after - 1]
            # The next one may begin before: what became of the table in between is not known.
            ends = of_table[after].begins if after < len(of_table) else complete[table]
            lowest = min(lowest, max(ends, chosen[table].position))
        if lowest == upto:
            return upto, chosen
        upto = lowest
