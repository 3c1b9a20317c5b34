"""Where tables are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["table_console"]

_NO_WRAPPING = 100_000


def table_console() -> Console:
    """As wide as the terminal; in files and pipes lines are not wrapped."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_NO_WRAPPING)
