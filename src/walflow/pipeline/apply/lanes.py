"""Lanes: every table goes through the log at its own pace.

What is sealed in the log is routed to the lanes of the tables that it concerns. A lane has at
most one job at a time, which takes all that waits for its table, so a table that is slow, or
fails, or is catching up, holds up no other. A table that nothing waits for costs nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import structlog

from walflow.changelog import ChangeLog, Segment
from walflow.destinations.base import Destination
from walflow.errors import TableMoved, WalflowError
from walflow.model import Lsn, Phase, TableSchema
from walflow.pipeline.apply.batches import QUICK_RETRY_SECONDS, Batches, SegmentSlice
from walflow.pipeline.apply.maintenance import Maintenance
from walflow.pipeline.apply.pace import Pace
from walflow.pipeline.apply.schema_changes import Outgrown, SchemaChanger
from walflow.pipeline.state.table_states import Tables, TableState
from walflow.pipeline.timing import Timing

__all__ = ["LaneProgress", "Lanes"]

_READY_AT_ONCE = 16
_MET_SECONDS = 5.0
"""A table that has caught up in so short a round lags no more than others do."""
_IDLE_MAINTENANCE_SECONDS = 20.0
"""A table that nothing waits for is offered upkeep not more often than this."""

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Wish:
    """A form that the catalog shows."""

    form: TableSchema
    position: Lsn
    """All changes of former forms are before it."""
    since: Lsn
    """The version of the form that the destination's table had then."""


@dataclass(frozen=True, slots=True)
class LaneProgress:
    position: Lsn
    lag_seconds: float
    """The age of what waits, or is being applied."""
    verified: bool
    """Whether the position is the destination's own word, not a note of an earlier run."""


@dataclass(slots=True)
class _Lane:
    pace: Pace
    waiting: list[SegmentSlice] = field(default_factory=list)
    oldest: int = 0
    """Commit time of the oldest transaction that waits or is being applied, in microseconds."""
    running: bool = False
    applying: bool = False
    """Whether its job may have changes in hand; False while the table is only looked after."""
    left: bool = False
    """Nothing more is to be applied."""
    verified: bool = False
    """Whether the destination has been asked for its position."""
    written: Lsn = Lsn(0)
    """Where the destination's table is by what it said, or was given, last; 0: it was not asked.
    The table's position may be a later one: what comes in between does not concern it."""
    moved: bool = False
    """Whether its last batch was refused because the table was somewhere else."""
    seconds: float = math.inf
    """How long its last round took."""
    maintained: float = -math.inf
    """When upkeep was last offered to it although nothing waited."""


