"""The phases of a table as a state machine, with all allowed moves in one table."""

from __future__ import annotations

from walflow.errors import IllegalMove
from walflow.model import Phase, TableName

__all__ = ["COPYING", "FOLLOWED", "MOVES", "check_move", "resumed"]

_STEPS: dict[Phase, frozenset[Phase]] = {
    Phase.INIT: frozenset({Phase.DATA_SYNC}),
    Phase.DATA_SYNC: frozenset({Phase.FINISHED_COPY}),
    # Back, if the files that were read are no longer there when they are to be loaded.
    Phase.FINISHED_COPY: frozenset({Phase.SYNC_WAIT, Phase.DATA_SYNC}),
    Phase.SYNC_WAIT: frozenset({Phase.CATCHUP}),
    Phase.CATCHUP: frozenset({Phase.SYNC_DONE}),
    Phase.SYNC_DONE: frozenset({Phase.READY}),
    Phase.READY: frozenset(),
    # Where a retry goes on.
    Phase.ERRORED: frozenset({Phase.DATA_SYNC, Phase.FINISHED_COPY, Phase.CATCHUP}),
}

MOVES: dict[Phase, frozenset[Phase]] = {
    # Every table can fail, and every table can start over.
    phase: steps | {Phase.ERRORED, Phase.INIT}
    for phase, steps in _STEPS.items()
}
"""The phases that a table can move to, by its phase."""

COPYING = frozenset({Phase.INIT, Phase.DATA_SYNC, Phase.FINISHED_COPY})
"""The phases in which the table is copied."""

FOLLOWED = frozenset({Phase.CATCHUP, Phase.SYNC_DONE, Phase.READY})
"""The phases in which the log's changes are applied."""


def check_move(table: TableName, before: Phase, after: Phase) -> None:
    if after not in MOVES[before]:
        raise IllegalMove(f"{table} cannot go from {before} to {after}")


def resumed(failed_in: Phase) -> Phase:
    """The phase in which a table continues that failed in this one."""
    match failed_in:
        case Phase.INIT | Phase.DATA_SYNC:
            return Phase.DATA_SYNC
        case Phase.FINISHED_COPY:
            return Phase.FINISHED_COPY
        case _:
            return Phase.CATCHUP
