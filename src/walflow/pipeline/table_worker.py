"""The worker of one table: it owns the table's phase, from the first copy to the last change.

A worker is an actor without a thread. It gets events, and its work runs on thread pools that all
workers share, one job for each table at a time. So a table that is slow, fails, or catches up does
not hold up others, and an idle table costs nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future

import structlog

from walflow.changelog import FinishedCopy, Segment
from walflow.errors import RequestRefused, Stopped, WalflowError
from walflow.evolution import NotFollowed
from walflow.failpoints import failpoint
from walflow.model import Lsn, Phase
from walflow.pasting import command_for
from walflow.pipeline.apply.applier import ApplyProgress, SeenSchema, TableApplier
from walflow.pipeline.publication.comparison import check_rivals
from walflow.pipeline.state.phases import COPYING, FOLLOWED
from walflow.pipeline.state.retries import Postponed, is_of_the_source, next_pause
from walflow.pipeline.state.table_states import TableState
from walflow.pipeline.table_events import (
    Asked,
    CopyAgain,
    Event,
    Refused,
    Renamed,
    Retry,
    SnapshotPassed,
)
from walflow.pipeline.table_work import TableWork
from walflow.states import RetryKind, stands_at
from walflow.stores.base import Action

__all__ = ["TableWorker"]

_logger = structlog.get_logger(__name__)


class TableWorker:
    """All calls may come from several threads.

    If no job of the table runs, the thread that posts an event handles it at once. Otherwise the
    job is interrupted as soon as possible, its result is ignored, and its thread handles the event.
    """

    def __init__(self, oid: int, work: TableWork) -> None:
        self.oid = oid
        self._work = work
        self._lock = threading.Lock()
        self._events: deque[Event] = deque()
        self._running = False
        """Whether a thread works on the table."""
        self._job: object | None = None
        """The job that waits for a thread of a pool. Any other job that starts is outdated."""
        self._held = False
        """Whether all work waits for ``go_on``."""
        self._break_off = threading.Event()
        """Set to make a running copy end soon."""
        self._loading = False
        """Whether the running copy has finished reading the source."""
        self._size = 0
        """How large the table is in the source, in bytes."""
        self._postponed: Postponed | None = None
        self._applier: TableApplier | None = None
        """Exists while changes are applied."""
        self._seen: SeenSchema | None = None
        """For the next applier."""

    # What is asked of it.

    def add(self, segment: Segment) -> None:
        """A segment with changes of the table was sealed."""
        with self._lock:
            applier = self._applier
        if applier is not None:
            applier.add(segment)
            self._start()

    def see(self, seen: SeenSchema) -> None:
        """The catalog shows another schema of the table. The table is brought to it even if no
        change comes."""
        with self._lock:
            taken = self._applier is not None and self._applier.see(seen)
            self._seen = None if taken else seen
        self._start()

    def post(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)
            if not (isinstance(event, Asked) and event.action is Action.RETRY):
                self._interrupt()
            if self._running:
                return
            self._running = True
        self._end_turn()

    def pause(self) -> bool:
        """Do no work until ``go_on``, or until the table is copied again. Returns False if a job
        still runs: it ends soon, so call again later."""
        with self._lock:
            self._held = True
            self._interrupt()
            return not self._running

    def go_on(self, size: int = 0) -> None:
        """Work as the table's phase requires. ``size``: of the table in the source, in bytes."""
        with self._lock:
            self._held = False
            self._size = size or self._size
        self._start()

    def tick(self) -> None:
        """Check what depends on time: the log reaches a snapshot's position, or an attempt is
        due."""
        with self._lock:
            if self._running or self._held:
                return
            postponed = self._postponed
        if postponed is not None and postponed.until <= time.monotonic():
            self._start()
        state = self._state()
        if state is None:
            return
        if state.phase is Phase.SYNC_WAIT and self._work.log.end >= state.position:
            self.post(SnapshotPassed())
        elif _is_due(state):
            _logger.info("trying a table again", table=str(state.name), attempt=state.attempts)
            self.post(Retry())

    def look(self) -> None:
        """More of the log was routed: a schema that the catalog showed may be due."""
        with self._lock:
            applier = self._applier
        if applier is not None and applier.sees_schema and applier.has_work:
            self._start()

    def maintain(self) -> None:
        """Have the destination's table maintained, although no changes wait."""
        self._start(maintains=True)

    def stop(self) -> None:
        """Interrupt a copy. No new work begins, because the pipeline's end was requested before."""
        with self._lock:
            self._job = None
            if self._applier is None:
                self._break_off.set()

    # How it stands.

    @property
    def held(self) -> bool:
        return self._held

    @property
    def busy(self) -> bool:
        """Whether a job runs."""
        return self._running

    @property
    def copies(self) -> bool:
        """Whether the table is being copied, by a job that runs."""
        with self._lock:
            return self._running and self._applier is None

    @property
    def is_idle(self) -> bool:
        """Whether the table is followed and has no changes waiting."""
        with self._lock:
            applier = self._applier
            return applier is not None and not (self._running or self._job or applier.has_work)

    @property
    def needs_snapshot(self) -> bool:
        """Whether the table reads the source, or will soon."""
        with self._lock:
            if self._postponed is not None and self._postponed.soon:
                return True
            at_work = self._running or self._job is not None
            return at_work and self._applier is None and not self._loading

    @property
    def progress(self) -> ApplyProgress | None:
        """None: no changes are being applied to the table."""
        with self._lock:
            applier = None if self._events else self._applier
        return None if applier is None else applier.progress

    def is_through(self, position: Lsn) -> bool:
        """Whether all changes of the table up to the position are applied."""
        progress = self.progress
        return progress is not None and progress.verified and progress.position >= position

    def _state(self) -> TableState | None:
        return self._work.tables.get(self.oid)

    def _current(self) -> TableState:
        state = self._state()
        assert state is not None
        return state

    # Jobs.

    def _interrupt(self) -> None:
        """Let the running job end soon, and keep a waiting one from starting."""
        self._job = None
        self._break_off.set()
        self._postponed = None
        if self._applier is not None:
            self._seen = self._applier.leave() or self._seen
            if not self._running:
                self._applier = None

    def _start(self, *, maintains: bool = False) -> None:
        """Start the job that the phase requires, unless one runs or waits."""
        pools = self._work.pools
        with self._lock:
            state = self._state()
            at_work = self._running or self._job is not None
            if state is None or at_work or self._held or self._work.end.asked.is_set():
                return
            if state.phase in COPYING:
                if self._postponed is not None and self._postponed.until > time.monotonic():
                    return
                job = self._job = object()
                pools.copying.submit(self._size, lambda: self._run(job))
                return
            if state.phase not in FOLLOWED:
                return
            if self._applier is None:
                self._applier = self._new_applier(state)
            elif not (maintains or self._applier.has_work):
                return
            ready = state.phase is Phase.READY and not self._applier.slow
            job = self._job = object()
            (pools.ready if ready else pools.catching_up).submit(self._run, job)

    def _new_applier(self, state: TableState) -> TableApplier:
        work = self._work
        seen, self._seen = self._seen, None
        return TableApplier(state, work.batches, work.routed, seen)

    def _run(self, job: object) -> None:
        with self._lock:
            if self._job is not job:
                return
            self._job, self._running = None, True
            self._break_off.clear()
            applier = self._applier
        try:
            self._work_on(applier)
        except BaseException as error:
            # A table's state could not be stored, or worse.
            self._work.end.fail(error)
        finally:
            self._end_turn()

    def _work_on(self, applier: TableApplier | None) -> None:
        try:
            if applier is None:
                self._copy()
            else:
                self._apply(applier)
        except NotFollowed as reason:
            if not (self._interrupted or self._work.end.asked.is_set()):
                self._copy_again(CopyAgain(reason.reason))
        except Exception as error:
            if not self._interrupted:
                self._failed(error, copying=applier is None)

    @property
    def _interrupted(self) -> bool:
        """Whether an event waits, so that the job's result no longer matters."""
        return self._break_off.is_set()

    def _end_turn(self) -> None:
        """Handle the events, then continue. Called by the thread that works on the table."""
        try:
            while (event := self._next_event()) is not None:
                self._handle(event)
        except BaseException as error:
            self._work.end.fail(error)
            with self._lock:
                self._running = False
            return
        self._start()

    def _next_event(self) -> Event | None:
        """The next event. None: there is none, and no thread works on the table any more."""
        with self._lock:
            if self._applier is not None and self._applier.left:
                self._applier = None
            if self._events and not self._work.end.asked.is_set():
                return self._events.popleft()
            self._running = False
            return None

    def _failed(self, error: Exception, *, copying: bool) -> None:
        work = self._work
        if copying:
            if isinstance(error, Stopped) and work.end.asked.is_set():
                return
            work.batches.run.metrics.worker_failed("copy", error)
            if is_of_the_source(error):
                self._postpone(error)
                return
        self._postponed = None
        if not work.end.explains(error):
            self._set_aside(error)

    def _set_aside(self, error: Exception) -> None:
        self._leave()
        state = self._work.tables.fail(self.oid, error)
        assert state.error is not None
        retry = state.error.retry
        _logger.warning(
            "a table was set aside",
            table=str(state.name),
            error=state.error.reason,
            code=state.error.code,
            hint=state.error.hint,
            phase=state.error.phase.value,
            attempts=state.attempts,
            next_attempt_seconds=None if retry.at is None else round(retry.at - time.time(), 1),
        )

    def _leave(self) -> None:
        """Apply no more changes, until the phase requires it again."""
        with self._lock:
            if self._applier is not None:
                self._applier.leave()
            self._seen = None

    # Copying: Init, DataSync, FinishedCopy.

    def _copy(self) -> None:
        sync, tables = self._work.sync, self._work.tables
        with sync.in_pool():
            copy = self._read_copy()
            if self._interrupted:
                return
            sync.reader.check(self.oid)
            state = self._current()
            self._loading = True
            try:
                failpoint("sync.finished_copy", state.name)
                began = time.monotonic()
                sync.load(state, copy)
                seconds = self._current().stored.copy_seconds + time.monotonic() - began
                state = tables.move(
                    self.oid, Phase.SYNC_WAIT, copy_seconds=seconds, attempts=0, error=None
                )
                sync.loaded(state, copy)
            finally:
                self._loading = False
        self._postponed = None

    def _read_copy(self) -> FinishedCopy:
        """Read the table's rows into the log's folder."""
        sync, tables, oid = self._work.sync, self._work.tables, self.oid
        state, began = self._current(), time.monotonic()
        if state.phase is Phase.FINISHED_COPY:
            copy = sync.finished(state)
            if copy is not None:
                return copy
            tables.move(oid, Phase.DATA_SYNC)
        with sync.begun(self._current()) as begun:
            facts = {
                "schema": begun.table.schema,
                "membership": begun.table.membership,
                "rows_expected": begun.table.rows,
                "position": begun.position,
            }
            if self._current().phase is Phase.INIT:
                tables.move(oid, Phase.DATA_SYNC, **facts)
            else:
                tables.update(oid, **facts)
            failpoint("sync.data_sync", begun.table.name)
            copy = sync.read(begun, self._break_off)
        self._work.log.store_schema(copy.schema)
        tables.store_schema(copy.schema)
        tables.move(
            oid,
            Phase.FINISHED_COPY,
            schema=copy.schema,
            position=copy.position,
            rows_copied=copy.rows,
            copy_seconds=time.monotonic() - began,
        )
        return copy

    def _postpone(self, error: Exception) -> None:
        state = self._current()
        with self._lock:
            pause = next_pause(self._postponed, state.rows_copied)
            self._postponed = Postponed(time.monotonic() + pause, pause, state.rows_copied)
        _logger.warning(
            "a copy was interrupted; going on soon",
            table=str(state.name),
            error=str(error),
            seconds=round(pause, 1),
        )

    # Applying changes: Catchup, SyncDone, Ready.

    def _apply(self, applier: TableApplier) -> None:
        if not applier.has_work:
            self._maintain()
            return
        met = applier.apply(self._current())
        if met is None:
            return
        tables, state = self._work.tables, self._current()
        if state.phase is Phase.CATCHUP:
            state = tables.move(self.oid, Phase.SYNC_DONE, position=max(state.position, met))
        if state.phase is Phase.SYNC_DONE:
            state = tables.move(self.oid, Phase.READY, attempts=0, error=None)
            _logger.info("a table is ready", table=str(state.name), position=str(state.position))
        self._maintain()

    def _maintain(self) -> None:
        state = self._current()
        if state.phase is Phase.READY and not self._interrupted:
            self._work.maintenance.between_batches(state)

    # Events. Nothing else works on the table meanwhile.

    def _handle(self, event: Event) -> None:
        match event:
            case CopyAgain():
                self._copy_again(event)
            case Renamed(name, destination):
                self._work.tables.rename(self.oid, name, destination)
            case Refused(error):
                self._set_aside(error)
            case Retry(resolved):
                if self._current().set_aside is not None:
                    self._work.tables.retry(self.oid, resolved=resolved)
            case SnapshotPassed():
                if self._current().phase is Phase.SYNC_WAIT:
                    self._work.tables.move(self.oid, Phase.CATCHUP)
            case Asked(action, outcome):
                self._answer(action, outcome)

    def _copy_again(self, event: CopyAgain) -> None:
        work, state, table = self._work, self._current(), event.published
        _logger.info("a table is copied again", table=str(state.name), reason=event.reason)
        self._leave()
        with self._lock:
            self._held = False
        if table is None:
            work.sync.drop(self.oid)
            work.tables.start_over(self.oid)
            return
        if not state.membership.continues(table.membership):
            # What was read of it may be of a time ahead of the log, which cannot tell.
            work.log.break_off(self.oid)
            work.sync.drop(self.oid)
        self._size = table.bytes
        state = work.tables.start_over(
            self.oid,
            schema=table.schema,
            destination=event.destination or state.destination,
            membership=table.membership,
        )
        if event.refusal is not None:
            self._set_aside(event.refusal)
        elif state.error is not None and state.error.passing:
            # The cause is gone, or the table would be refused.
            work.tables.update(self.oid, error=None, attempts=0)

    def _answer(self, action: Action, outcome: Future[str]) -> None:
        try:
            match action:
                case Action.RETRY:
                    answer = self._retry()
                case Action.ROLLBACK:
                    answer = self._roll_back()
                case Action.RESYNC:
                    answer = self._resync()
        except WalflowError as refusal:
            outcome.set_exception(refusal)
        else:
            outcome.set_result(answer)

    def _retry(self) -> str:
        state, tables = self._current(), self._work.tables
        error = state.set_aside
        if error is None and state.error is not None:
            return f"{state.name} is being tried again already"
        if error is None:
            raise RequestRefused(
                f"{state.name} was not set aside: its phase is {state.phase}.",
                hint=f"To copy it again: `{command_for('resync', state.name)}`",
            )
        if error.retry.kind is RetryKind.NONE:
            raise RequestRefused(
                f"Trying {state.name} again cannot help: {error.hint}",
                hint=f"To copy it again: `{command_for('resync', state.name)}`",
            )
        check_rivals(state, tables)
        after = tables.retry(self.oid)
        return f"{state.name} is tried again from {after.phase}"

    def _resync(self) -> str:
        state = self._current()
        check_rivals(state, self._work.tables)
        self._copy_again(CopyAgain("as asked"))
        return f"{state.name} is copied again"

    def _roll_back(self) -> str:
        """Go back to the previous state, from which the table continues if it can. Raises
        NothingToRollBack."""
        state, tables = self._current(), self._work.tables
        check_rivals(state, tables)
        # Until the catalog was looked at: the table may have been another one then.
        with self._lock:
            self._held = True
        *earlier, now = map(stands_at, tables.history(self.oid))
        # It is not known how much of a copy the destination's table has got.
        keeps_position = self._work.batches.destination.capabilities.keeps_position
        unsure = now in COPYING and not keeps_position
        if unsure and earlier and earlier[-1] in FOLLOWED:
            after = tables.start_over(self.oid)
        else:
            after = tables.roll_back(self.oid)
            if unsure and stands_at(after) in FOLLOWED:
                # A store without histories says it only now.
                after = tables.start_over(self.oid)
        if after.phase is Phase.ERRORED:
            return f"{state.name} is set aside again, as it was before"
        return f"{state.name} went back from {state.phase} to {after.phase}"


def _is_due(state: TableState) -> bool:
    if state.set_aside is None:
        return False
    retry = state.set_aside.retry
    return retry.kind is RetryKind.TIMED and (retry.at is None or retry.at <= time.time())
