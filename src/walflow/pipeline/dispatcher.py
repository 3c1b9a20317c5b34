"""Who has which table: the syncer, a lane, or nobody because it was set aside."""

from __future__ import annotations

import time

import structlog

from walflow.changelog import ChangeLog
from walflow.destinations.base import Destination
from walflow.model import Lsn, Phase, TableSchema
from walflow.pipeline.apply.lanes import Lanes
from walflow.pipeline.state.table_states import Tables, TableState
from walflow.pipeline.table_sync.table_sync import SYNCED_PHASES, TableSync
from walflow.states import RetryKind, TableError

__all__ = ["Dispatcher"]

_logger = structlog.get_logger(__name__)


class Dispatcher:
    """Used by the coordinating thread, but for ``failed``."""

    def __init__(
        self,
        log: ChangeLog,
        destination: Destination,
        tables: Tables,
        table_sync: TableSync,
        lanes: Lanes,
    ) -> None:
        self._log = log
        self._destination = destination
        self._tables = tables
        self._table_sync = table_sync
        self._lanes = lanes

    def dispatch(self, oid: int, size: int = 0) -> None:
        """Hand the table to whoever its phase says."""
        state = self._tables.get(oid)
        if state is None or state.phase in (Phase.ERRORED, Phase.SYNC_WAIT):
            return  # `tick` sees to these
        if state.phase not in SYNCED_PHASES and not self._covered(state):
            _logger.warning(
                "changes are missing in the log; the table is copied again",
                table=str(state.name),
                position=str(state.position),
            )
            state = self._tables.start_over(oid)
        if state.phase in SYNCED_PHASES:
            self._table_sync.put(oid, size)
        else:
            self._lanes.enter(oid)

    def has(self, oid: int) -> bool:
        """Whether someone works on the table."""
        return self._table_sync.has(oid) or self._lanes.progress(oid) is not None

    def is_through(self, oid: int, position: Lsn) -> bool:
        """Whether all changes of a table that is followed up to the position are applied."""
        progress = self._lanes.progress(oid)
        return progress is not None and progress.verified and progress.position >= position

    def withdraw(self, oid: int) -> bool:
        """Take the table away from whoever has it; False if that takes a while: ask again."""
        return self._table_sync.remove(oid) and self._lanes.leave(oid)

    def follow(self, oid: int, form: TableSchema, position: Lsn, since: Lsn) -> None:
        """Have the table brought to the form that the catalog shows; see Lanes.follow."""
        self._lanes.follow(oid, form, position, since)

    def tick(self) -> None:
        """What time brings: snapshots that the log has passed, attempts that are due."""
        self._table_sync.tick()
        for state in self._tables.all():
            oid = state.schema.oid
            waits = state.phase is Phase.SYNC_WAIT
            due = state.set_aside is not None and _is_due(state.set_aside)
            if not (waits or due) or self.has(oid):
                continue
            if waits and self._log.end >= state.position:
                self._tables.move(oid, Phase.CATCHUP)
                self.dispatch(oid)
            elif due:
                _logger.info("trying a table again", table=str(state.name), attempt=state.attempts)
                self.retry(oid)

    def retry(self, oid: int, *, mended: bool = False) -> TableState:
        """A table that was set aside goes on where it failed. Nobody may be working on it.
        ``mended``: the cause is known to be gone."""
        state = self._tables.retry(oid, mended=mended)
        self.dispatch(oid)
        return state

    def failed(self, oid: int, error: Exception) -> None:
        """Set the table aside. From the threads that work."""
        state = self._tables.fail(oid, error)
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

    def _covered(self, state: TableState) -> bool:
        oid = state.schema.oid
        if self._log.covers(oid, state.position):
            return True
        if not self._destination.capabilities.keeps_position:
            return False
        # The store's position is a hint, and may be old.
        try:
            applied = self._destination.applied(state.destination_schema)
        except Exception:
            return True  # the lane meets it again, and sets the table aside
        if applied is None or not self._log.covers(oid, applied):
            return False
        self._tables.update(oid, position=applied)
        return True


def _is_due(error: TableError) -> bool:
    retry = error.retry
    return retry.kind is RetryKind.TIMED and (retry.at is None or retry.at <= time.time())
