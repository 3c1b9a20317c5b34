"""The status of a whole pipeline."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from walflow.errors import TablesSetAside
from walflow.model import Lsn
from walflow.pipeline.state.table_states import TableState
from walflow.stores.base import Report

__all__ = ["PipelineStatus"]

_LATER = (
    "{names}: the next attempt comes by itself, in a run that lasts until then; `walflow status` "
    "says when."
)


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """The whole pipeline at one moment."""

    tables: tuple[TableState, ...]
    wal_end: Lsn
    """How far the source's log reached at the last message."""
    log_end: Lsn
    """Everything up to here is durable in the change log."""
    routed: Lsn
    """The position of tables that have applied everything."""
    applied: Lsn
    """Everything up to here is in the destination, for every followed table."""
    lag_seconds: float
    """The age of the oldest transaction in the log that is not applied; 0 if there is none."""
    uncertain: bool = False
    """Whether some followed table's position is only that of an earlier run."""
    batches: Mapping[str, int] = field(default_factory=dict)
    """How many batches were written since the start, by the destination's engine."""

    @property
    def lag_bytes(self) -> int:
        return max(0, self.wal_end - self.applied)

    # ``by``: a Unix time. A table that was set aside is waited for only if its next attempt comes
    # by itself until then; without it, however late that is.

    def reached(self, position: Lsn, by: float = math.inf) -> bool:
        """Whether everything up to the position is in the destination, for every table that is
        waited for."""
        return not (self.under_way(by) or self.uncertain) and self.applied >= position

    @property
    def set_aside(self) -> tuple[TableState, ...]:
        """Tables that continue only after an operator's request."""
        return self.left_out()

    @property
    def copying(self) -> bool:
        """Whether a table is being copied, catches up, or is tried again by itself."""
        return self.under_way()

    def left_out(self, by: float = math.inf) -> tuple[TableState, ...]:
        """Tables that were set aside and are not waited for."""
        return tuple(
            state
            for state in self.tables
            if state.set_aside is not None and not state.comes_back(by)
        )

    def under_way(self, by: float = math.inf) -> bool:
        """Whether some table is being copied or catches up, or its next attempt is waited for."""
        return any(
            not state.followed and (state.set_aside is None or state.comes_back(by))
            for state in self.tables
        )

    def report(self) -> Report:
        """The part of the status that other processes can see."""
        behind = {
            state.schema.oid: state.position
            for state in self.tables
            if state.followed and state.position < self.routed
        }
        return Report(
            self.wal_end,
            self.log_end,
            self.applied,
            self.lag_seconds,
            time.time(),
            self.routed,
            behind,
            self.batches,
        )

    def check_none_set_aside(self, by: float = math.inf) -> None:
        """Raise TablesSetAside if some tables were set aside and are not waited for."""
        aside = self.left_out(by)
        if not aside:
            return
        errors = [(state.name, state.error) for state in aside if state.error is not None]
        listed = "\n".join(f"  {name}: {error.reason}" for name, error in errors)
        later = [str(state.name) for state in aside if not state.waits_for_operator]
        helped: dict[str, list[str]] = {}
        for name, error in errors:
            if error.hint:
                helped.setdefault(error.hint, []).append(str(name))
        hints = [f"{', '.join(names)}: {hint}" for hint, names in helped.items()]
        raise TablesSetAside(
            f"Everything is up to date but {len(aside)} table"
            f"{'' if len(aside) == 1 else 's'} that had to be set aside:\n{listed}",
            hint="\n".join(
                [
                    *hints,
                    *([_LATER.format(names=", ".join(later))] if later else []),
                    "Try them again with `walflow retry --all-errored`",
                ]
            ),
        )
