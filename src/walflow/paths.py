"""Paths as users write them."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["is_foreign_path", "is_there"]

# At the beginning only: further on, `c:` is a folder's name like any other.
_FOREIGN = re.compile(r"[a-z][a-z0-9+.\-]*:(?:[/\\]|$)|[a-z]:", re.IGNORECASE)


def is_foreign_path(path: str) -> bool:
    r"""Whether the text, used as a path on this machine, would create folders although it is a URI
    (``s3://bucket/log``, also as ``s3:/bucket``) or a path of Windows (``C:\log``)."""
    return _FOREIGN.match(path) is not None


def is_there(path: Path) -> bool:
    """Whether the path is seen to exist. False also if that cannot be seen, where ``Path.exists``
    raises: opening or creating the path then raises the error."""
    try:
        return path.exists()
    except OSError:
        return False
