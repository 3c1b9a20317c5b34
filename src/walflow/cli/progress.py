"""How a pipeline goes, with speeds: what the live view and the progress lines show."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from walflow.model import Lsn, Phase
from walflow.pipeline.pipeline import PipelineStatus

__all__ = ["Meter", "Progress", "TableProgress"]

_WINDOW_SECONDS = 6.0


@dataclass(frozen=True, slots=True)
class TableProgress:
    name: str
    phase: Phase
    rows_expected: int
    rows_copied: int
    changes: int
    changes_per_second: float
    lag_bytes: int | None
    """None until the table is followed."""
    lag_seconds: float | None

    @property
    def copying(self) -> bool:
        return self.lag_bytes is None


@dataclass(frozen=True, slots=True)
class Progress:
    tables: tuple[TableProgress, ...]
    log_end: Lsn
    applied: Lsn
    lag_seconds: float

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
    def lag_bytes(self) -> int | None:
        """None while a table is being copied."""
        if any(table.lag_bytes is None for table in self.tables):
            return None
        return max((table.lag_bytes or 0 for table in self.tables), default=0)


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
            TableProgress(
                name=str(state.name),
                phase=state.phase,
                rows_expected=state.rows_expected,
                rows_copied=state.rows_copied,
                changes=state.changes_applied,
                changes_per_second=(state.changes_applied - before.get(str(state.name), 0))
                / seconds,
                lag_bytes=max(0, status.wal_end - state.position) if state.followed else None,
                lag_seconds=_lag_seconds(status, state.position) if state.followed else None,
            )
            for state in status.tables
        )
        return Progress(tables, status.log_end, status.applied, status.lag_seconds)


def _lag_seconds(status: PipelineStatus, position: Lsn) -> float:
    """Tables go forward together, so the oldest waiting transaction is the same for all."""
    return status.lag_seconds if position < status.log_end else 0.0
