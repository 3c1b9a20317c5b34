"""How output looks: consoles for tables, and colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from walflow.model import Phase

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["PHASE_STYLES", "table_console"]

_NO_WRAPPING = 100_000


def table_console() -> Console:
    """As wide as the terminal; in files and pipes lines are not wrapped."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_NO_WRAPPING)


PHASE_STYLES = {
    Phase.READY: "green",
    Phase.SYNC_DONE: "green",
    Phase.CATCHUP: "cyan",
    Phase.ERRORED: "bold red",
}
"""The other phases are yellow."""
