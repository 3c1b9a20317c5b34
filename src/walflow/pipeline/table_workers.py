"""All tables' workers: newly sealed segments are routed to them."""

from __future__ import annotations

import threading
import time

from walflow.model import Lsn, Phase
from walflow.pipeline.state.table_states import Tables
from walflow.pipeline.table_work import TableWork
from walflow.pipeline.table_worker import TableWorker

__all__ = ["TableWorkers"]

_CANCEL_SECONDS = 0.2
_IDLE_MAINTENANCE_SECONDS = 20.0
"""An idle table is not maintained more often than this, in seconds."""


class TableWorkers:
    """Used by the coordinating thread; ``get``, ``all`` and ``routed`` by others, too."""

    def __init__(self, work: TableWork) -> None:
        self.work = work
        self._lock = threading.Lock()
        self._workers: dict[int, TableWorker] = {}
        self._maintained: dict[int, float] = {}
        """When maintenance was last started for an idle table."""

    @property
    def tables(self) -> Tables:
        return self.work.tables

    @property
    def routed(self) -> Lsn:
        return self.work.routed.upto

    def get(self, oid: int) -> TableWorker | None:
        with self._lock:
            return self._workers.get(oid)

    def __getitem__(self, oid: int) -> TableWorker:
        with self._lock:
            return self._workers[oid]

    def all(self) -> list[TableWorker]:
        with self._lock:
            return list(self._workers.values())

    def add(self, oid: int) -> TableWorker:
        """A worker for a table. It does nothing until ``go_on``."""
        worker = TableWorker(oid, self.work)
        with self._lock:
            self._workers[oid] = worker
        return worker

    def forget(self, oid: int) -> None:
        """The table is no longer published, or chosen. Its worker must be paused."""
        self.work.log.break_off(oid)
        self.work.sync.drop(oid)
        self.tables.forget(oid)
        with self._lock:
            del self._workers[oid]
        self._maintained.pop(oid, None)

    def restart(self) -> None:
        """The log has begun again. All workers must be paused. Afterwards there are none."""
        with self._lock:
            self._workers.clear()
        self.work.routed.upto = self.work.log.end

    def route(self) -> set[int]:
        """Route the segments since the last call to the tables' workers. Returns the oids of tables
        that have changes but no worker."""
        unknown: set[int] = set()
        before, log = self.routed, self.work.log
        # In this order: a segment that is sealed in between must not count as routed.
        end = log.end
        for segment in log.segments(before):
            end = max(end, segment.span.upto)
            for oid in {file.table for file in segment.files}:
                worker = self.get(oid)
                if worker is None:
                    unknown.add(oid)
                else:
                    worker.add(segment)
        if end > before:
            self.work.routed.upto = end
            for worker in self.all():
                worker.look()
        return unknown

    def tick(self) -> None:
        """Let every worker check what depends on time."""
        workers = self.all()
        for worker in workers:
            worker.tick()
        if not any(worker.needs_snapshot for worker in workers):
            # One that nobody reads holds the source back.
            self.work.sync.snapshots.release()

    def maintain_idle(self) -> None:
        """Start the maintenance of an idle table that is due: no batch comes that it could follow.
        One table a call, in turns. Costs nothing if none is due."""
        maintenance = self.work.maintenance
        if maintenance.busy:
            return
        now = time.monotonic()
        last = self._maintained
        for worker in sorted(self.all(), key=lambda worker: last.get(worker.oid, 0.0)):
            if now - last.get(worker.oid, -_IDLE_MAINTENANCE_SECONDS) < _IDLE_MAINTENANCE_SECONDS:
                continue
            state = self.tables.get(worker.oid)
            if state is None or state.phase is not Phase.READY or not worker.is_idle:
                continue
            if maintenance.is_due(state):
                last[worker.oid] = now
                worker.maintain()
                return

    def pause(self) -> bool:
        """Pause all workers. False if jobs still run: call again later."""
        paused = [worker.pause() for worker in self.all()]
        if not all(paused):
            self.work.sync.cancel()
        return all(paused)

    def close(self) -> None:
        """Wait for the workers: a copy is interrupted, a load or batch is finished. The pipeline's
        end must have been requested."""
        work = self.work
        for worker in self.all():
            worker.stop()
        while any(worker.copies for worker in self.all()):
            work.sync.cancel()
            time.sleep(_CANCEL_SECONDS)
        work.pools.copying.close()
        work.maintenance.close()
        work.pools.ready.shutdown()
        work.pools.catching_up.shutdown()
