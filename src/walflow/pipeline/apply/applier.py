"""Applies one table's changes from the change log to the destination, in batches, at the table's
own pace."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from walflow.changelog import Segment
from walflow.errors import TableMoved
from walflow.evolution import NotFollowed
from walflow.model import Lsn, TableSchema
from walflow.pipeline.apply.batches import QUICK_RETRY, Batches, SegmentSlice
from walflow.pipeline.apply.pace import Pace
from walflow.pipeline.retrying import call_again
from walflow.pipeline.state.retries import is_worth_retrying
from walflow.pipeline.state.table_states import TableState

__all__ = ["ApplyProgress", "Routed", "SeenSchema", "TableApplier"]

_MET_SECONDS = 5.0
"""A table whose last batch was this short, in seconds, is not behind the others."""

_logger = structlog.get_logger(__name__)


@dataclass(slots=True)
class Routed:
    """How far the log has been handed to the tables' workers. One thread writes it."""

    upto: Lsn
    """Everything in the log up to here is applied, or is in a worker's queue, or belongs to no
    followed table."""


@dataclass(frozen=True, slots=True)
class SeenSchema:
    """A schema of the table that the catalog shows."""

    schema: TableSchema
    position: Lsn
    """All changes of earlier schemas are before this position."""
    since: Lsn
    """The version of the schema that the destination's table had when the catalog was read."""


@dataclass(frozen=True, slots=True)
class ApplyProgress:
    position: Lsn
    lag_seconds: float
    """The age of what waits, or is being applied."""
    verified: bool
    """Whether the destination itself reported the position. Otherwise it is the store's note of an
    earlier run."""


