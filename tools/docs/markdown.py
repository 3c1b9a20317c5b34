"""Small pieces of Markdown for the generated pages."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence

__all__ = ["cell", "code", "said", "table"]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, and an empty line."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return [*lines, ""]


def cell(text: str) -> str:
    """Text that cannot break its table cell."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def code(text: object) -> str:
    return f"`{text}`"


def said(thing: object) -> str:
    """The text of a docstring, with code as in Markdown."""
    text = inspect.cleandoc(thing if isinstance(thing, str) else thing.__doc__ or "")
    return text.replace("``", "`")
