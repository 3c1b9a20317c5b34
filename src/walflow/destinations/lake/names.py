"""Names of folders for names of the source's tables, and back."""

from __future__ import annotations

import re

from walflow.destinations.lake.owner import OWN_NAMESPACE
from walflow.model import TableName

__all__ = ["folder_names", "name_of_folder"]


def folder_names(name: TableName) -> tuple[str, str]:
    """The names of the namespace and of the table in a lake."""
    return _folder_name(name.schema), _folder_name(name.name)


def _folder_name(name: str) -> str:
    """The name, with what folders, paths and JVMs trip over written as ``~`` and hex.

    Hadoop's paths give a meaning to ``%``, ``:`` and a leading dot or underscore, and a JVM in the
    C locale cannot write names that are not ASCII. Our own namespace keeps the name that it is
    told by.
    """
    if name == OWN_NAMESPACE:
        return name
    escaped = re.sub(
        r"[^A-Za-z0-9_.-]", lambda match: "".join(f"~{b:02X}" for b in match[0].encode()), name
    )
    return re.sub(r"^[._-]", lambda match: f"~{ord(match[0]):02X}", escaped)


def name_of_folder(folder: str) -> str | None:
    """The name that such a folder is for; None if it is for none of ours."""
    try:
        name = re.sub(r"(?:~[0-9A-F]{2})+", lambda match: _unescaped(match[0]), folder)
    except UnicodeDecodeError:
        return None
    return name if _folder_name(name) == folder else None


def _unescaped(escaped: str) -> str:
    return bytes.fromhex(escaped.replace("~", "")).decode()
