"""Colours, the same in every command."""

from __future__ import annotations

from walflow.model import Phase

__all__ = ["PHASE_STYLES"]

PHASE_STYLES = {
    Phase.READY: "green",
    Phase.SYNC_DONE: "green",
    Phase.CATCHUP: "cyan",
    Phase.ERRORED: "bold red",
}
"""The other phases are yellow."""