class TableApplier:
    """Applies the changes of one table from its position on.

    ``add``, ``see``, ``leave`` and the properties may be called from several threads; ``apply`` by
    one at a time.
    """

    def __init__(
        self,
        state: TableState,
        batches: Batches,
        routed: Routed,
        seen: SeenSchema | None = None,
    ) -> None:
        self._oid = state.schema.oid
        self._batches = batches
        self._routed = routed
        self._pace = Pace(batches.run.timing.batch)
        self._lock = threading.Lock()
        self._waiting: list[SegmentSlice] = []
        self._newest = Lsn(0)
        """The end of the last segment that was added. Earlier segments are not added again."""
        self._oldest = 0
        """Commit time of the oldest transaction that waits or is being applied, in microseconds."""
        self._applying = False
        self._left = False
        """No more batches are begun."""
        self._verified = False
        """Whether the destination has been asked for its position."""
        self._written = Lsn(0)
        """The position of the destination's table, as it last reported or accepted; 0: not asked
        yet. The table's own position may be later: changes in between do not concern it."""
        self._moved = False
        """Whether the last batch was refused because the destination's table had another
        position."""
        self._seconds = math.inf
        """How long the last batch took."""
        self._seen = seen
        self._fill(state.position)

    # From other threads.

    def add(self, segment: Segment) -> None:
        """A segment that has changes of the table was sealed."""
        with self._lock:
            if not self._left and segment.span.upto > self._newest:
                self._append(segment)

    def see(self, seen: SeenSchema) -> bool:
        """Have the table brought to a schema that the catalog shows, once everything up to its
        position is applied, unless the table has another schema by then. Returns False if the
        applier has ended."""
        with self._lock:
            if not self._left:
                self._seen = seen
            return not self._left

    def leave(self) -> SeenSchema | None:
        """Apply nothing after the batch that is being written. Returns the schema that the table
        was still to be brought to, if any."""
        with self._lock:
            self._left = True
            self._waiting.clear()
            seen, self._seen = self._seen, None
            return seen

    @property
    def left(self) -> bool:
        return self._left

    @property
    def sees_schema(self) -> bool:
        """Whether the table still has to be brought to a schema that the catalog shows."""
        return self._seen is not None

    @property
    def slow(self) -> bool:
        """Whether batches take long, although the table was not behind the others before."""
        return _MET_SECONDS < self._seconds < math.inf

    @property
    def has_work(self) -> bool:
        with self._lock:
            return not self._verified or self._has_changes()

    @property
    def progress(self) -> ApplyProgress:
        with self._lock:
            # Read first: what is routed later may wait already.
            routed = self._routed.upto
            verified = self._verified and not self._left
            if verified and not self._applying and not self._has_changes():
                return ApplyProgress(routed, 0.0, True)
            oldest = self._oldest
        state = self._batches.tables.get(self._oid)
        lag = max(0.0, time.time() - oldest / 1e6) if oldest else 0.0
        return ApplyProgress(Lsn(0) if state is None else state.position, lag, verified)

    def _has_changes(self) -> bool:
        """Whether changes wait, or a schema that is due."""
        return bool(self._waiting) or self._due() is not None

    def _due(self) -> SeenSchema | None:
        seen = self._seen
        return seen if seen is not None and seen.position <= self._routed.upto else None

    def _fill(self, position: Lsn) -> None:
        self._waiting.clear()
        self._newest = Lsn(0)
        for segment in self._batches.log.segments(position, table=self._oid):
            self._append(segment)

    def _append(self, segment: Segment) -> None:
        if not self._waiting and not self._applying:
            self._oldest = segment.commit_time
        self._waiting.append(SegmentSlice.of(segment, self._oid))
        self._newest = segment.span.upto

    # The work.

    def apply(self, state: TableState) -> Lsn | None:
        """Apply one batch of what waits, or bring the table to a schema that the catalog shows.
        Returns the position at which the table is no longer behind the others. None: not yet.
        Raises NotFollowed."""
        if self._batches.run.end.asked.is_set():
            return None
        if self.has_work:
            # Each time: somebody may have set the table back since the last batch.
            state = self._verify(state)
        with self._lock:
            if self._left:
                return None
            slices, self._waiting = self._waiting, []
            seen, self._applying = self._due(), True
            if slices:
                self._oldest = slices[0].commit_time
        began = time.monotonic()
        waited = [one for one in slices if one.span.upto > state.position]
        rest = self._apply_batch(state, waited) if waited else ()
        if rest:
            with self._lock:
                self._waiting = [] if self._left else [*rest, *self._waiting]
        elif seen is not None:
            self._bring_to(seen)
        met = self._met(time.monotonic() - began, took_all=not rest)
        with self._lock:
            self._applying = False
            self._oldest = self._waiting[0].commit_time if self._waiting else 0
        return met

    def _apply_batch(
        self, state: TableState, slices: Sequence[SegmentSlice]
    ) -> Sequence[SegmentSlice]:
        """Returns the slices that have to wait for the next batch."""
        count = self._pace.fitting([one.bytes for one in slices])
        # A batch begins where the destination's table is, if the destination tells.
        positioned = self._batches.destination.capabilities.keeps_position
        begins = self._written if positioned else state.position
        began = time.monotonic()
        try:
            applied = self._batches.apply(state, slices[:count], begins)
        except TableMoved as moved:
            if self._moved:
                raise NotFollowed(f"it is not as walflow left it: {moved}") from moved
            # The destination is asked again where the table is, and it goes on from there.
            self._moved, self._verified = True, False
            return slices
        self._moved = False
        if applied.written is not None:
            self._written = applied.written
        size = sum(one.bytes for one in slices[: count - len(applied.left)])
        self._pace.took(size, time.monotonic() - began)
        return [*applied.left, *slices[count:]]

    def _bring_to(self, seen: SeenSchema) -> None:
        with self._lock:
            if self._seen is seen:
                self._seen = None
        changer, state = self._batches.schema_changer, self._state()
        if state.schema.version == seen.since:
            changer.follow(state, seen.schema)
        else:
            # The log had another schema, which may be newer than what the catalog showed.
            changer.look_again.set()
            _logger.debug("a table's schema is looked at again", table=str(state.name))

    def _met(self, seconds: float, *, took_all: bool) -> Lsn | None:
        """The position at which the table is no longer behind the others. None: not yet.
        ``seconds``: how long its batch took. ``took_all``: whether the batch took everything that
        waited."""
        before, self._seconds = self._seconds, seconds
        with self._lock:
            if self._left:
                return None
            if not self._waiting:
                return self._routed.upto
        # A busy table is never done; what it lacks now does not get much less any more.
        met = took_all and (seconds < _MET_SECONDS or seconds > before / 2)
        return self._state().position if met else None

    def _state(self) -> TableState:
        state = self._batches.tables.get(self._oid)
        assert state is not None
        return state

    # Where the table is.

    def _verify(self, state: TableState) -> TableState:
        """Compare the table's position with the destination's. The store's position is only a hint,
        and a commit may have been undone since: a batch begins only at the position that the
        destination reports."""
        batches, log = self._batches, self._batches.log
        if not self._verified and not self._covered(state):
            raise NotFollowed("changes are missing in the log")
        # First: a schema that the table was to have is asked about as one that it has.
        state = batches.schema_changer.finish(state)
        if batches.destination.capabilities.keeps_position:
            applied = self._ask(state)
            if applied is None:
                raise NotFollowed(
                    "the destination has no complete copy of it in the mode of the settings"
                )
            position = state.position if applied == self._written else applied
            if self._written and applied != self._written:
                _logger.warning(
                    "a table's position was changed by something else; it resumes there",
                    table=str(state.name),
                    position=str(self._written),
                    now=str(applied),
                )
                if applied < self._written and applied <= state.schema.version:
                    # What a change of schema did to older rows may be undone, its columns not.
                    raise NotFollowed("it was restored to before its columns changed")
            if position != state.position:
                batches.tables.update(self._oid, position=position)
                with self._lock:
                    if not self._left:
                        self._fill(position)
            # Last: until the position was told, segments may have been let go by the former one.
            if not log.covers(self._oid, position):
                raise NotFollowed("the log no longer has all that the destination lacks")
            self._written = applied
        self._verified = True
        return self._state()

    def _covered(self, state: TableState) -> bool:
        """Whether the log has everything that the destination lacks. Checked before any batch. The
        store's position may be too old for the log when the destination's is not."""
        log = self._batches.log
        if log.covers(self._oid, state.position):
            return True
        if not self._batches.destination.capabilities.keeps_position:
            return False
        applied = self._ask(state)
        return applied is not None and log.covers(self._oid, applied)

    def _ask(self, state: TableState) -> Lsn | None:
        """The position of the destination's table. Asks a second time if the first fails: this call
        comes before each batch, and a short failure need not set the table aside."""

        def tell(error: BaseException, attempt: int, seconds: float) -> None:
            _logger.warning(
                "a table's position could not be read; trying again",
                table=str(state.name),
                error=str(error),
            )

        return call_again(
            lambda: self._batches.destination.applied(state.destination_schema),
            stop=self._batches.run.end.asked,
            can_retry=is_worth_retrying,
            wait=QUICK_RETRY,
            tell=tell,
            attempts=2,
        )
