"""Where files are, as Iceberg says it."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["local_path"]

_LOCAL = re.compile(r"(?:file:(?://)?)?(/[^/].*)", re.DOTALL)


def local_path(location: str) -> Path | None:
    """The file or folder, if it is one of this machine. A location is no URL, even if it looks like
    one: nothing in it is escaped."""
    found = _LOCAL.fullmatch(location)
    return None if found is None else Path(found[1])
