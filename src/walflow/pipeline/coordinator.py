"""The coordinating thread: it works on no table itself, so that none has to wait for another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

import structlog
import tenacity

from walflow.changelog import ChangeLog
from walflow.config import Settings
from walflow.errors import SlotLost, SourceError
from walflow.model import Lsn
from walflow.observe.metrics import PipelineMetrics
from walflow.pasting import command_for
from walflow.pipeline.apply.consistent_cuts import Progress
from walflow.pipeline.apply.lanes import LaneProgress, Lanes
from walflow.pipeline.apply.maintenance import Maintenance
from walflow.pipeline.capture.intake import Intake
from walflow.pipeline.dispatcher import Dispatcher
from walflow.pipeline.publication.reconciler import PublicationReconciler
from walflow.pipeline.state.lease import LeaseKeeper
from walflow.pipeline.state.requests import Requests
from walflow.pipeline.state.status import PipelineStatus
from walflow.pipeline.state.table_states import Tables, TableState
from walflow.pipeline.table_sync.copy_connections import Connections
from walflow.pipeline.table_sync.snapshots import Snapshots
from walflow.pipeline.table_sync.table_sync import TableSync
from walflow.pipeline.timing import Timing
from walflow.states import RetryKind

__all__ = ["Coordinator", "Parts"]

_IDLE_SECONDS = 0.5
_PAUSE_SECONDS = 0.1
_SAVE_SECONDS = 2.0
_MAINTENANCE_SECONDS = 1.0
_LAG_SECONDS = 2.0

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """Who works in a pipeline."""

    lease: LeaseKeeper
    log: ChangeLog
    tables: Tables
    intake: Intake
    snapshots: Snapshots
    connections: Connections
    table_sync: TableSync
    lanes: Lanes
    maintenance: Maintenance
    progress: Progress
    dispatcher: Dispatcher
    reconciler: PublicationReconciler
    requests: Requests


class Coordinator:
    def __init__(
        self,
        settings: Settings,
        parts: Parts,
        metrics: PipelineMetrics,
        *,
        cores: int,
        stop: threading.Event,
        timing: Timing,
    ) -> None:
        """``cores``: how many tasks Spark runs at once."""
        self._settings = settings
        self._parts = parts
        self._metrics = metrics
        self._cores = cores
        self._timing = timing
        self._stop = stop
        self._asked = self._saved = self._maintained = 0.0
        self._begun = threading.Event()
        self.last: PipelineStatus | None = None
        """The status of a moment ago."""

    @property
    def begun(self) -> bool:
        """Whether all tables that are published are known."""
        return self._begun.is_set()

    def run(self) -> None:
        """Until told to stop, or an error that ends the pipeline."""
        intake, reconciler = self._parts.intake, self._parts.reconciler
        with closing(reconciler):
            self._when_source_is_there(lambda: reconciler.begin(new_slot=intake.made_slot))
            # What was asked for while nobody ran comes first: who waits for the end waits for it.
            self._parts.requests.look()
            self._begun.set()
            while not self._stop.is_set():
                self._turn()

    def _turn(self) -> None:
        parts = self._parts
        parts.lease.check()
        self._unless_lost(parts.intake.check)
        parts.log.wait_for_change(parts.lanes.routed, _IDLE_SECONDS)
        unfollowed = parts.lanes.route()
        parts.dispatcher.tick()
        hurry = any(parts.tables.get(oid) is None for oid in unfollowed)
        self._unless_lost(lambda: parts.reconciler.look(hurry=hurry))
        now = time.monotonic()
        if now - self._asked >= self._timing.requests:
            self._asked = now
            parts.requests.look()
        status = self.status()  # which is for the metrics, too
        self._share_cores(status)
        parts.progress.look(status)
        self._retire()
        if now - self._maintained >= _MAINTENANCE_SECONDS:
            self._maintained = now
            parts.lanes.maintain_idle()
        if now - self._saved >= _SAVE_SECONDS:
            self._saved = now
            parts.tables.save()

    # How it goes.

    def status(self) -> PipelineStatus:
        # First: what is routed after it may be applied already, but not the other way round.
        lanes = self._parts.lanes
        routed = lanes.routed
        known = [(state, lanes.progress(state.schema.oid)) for state in self._parts.tables.all()]
        states = tuple(_as_of(state, progress) for state, progress in known)
        status = PipelineStatus(
            states,
            self._parts.intake.wal_end,
            self._parts.log.end,
            routed,
            min((state.position for state in states if state.followed), default=routed),
            max((state.lag_seconds for state in states), default=0.0),
            # Between two phases, or not asked about yet: what is known of its position is old.
            any(
                state.followed and (progress is None or not progress.verified)
                for state, progress in known
            ),
        )
        self.last = status
        self._metrics.end_to_end_lag_bytes.set(status.lag_bytes)
        self._metrics.end_to_end_lag_seconds.set(status.lag_seconds)
        self._metrics.set_phases({state.name: state.phase for state in states})
        self._metrics.tables_failing.set(sum(state.error is not None for state in states))
        return status

    def _as_of_now(self, state: TableState) -> TableState:
        return _as_of(state, self._parts.lanes.progress(state.schema.oid))

    # The slot.

    def _unless_lost(self, work: Callable[[], None]) -> None:
        try:
            work()
        except SlotLost as error:
            if self._settings.source.on_slot_lost != "resync":
                self._metrics.slot_invalidations.inc()
                raise
            lost = error
        else:
            return
        self._when_source_is_there(lambda: self._begin_anew(lost))

    def _begin_anew(self, lost: SlotLost) -> None:
        """The slot is lost, and changes with it: everything is copied again under a new one."""
        parts = self._parts
        parts.intake.stop()
        for state in parts.tables.all():
            while not parts.dispatcher.withdraw(state.schema.oid):
                parts.table_sync.cancel()
                if self._stop.wait(_PAUSE_SECONDS):
                    return
        parts.snapshots.close()
        parts.tables.forget_positions()
        parts.intake.make_slot(lost)
        parts.lanes.restart()
        parts.reconciler.begin(new_slot=True)
        parts.intake.start()

    # Sharing what there is.

    def _share_cores(self, status: PipelineStatus) -> None:
        """Copies may have all of Spark's cores, unless tables that are followed wait for one."""
        limit = min(self._settings.max_copy_connections, self._cores)
        if any(state.followed and state.lag_seconds > _LAG_SECONDS for state in status.tables):
            limit = min(limit, max(1, self._cores - 1))
        self._parts.connections.limit = limit

    def _retire(self) -> None:
        """Let go of applied segments by age, or at once when they keep new ones out."""
        log = self._parts.log
        if log.has_room:
            log.retire(self._needed(), self._settings.log.retain_seconds)
            return
        log.retire(self._needed(), 0)
        if not log.has_room:
            self._give_up_oldest()
            log.retire(self._needed(), 0)

    def _needed(self, *, without: int | None = None) -> Lsn:
        """Who is followed, is copied or comes back needs what the log has after this."""
        needed = [self._parts.lanes.routed]
        snapshot = self._parts.snapshots.oldest()
        if snapshot is not None:
            needed.append(snapshot)
        needed += [
            self._as_of_now(state).position
            for state in self._parts.tables.all()
            if state.position and not _is_given_up(state) and state.schema.oid != without
        ]
        return min(needed)

    def _give_up_oldest(self) -> None:
        """The log is full, and receiving waits: a table that was set aside must not stop all."""
        needed = self._needed()
        for state in self._parts.tables.all():
            if state.set_aside is None or _is_given_up(state) or state.position != needed:
                continue
            if self._needed(without=state.schema.oid) == needed:
                continue  # others need the same: nothing would be won
            oid = state.schema.oid
            self._parts.log.break_off(oid)
            self._parts.tables.give_up_changes(
                oid,
                "The log is full, and no longer keeps this table's changes: copy it again with "
                f"`{command_for('resync', state.name)}`.",
            )
            _logger.warning(
                "the log is full; it no longer keeps the changes of a table that was set aside",
                table=str(state.name),
            )

    def _when_source_is_there(self, work: Callable[[], None]) -> None:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda error: isinstance(error, SourceError) and error.retry
            ),
            stop=tenacity.stop_when_event_set(self._stop),
            wait=tenacity.wait_exponential(0.5, 30) + tenacity.wait_random(0, 0.5),
            sleep=self._sleep,
            before_sleep=_tell,
            reraise=True,
        )
        retrying(work)

    def _sleep(self, seconds: float) -> None:
        self._stop.wait(seconds)


def _tell(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    _logger.warning("the source cannot be read; trying again", error=str(error))


def _is_given_up(state: TableState) -> bool:
    """Whether the log need not keep the table's changes."""
    return state.set_aside is not None and state.set_aside.retry.kind is RetryKind.NONE


def _as_of(state: TableState, progress: LaneProgress | None) -> TableState:
    """With what the table's lane knows better."""
    if progress is None:
        return state
    position = max(progress.position, state.position)
    return replace(state.changed(position=position), lag_seconds=progress.lag_seconds)
