"""Progress with speeds: what the live view and the progress lines show."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from walflow.model import Lsn, Phase, TableName
from walflow.pipeline.state.phases import FOLLOWED
from walflow.pipeline.state.status import PipelineStatus
from walflow.pipeline.state.table_states import TableState
from walflow.states import TableError, stands_at

__all__ = ["Meter", "Progress", "TableProgress"]

_WINDOW_SECONDS = 6.0
_COPY_SECONDS = 30.0
"""Longer, because copies report one range at a time."""


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
    rows_per_second: float = 0.0
    """The copy's speed, while it runs."""

    @property
    def seconds_left(self) -> float | None:
        """Until the copy is complete, at this speed; None if unknown."""
        if self.phase is not Phase.DATA_SYNC or not self.rows_per_second:
            return None
        left = self.rows_expected - self.rows_copied
        # The number of rows is an estimate.
        return left / self.rows_per_second if left > 0 else None

    @property
    def set_aside(self) -> bool:
        return self.phase is Phase.ERRORED

    @property
    def failing(self) -> bool:
        """Whether it is set aside, or is tried again and has not succeeded yet."""
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
    """The lag of the table that is furthest behind."""

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
    def rows_per_second(self) -> float:
        return sum(table.rows_per_second for table in self.tables)

    @property
    def seconds_left(self) -> float | None:
        """Until the running copies are complete; None if unknown."""
        left = (table.seconds_left for table in self.tables)
        return max((seconds for seconds in left if seconds is not None), default=None)

    @property
    def copying(self) -> int:
        return sum(table.copying for table in self.tables)

    @property
    def set_aside(self) -> tuple[TableProgress, ...]:
        """By name, as all tables are."""
        return tuple(table for table in self.failing if table.set_aside)

    @property
    def failing(self) -> tuple[TableProgress, ...]:
        """By name, so that tables that are tried again and again keep their places."""
        failing = (table for table in self.tables if table.failing)
        return tuple(sorted(failing, key=lambda table: table.name))

    @property
    def lag_bytes(self) -> int | None:
        """The lag of the followed table that is furthest behind; None if none is followed."""
        followed = [table.lag_bytes for table in self.tables if not table.set_aside]
        return max((lag for lag in followed if lag is not None), default=None)


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    changes: dict[TableName, int]
    rows: dict[TableName, int]
    """Rows of the copies that ran then."""


class Meter:
    """Computes progress from statuses that it gets a few times a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[_Sample] = deque()

    def measure(self, status: PipelineStatus) -> Progress:
        now = _Sample(
            self._clock(),
            {state.name: state.changes_applied for state in status.tables},
            {s.name: s.rows_copied for s in status.tables if s.phase is Phase.DATA_SYNC},
        )
        self._samples.append(now)
        while now.at - self._samples[0].at > _COPY_SECONDS:
            self._samples.popleft()
        recent = next(s for s in self._samples if now.at - s.at <= _WINDOW_SECONDS)
        tables = tuple(
            _table(
                state,
                status.wal_end,
                _speed(recent.changes.get(state.name, 0), state.changes_applied, recent, now),
                self._copying_speed(state.name, now),
            )
            for state in status.tables
        )
        return Progress(tables, status.log_end, status.applied, status.lag_seconds)

    def _copying_speed(self, name: TableName, now: _Sample) -> float:
        if name not in now.rows:
            return 0.0
        first = next(sample for sample in self._samples if name in sample.rows)
        # A copy that starts over has fewer rows than before.
        return max(0.0, _speed(first.rows[name], now.rows[name], first, now))


def _speed(before: int, after: int, first: _Sample, last: _Sample) -> float:
    return (after - before) / max(1.0, last.at - first.at)


def _table(
    state: TableState, wal_end: Lsn, changes_per_second: float, rows_per_second: float
) -> TableProgress:
    return TableProgress(
        name=state.name,
        phase=state.phase,
        since=state.since,
        rows_expected=state.rows_expected,
        rows_copied=state.rows_copied,
        changes=state.changes_applied,
        changes_per_second=changes_per_second,
        lag_bytes=max(0, wal_end - state.position) if stands_at(state) in FOLLOWED else None,
        lag_seconds=state.lag_seconds if state.followed else None,
        attempts=state.attempts,
        error=state.error,
        rows_per_second=rows_per_second,
    )
