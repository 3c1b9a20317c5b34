"""Paths as users write them."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["is_foreign_path", "is_there"]

# At the beginning only: further on, `c:` is a folder's name like any other.
_FOREIGN = re.compile(r"[a-z][a-z0-9+.\-]*:(?:[/\\]|$)|[a-z]:", re.IGNORECASE)


def is_foreign_path(path: str) -> bool:
    """Whether the text, read as a path of this machine, would make folders of what was meant for
    a URI (``s3://bucket/log``, also as ``s3:/bucket``) or for Windows (``C:\\log``).
    """
    return _FOREIGN.match(path) is not None


def is_there(path: Path) -> bool:
    """Whether the path is seen to be there. Not, if nothing can be seen there, about which
    ``Path.exists`` raises: who is to make or open the path then says why that cannot be done."""
    try:
        return path.exists()
    except OSError:
        return False
