"""Where files are, as Iceberg says it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

__all__ = ["local_path", "resolves_here"]

_LOCAL = re.compile(r"(?:file:(?://)?)?(/[^/].*)", re.DOTALL)


def local_path(location: str) -> Path | None:
    """The file or folder, if it is one of this machine. A location is no URL, even if it looks like
    one: nothing in it is escaped."""
    found = _LOCAL.fullmatch(location)
    return None if found is None else Path(found[1])


def resolves_here(gateway: Any, file_io: Any) -> bool:
    """Whether a path without a scheme is a file of this machine for a table's FileIO: by
    ``fs.defaultFS`` it may be one of another file system."""
    from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        file = file_io.newInputFile("/")
        if not is_instance_of(gateway, file, "org.apache.iceberg.hadoop.HadoopInputFile"):
            return False
        scheme: str = file.getFileSystem().getUri().getScheme()
    except Py4JJavaError:
        # It wants a scheme, say.
        return False
    return scheme == "file"