class Lanes:
    """All calls may come from several threads; ``route`` from one only."""

    def __init__(
        self,
        log: ChangeLog,
        destination: Destination,
        tables: Tables,
        batches: Batches,
        schema_changer: SchemaChanger,
        maintenance: Maintenance,
        *,
        stop: threading.Event,
        catching_up_at_once: int,
        outgrown: Callable[[int, str], None],
        overtaken: Callable[[int], None],
        failed: Callable[[int, Exception], None],
        fatal: Callable[[BaseException], None],
        timing: Timing = Timing(),
    ) -> None:
        """``outgrown``, ``failed`` and ``fatal`` are told from the jobs' threads, while the table
        still counts as being worked on; ``overtaken``, too: a form that was to be followed is no
        longer sure to be the newest. ``stop`` is set by ``close``."""
        self._log = log
        self._destination = destination
        self._tables = tables
        self._batches = batches
        self._schema_changer = schema_changer
        self._maintenance = maintenance
        self._outgrown = outgrown
        self._overtaken = overtaken
        self._failed = failed
        self._fatal = fatal
        self._batch_seconds = timing.batch
        self._lock = threading.Lock()
        self._lanes: dict[int, _Lane] = {}
        self._wishes: dict[int, _Wish] = {}
        self._routed = log.end
        self._stop = stop
        # Apart, so that tables that catch up, or are slow, leave room for the others.
        self._ready = ThreadPoolExecutor(_READY_AT_ONCE, thread_name_prefix="walflow-apply")
        self._catching_up = ThreadPoolExecutor(
            catching_up_at_once, thread_name_prefix="walflow-catchup"
        )

    # Who is followed.

    def enter(self, oid: int) -> None:
        """Follow the table from its position on."""
        with self._lock:
            state = self._tables.get(oid)
            assert state is not None
            assert oid not in self._lanes, f"{state.name} is followed already"
            lane = self._lanes[oid] = _Lane(Pace(self._batch_seconds))
            self._fill(lane, oid, state.position)
        # Also when nothing waits: the job makes it Ready.
        self._start(oid)

    def leave(self, oid: int) -> bool:
        """Stop following; False if a job of the table is still running: ask again later."""
        with self._lock:
            self._wishes.pop(oid, None)
            lane = self._lanes.get(oid)
            if lane is None:
                return True
            lane.left = True
            lane.waiting.clear()
            if lane.running:
                return False
            del self._lanes[oid]
            return True

    def follow(self, oid: int, form: TableSchema, position: Lsn, since: Lsn) -> None:
        """Bring the table to a form that the catalog shows, once all up to the position, which it
        was behind then, is applied; unless it has another form than the one since this version by
        then. Also if it is followed only later."""
        with self._lock:
            self._wishes[oid] = _Wish(form, position, since)
            due = self._routed >= position
        if due:
            self._start(oid)

    def route(self) -> set[int]:
        """Hand what the log has got since the last call to the tables' lanes.

        Returns the oids of tables that are not followed, but have changes.
        """
        strangers: set[int] = set()
        touched: set[int] = set()
        with self._lock:
            # In this order: a segment that is sealed in between must not count as routed.
            end = self._log.end
            for segment in self._log.segments(self._routed):
                end = max(end, segment.span.upto)
                for oid in {file.table for file in segment.files}:
                    lane = self._lanes.get(oid)
                    if lane is None:
                        strangers.add(oid)
                    elif not lane.left:
                        self._append(lane, oid, segment)
                        touched.add(oid)
            before, self._routed = self._routed, max(self._routed, end)
            touched |= {
                oid for oid, wish in self._wishes.items() if before < wish.position <= self._routed
            }
        for oid in touched:
            self._start(oid)
        return strangers

    def maintain_idle(self) -> None:
        """Start the upkeep of a table that is due and that nothing waits for: no round comes that
        it could follow. One at a call, as they take turns; costs nothing if there is none."""
        if self._maintenance.busy:
            return
        now = time.monotonic()
        with self._lock:
            idle = [
                (lane.maintained, oid)
                for oid, lane in self._lanes.items()
                if lane.verified and not (lane.waiting or lane.running or lane.left)
                if now - lane.maintained >= _IDLE_MAINTENANCE_SECONDS
            ]
        for _, oid in sorted(idle):
            state = self._tables.get(oid)
            if state is not None and state.phase is Phase.READY and self._maintenance.is_due(state):
                self._start(oid, applies=False)
                return

    def restart(self) -> None:
        """The log has begun anew. Nobody may be followed."""
        with self._lock:
            assert not self._lanes
            self._wishes.clear()
            self._routed = self._log.end

    def _fill(self, lane: _Lane, oid: int, position: Lsn) -> None:
        lane.waiting.clear()
        for segment in self._log.segments(position, self._routed, oid):
            self._append(lane, oid, segment)

    def _append(self, lane: _Lane, oid: int, segment: Segment) -> None:
        if not lane.waiting and not lane.applying:
            lane.oldest = segment.commit_time
        lane.waiting.append(SegmentSlice.of(segment, oid))

    # How far they are.

    @property
    def routed(self) -> Lsn:
        """All of the log up to here is in the destination, or in a lane, or concerns nobody."""
        return self._routed

    def progress(self, oid: int) -> LaneProgress | None:
        """None: the table is not followed."""
        with self._lock:
            lane = self._lanes.get(oid)
            if lane is None:
                return None
            idle = lane.verified and not lane.waiting and not lane.applying
            if idle:
                return LaneProgress(self._routed, 0.0, True)
            oldest, verified = lane.oldest, lane.verified
        state = self._tables.get(oid)
        position = Lsn(0) if state is None else state.position
        lag = max(0.0, time.time() - oldest / 1e6) if oldest else 0.0
        return LaneProgress(position, lag, verified)

    # Jobs.

    def _start(self, oid: int, *, applies: bool = True) -> None:
        state = self._tables.get(oid)
        ready = state is not None and state.phase is Phase.READY
        with self._lock:
            lane = self._lanes.get(oid)
            if lane is None or lane.running or lane.left or self._stop.is_set():
                return
            lane.running, lane.applying = True, applies
            if not applies:
                lane.maintained = time.monotonic()
            slow = _MET_SECONDS < lane.seconds < math.inf
            pool = self._ready if ready and not slow else self._catching_up
            job = pool.submit(self._run, oid, lane)
        job.add_done_callback(self._check)

    def _check(self, job: Future[None]) -> None:
        if (error := job.exception()) is not None:
            self._fatal(error)

    def _run(self, oid: int, lane: _Lane) -> None:
        try:
            self._apply_waiting(oid, lane)
            self._applied(lane)
            self._maintain(oid, lane)
            self._idle(oid, lane)
        except Outgrown as outgrown:
            if self._give_up(lane):
                self._outgrown(oid, outgrown.reason)
            self._end(oid, lane)
        except Exception as error:
            if self._give_up(lane):
                self._failed(oid, error)
            self._end(oid, lane)

    def _applied(self, lane: _Lane) -> None:
        with self._lock:
            lane.applying = False
            lane.oldest = lane.waiting[0].commit_time if lane.waiting else 0

    def _maintain(self, oid: int, lane: _Lane) -> None:
        state = self._tables.get(oid)
        if state is not None and state.phase is Phase.READY and not lane.left:
            self._maintenance.between_batches(state)

    def _give_up(self, lane: _Lane) -> bool:
        """Apply nothing more; False if it had been left before: then nobody cares how it ended."""
        with self._lock:
            was_left, lane.left = lane.left, True
            return not was_left

    def _end(self, oid: int, lane: _Lane) -> None:
        with self._lock:
            lane.running = False
            self._lanes.pop(oid, None)

    def _idle(self, oid: int, lane: _Lane) -> None:
        """The job ends; what has come meanwhile waits for its turn, like other tables' changes."""
        with self._lock:
            lane.running = False
            if lane.left:
                self._lanes.pop(oid, None)
                return
            wish = self._wishes.get(oid)
            due = wish is not None and wish.position <= self._routed
            more = (bool(lane.waiting) or due) and not self._stop.is_set()
        if more:
            self._start(oid)

    def _apply_waiting(self, oid: int, lane: _Lane) -> None:
        """Apply what waits, or as much of it as goes into one batch. With that a table may have met
        the others."""
        state = self._tables.get(oid)
        if state is None or self._stop.is_set():
            return
        if not lane.verified or self._has_work(oid, lane):
            # Each time: somebody may have set the table back since the last batch.
            state = self._verify(state, lane)
        with self._lock:
            slices, lane.waiting = lane.waiting, []
            routed, wish = self._routed, self._wishes.get(oid)
            if lane.left:
                return
            if slices:
                lane.applying = True
                lane.oldest = slices[0].commit_time
        began = time.monotonic()
        slices = [
            segment_slice for segment_slice in slices if segment_slice.span.upto > state.position
        ]
        left = self._apply(state, lane, slices) if slices else ()
        if left:
            with self._lock:
                lane.waiting = [*left, *lane.waiting]
        elif wish is not None and wish.position <= routed:
            self._fulfil(self._tables.get(oid) or state, wish)
        state = self._tables.get(oid) or state
        reached = self._reached(lane, state, time.monotonic() - began, took_all=not left)
        if reached is not None:
            self._settle(state, reached)

    def _has_work(self, oid: int, lane: _Lane) -> bool:
        with self._lock:
            wish = self._wishes.get(oid)
            return bool(lane.waiting) or (wish is not None and wish.position <= self._routed)

    def _apply(
        self, state: TableState, lane: _Lane, slices: Sequence[SegmentSlice]
    ) -> Sequence[SegmentSlice]:
        """Apply one batch; returns what has to wait for the next one."""
        count = lane.pace.fitting([segment_slice.bytes for segment_slice in slices])
        began = time.monotonic()
        try:
            applied = self._batches.apply(state, slices[:count], self._begins(state, lane))
        except TableMoved as moved:
            if lane.moved:
                raise Outgrown(f"it is not as walflow left it: {moved}") from moved
            # Where it is is asked anew, and it goes on from there.
            lane.moved, lane.verified = True, False
            return slices
        lane.moved = False
        if applied.written is not None:
            lane.written = applied.written
        size = sum(segment_slice.bytes for segment_slice in slices[: count - len(applied.left)])
        lane.pace.took(size, time.monotonic() - began)
        return [*applied.left, *slices[count:]]

    def _begins(self, state: TableState, lane: _Lane) -> Lsn:
        """Where a batch begins: where the destination's table is, if it tells."""
        positioned = self._destination.capabilities.keeps_position
        return lane.written if positioned else state.position

    def _fulfil(self, state: TableState, wish: _Wish) -> None:
        oid = state.schema.oid
        with self._lock:
            if self._wishes.get(oid) is wish:
                del self._wishes[oid]
        if state.schema.version == wish.since:
            self._schema_changer.follow(state, wish.form)
        else:
            # The log had another one, which may be newer than what the catalog showed.
            self._overtaken(oid)

    def _reached(
        self, lane: _Lane, state: TableState, seconds: float, *, took_all: bool
    ) -> Lsn | None:
        """Where the table has met the others; None: not yet. ``seconds``: its round took them;
        ``took_all``: it left nothing of what had waited for it."""
        before, lane.seconds = lane.seconds, seconds
        with self._lock:
            if lane.left:
                return None
            if not lane.waiting:
                return self._routed
        # A busy table is never done; what it lacks now does not get much less any more.
        met = took_all and (seconds < _MET_SECONDS or seconds > before / 2)
        return state.position if met else None

    def _verify(self, state: TableState, lane: _Lane) -> TableState:
        """The store's position is a hint, and what we did last may be undone: the destination
        knows. No batch begins anywhere else."""
        oid = state.schema.oid
        # First: a form that the table was to have is asked about as one that it has.
        state = self._schema_changer.finish(self._tables.get(oid) or state)
        if self._destination.capabilities.keeps_position:
            applied = self._ask(state)
            if applied is None:
                raise Outgrown(
                    "the destination has no complete copy of it in the form that the settings "
                    "ask for"
                )
            position = state.position if applied == lane.written else applied
            if lane.written and applied != lane.written:
                _logger.warning(
                    "someone else has set a table back, or ahead; it goes on from there",
                    table=str(state.name),
                    position=str(lane.written),
                    now=str(applied),
                )
                if applied < lane.written and applied <= state.schema.version:
                    # What a change of its form did to older rows may be undone, its columns not.
                    raise Outgrown("it was set back to before its columns changed")
            if position != state.position:
                self._tables.update(oid, position=position)
                with self._lock:
                    if not lane.left:
                        self._fill(lane, oid, position)
            # Last: until the position was told, segments may have been let go by the former one.
            if not self._log.covers(oid, position):
                raise Outgrown("the log no longer has all that the destination lacks")
            lane.written = applied
        lane.verified = True
        return self._tables.get(oid) or state

    def _ask(self, state: TableState) -> Lsn | None:
        """Where the destination's table is. A second time if it does not answer: this is asked
        before each batch, and what a moment heals need not set the table aside."""
        try:
            return self._destination.applied(state.destination_schema)
        except Exception as error:
            if isinstance(error, WalflowError) and not error.retry:
                raise
            if self._stop.wait(QUICK_RETRY_SECONDS):
                raise
            _logger.warning(
                "a table was not asked where it is; trying again",
                table=str(state.name),
                error=str(error),
            )
        return self._destination.applied(state.destination_schema)

    def _settle(self, state: TableState, reached: Lsn) -> None:
        """The table has met the others."""
        if state.phase is Phase.CATCHUP:
            position = max(state.position, reached)
            state = self._tables.move(state.schema.oid, Phase.SYNC_DONE, position=position)
        if state.phase is Phase.SYNC_DONE:
            self._tables.move(state.schema.oid, Phase.READY, attempts=0, error=None)
            _logger.info("a table is ready", table=str(state.name), position=str(state.position))

    def close(self) -> None:
        """Let the jobs that run finish what they write, and start no others."""
        self._stop.set()
        self._ready.shutdown()
        self._catching_up.shutdown()
