"""Code of the docs' pages, as their readers have it."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["ROOT", "TUTORIAL", "blocks", "python_blocks", "titled_blocks", "write_files"]

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorials" / "your-own-store-and-destination.md"

_TITLED = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
_ANY = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def titled_blocks(page: Path) -> dict[str, str]:
    """The files that a page has its readers make."""
    return dict(_TITLED.findall(page.read_text(encoding="utf-8")))


def blocks(page: Path) -> list[tuple[str, str]]:
    """All blocks of a page in their order, each with its language."""
    return _ANY.findall(page.read_text(encoding="utf-8"))


def python_blocks(page: Path) -> list[str]:
    return _PYTHON.findall(page.read_text(encoding="utf-8"))


def write_files(page: Path, folder: Path) -> None:
    for name, text in titled_blocks(page).items():
        (folder / name).write_text(text, encoding="utf-8")
