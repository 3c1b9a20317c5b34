"""What a pipeline knows of its tables while it runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from walflow.model import Lsn, Phase, TableName, TableSchema

__all__ = ["TableState", "Tables"]


@dataclass(frozen=True, slots=True)
class TableState:
    """One table, as of now."""

    schema: TableSchema
    """The form that the destination's table has."""
    phase: Phase = Phase.INIT
    position: Lsn = Lsn(0)
    """All changes of the table up to here are in the destination."""
    rows_expected: int = 0
    """The planner's estimate, for progress only."""
    rows_copied: int = 0
    copy_seconds: float = 0.0
    changes_applied: int = 0

    @property
    def name(self) -> TableName:
        return self.schema.name

    @property
    def followed(self) -> bool:
        """Whether the log's changes are applied to it."""
        return self.phase in (Phase.CATCHUP, Phase.SYNC_DONE, Phase.READY)


class Tables:
    """The states of all tables, by oid. All calls may come from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[int, TableState] = {}

    def put(self, state: TableState) -> None:
        with self._lock:
            self._states[state.schema.oid] = state

    def update(self, oid: int, **changes: object) -> TableState:
        """Replace some of a table's fields."""
        with self._lock:
            state = replace(self._states[oid], **changes)  # type: ignore[arg-type]
            self._states[oid] = state
            return state

    def forget(self, oid: int) -> None:
        """The table is no longer published. Repeats safely."""
        with self._lock:
            self._states.pop(oid, None)

    def get(self, oid: int) -> TableState | None:
        with self._lock:
            return self._states.get(oid)

    def all(self) -> list[TableState]:
        """All states, ordered by table name."""
        with self._lock:
            return sorted(self._states.values(), key=lambda state: state.name)

    def applied(self) -> Lsn | None:
        """The position that every table has reached; None without tables."""
        with self._lock:
            return min((state.position for state in self._states.values()), default=None)
