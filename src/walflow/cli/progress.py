"""How a pipeline goes, with speeds: what the live view and the progress lines show."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from walflow.model import Lsn, Phase, TableName
from walflow.pipeline.phases import FOLLOWED
from walflow.pipeline.status import PipelineStatus
from walflow.pipeline.tables import TableState
from walflow.states import TableError, stands_at

__all__ = ["Meter", "Progress", "TableProgress"]

_WINDOW_SECONDS = 6.0


@dataclass(frozen=True, slots=True)
class TableProgress:
    name: TableName
    phase: Phase
    since: float
    """Unix time at which the phase was entered."""
    rows_expected: int
    rows_copied: int
    changes: int
    changes_per_second: float
    lag_bytes: int | None
    """None until the table is followed."""
    lag_seconds: float | None
    """None also while the table is set aside."""
    attempts: int = 0
    error: TableError | None = None

    @property
    def set_aside(self) -> bool:
        return self.error is not None

    @property
    def copying(self) -> bool:
        return not self.set_aside and self.phase not in FOLLOWED


@dataclass(frozen=True, slots=True)
class Progress:
    tables: tuple[TableProgress, ...]
    log_end: Lsn
    applied: Lsn
    lag_seconds: float
    """Of the table that is furthest behind."""

    @property
    def rows_copied(self) -> int:
        return sum(table.rows_copied for table in self.tables)

    @property
    def changes(self) -> int:
        return sum(table.changes for table in self.tables)

    @property
    def changes_per_second(self) -> float:
        return sum(table.changes_per_second for table in self.tables)

    @property
    def copying(self) -> int:
        return sum(table.copying for table in self.tables)

    @property
    def set_aside(self) -> tuple[TableProgress, ...]:
        """What waits longest first."""
        return tuple(
            sorted(
                (table for table in self.tables if table.set_aside),
                key=lambda table: (table.since, table.name),
            )
        )

    @property
    def lag_bytes(self) -> int | None:
        """Of the followed table that is furthest behind; None if none is followed."""
        followed = [table.lag_bytes for table in self.tables if not table.set_aside]
        return max((lag for lag in followed if lag is not None), default=None)


class Meter:
    """Makes progress from statuses that are given to it a few times a second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, int]]] = deque()

    def measure(self, status: PipelineStatus) -> Progress:
        now = time.monotonic()
        counts = {str(state.name): state.changes_applied for state in status.tables}
        self._samples.append((now, counts))
        while now - self._samples[0][0] > _WINDOW_SECONDS:
            self._samples.popleft()
        since, before = self._samples[0]
        seconds = max(1.0, now - since)
        tables = tuple(
            _table(state, status.wal_end, before.get(str(state.name), 0), seconds)
            for state in status.tables
        )
        return Progress(tables, status.log_end, status.applied, status.lag_seconds)


def _table(state: TableState, wal_end: Lsn, before: int, seconds: float) -> TableProgress:
    return TableProgress(
        name=state.name,
        phase=state.phase,
        since=state.since,
        rows_expected=state.rows_expected,
        rows_copied=state.rows_copied,
        changes=state.changes_applied,
        changes_per_second=(state.changes_applied - before) / seconds,
        lag_bytes=max(0, wal_end - state.position) if stands_at(state) in FOLLOWED else None,
        lag_seconds=state.lag_seconds if state.followed else None,
        attempts=state.attempts,
        error=state.error,
    )
