"""Small pieces of Markdown that the generated pages are made of."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence

__all__ = ["cell", "code", "said", "table"]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table's lines, and an empty one after it."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return [*lines, ""]


def cell(text: str) -> str:
    """Text that stays in its cell."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def code(text: object) -> str:
    return f"`{text}`"


def said(thing: object) -> str:
    """What a docstring says, with code as Markdown has it."""
    text = inspect.cleandoc(thing if isinstance(thing, str) else thing.__doc__ or "")
    return text.replace("``", "`")
