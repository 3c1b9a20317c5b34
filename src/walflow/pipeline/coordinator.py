"""The coordinating thread: it routes events to the tables' workers, and does no table's work
itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import structlog
import tenacity

from walflow.errors import SlotLost, SourceError
from walflow.model import Lsn
from walflow.pasting import command_for
from walflow.pipeline.apply.applier import ApplyProgress
from walflow.pipeline.capture.intake import Intake
from walflow.pipeline.publication.reconciler import PublicationReconciler
from walflow.pipeline.requests import Requests
from walflow.pipeline.retrying import call_again
from walflow.pipeline.run import PipelineRun
from walflow.pipeline.state.status import PipelineStatus
from walflow.pipeline.state.table_states import TableState
from walflow.pipeline.table_workers import TableWorkers
from walflow.spark.session import cores
from walflow.states import RetryKind

__all__ = ["Coordinator"]

_IDLE_SECONDS = 0.5
_PAUSE_SECONDS = 0.1
_SAVE_SECONDS = 2.0
_MAINTENANCE_SECONDS = 1.0
_LAG_SECONDS = 2.0

_logger = structlog.get_logger(__name__)


class Coordinator:
    """The root of the parts that work while a pipeline runs."""

    def __init__(
        self,
        run: PipelineRun,
        intake: Intake,
        workers: TableWorkers,
        reconciler: PublicationReconciler,
        requests: Requests,
    ) -> None:
        self._run = run
        self.intake = intake
        self.workers = workers
        self._reconciler = reconciler
        self.requests = requests
        self._tables = workers.tables
        self._log = workers.work.log
        self._snapshots = workers.work.sync.snapshots
        self._cuts = workers.work.batches.cuts
        self._cores = cores(workers.work.batches.target.spark)
        """How many tasks Spark runs at once."""
        self._asked = self._saved = self._maintained = 0.0
        self._begun = threading.Event()
        self.last: PipelineStatus | None = None
        """The status of a moment ago, which is cheap to read."""

    @property
    def begun(self) -> bool:
        """Whether the catalog was read, so that all published tables are in the list."""
        return self._begun.is_set()

    def run(self) -> None:
        """Run until asked to stop, or until an error ends the pipeline."""
        intake, reconciler = self.intake, self._reconciler
        with closing(reconciler):
            self._when_source_is_there(lambda: reconciler.begin(new_slot=intake.made_slot))
            # What was asked for while no pipeline ran comes first: who waits until all is caught
            # up waits for it.
            self.requests.look()
            self._begun.set()
            while not self._run.end.asked.is_set():
                self._turn()

    def _turn(self) -> None:
        self._run.lease.check()
        self._unless_lost(self.intake.check)
        self._log.wait_for_change(self.workers.routed, _IDLE_SECONDS)
        unknown = self.workers.route()
        self.workers.tick()
        self._unless_lost(lambda: self._reconciler.look(hurry=bool(unknown)))
        now = time.monotonic()
        if now - self._asked >= self._run.timing.requests:
            self._asked = now
            self.requests.look()
        status = self.status()  # which is for the metrics, too
        self.intake.applied(status.applied)
        self._share_cores(status)
        self._cuts.look(status)
        self._retire()
        if now - self._maintained >= _MAINTENANCE_SECONDS:
            self._maintained = now
            self.workers.maintain_idle()
        if now - self._saved >= _SAVE_SECONDS:
            self._saved = now
            self._tables.save()

    # How it goes.

    def status(self) -> PipelineStatus:
        # First: what is routed after it may be applied already, but not the other way round.
        routed = self.workers.routed
        found = [(state, self._progress(state)) for state in self._tables.all()]
        states = tuple(_as_of(state, progress) for state, progress in found)
        status = PipelineStatus(
            states,
            self.intake.wal_end,
            self._log.end,
            routed,
            min((state.position for state in states if state.followed), default=routed),
            max((state.lag_seconds for state in states), default=0.0),
            # Between two phases, or not asked about yet: the position that is known is old.
            any(
                state.followed and (progress is None or not progress.verified)
                for state, progress in found
            ),
            self._run.metrics.batches_written(),
        )
        self.last = status
        self._run.metrics.end_to_end_lag_bytes.set(status.lag_bytes)
        self._run.metrics.end_to_end_lag_seconds.set(status.lag_seconds)
        self._run.metrics.set_phases({state.name: state.phase for state in states})
        self._run.metrics.tables_failing.set(sum(state.error is not None for state in states))
        return status

    def _as_of_now(self, state: TableState) -> TableState:
        return _as_of(state, self._progress(state))

    def _progress(self, state: TableState) -> ApplyProgress | None:
        worker = self.workers.get(state.schema.oid)
        return None if worker is None else worker.progress

    # The slot.

    def _unless_lost(self, work: Callable[[], None]) -> None:
        try:
            work()
        except SlotLost as error:
            if self._run.settings.source.on_slot_lost != "resync":
                self._run.metrics.slot_invalidations.inc()
                raise
            lost = error
        else:
            return
        self._when_source_is_there(lambda: self._begin_anew(lost))

    def _begin_anew(self, lost: SlotLost) -> None:
        """The slot was lost, and changes with it: copy everything again under a new one."""
        self.intake.stop()
        while not self.workers.pause():
            if self._run.end.asked.wait(_PAUSE_SECONDS):
                return
        self._snapshots.close()
        self._tables.forget_positions()
        self.intake.make_slot(lost)
        self.workers.restart()
        self._reconciler.begin(new_slot=True)
        self.intake.start()

    # Sharing what there is.

    def _share_cores(self, status: PipelineStatus) -> None:
        """Copies may use all of Spark's cores, unless a followed table waits for one."""
        limit = min(self._run.settings.max_copy_connections, self._cores)
        if any(state.followed and state.lag_seconds > _LAG_SECONDS for state in status.tables):
            limit = min(limit, max(1, self._cores - 1))
        self.workers.work.sync.reader.connections.limit = limit

    def _retire(self) -> None:
        """Remove applied segments by age, or at once if the log is full."""
        log = self._log
        if log.has_room:
            log.retire(self._needed(), self._run.settings.log.retain_seconds)
            return
        log.retire(self._needed(), 0)
        if not log.has_room:
            self._give_up_oldest()
            log.retire(self._needed(), 0)

    def _needed(self, *, without: int | None = None) -> Lsn:
        """The log still needs changes after this position, for tables that are followed, copied or
        coming back."""
        needed = [self.workers.routed]
        snapshot = self._snapshots.oldest()
        if snapshot is not None:
            needed.append(snapshot)
        needed += [
            self._as_of_now(state).position
            for state in self._tables.all()
            if state.position and not _is_given_up(state) and state.schema.oid != without
        ]
        return min(needed)

    def _give_up_oldest(self) -> None:
        """The log is full, and receiving waits. Give up the changes of tables that were set aside,
        so that they do not stop the others."""
        needed = self._needed()
        for state in self._tables.all():
            if state.set_aside is None or _is_given_up(state) or state.position != needed:
                continue
            if self._needed(without=state.schema.oid) == needed:
                continue  # others need the same: nothing would be won
            oid = state.schema.oid
            self._log.break_off(oid)
            self._tables.give_up_changes(
                oid,
                "The log is full, and no longer keeps this table's changes: copy it again with "
                f"`{command_for('resync', state.name)}`.",
            )
            _logger.warning(
                "the log is full; it no longer keeps the changes of a table that was set aside",
                table=str(state.name),
            )

    def _when_source_is_there(self, work: Callable[[], None]) -> None:
        call_again(
            work,
            stop=self._run.end.asked,
            can_retry=lambda error: isinstance(error, SourceError) and error.retry,
            wait=tenacity.wait_exponential(0.5, 30) + tenacity.wait_random(0, 0.5),
            tell=_tell,
        )


def _tell(error: BaseException, attempt: int, seconds: float) -> None:
    _logger.warning(
        "the source cannot be read; trying again",
        error=str(error),
        attempt=attempt,
        seconds=round(seconds, 1),
    )


def _is_given_up(state: TableState) -> bool:
    """Whether the log may drop the table's changes."""
    return state.set_aside is not None and state.set_aside.retry.kind is RetryKind.NONE


def _as_of(state: TableState, progress: ApplyProgress | None) -> TableState:
    """The state, with the current progress of the table's changes."""
    if progress is None:
        return state
    position = max(progress.position, state.position)
    return replace(state.changed(position=position), lag_seconds=progress.lag_seconds)
