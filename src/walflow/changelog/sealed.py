"""Records in files, with their checksums: a disk, or a copy of a folder, may change them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

__all__ = ["sealed", "unsealed"]

_CHECKSUM = "checksum"


def sealed(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """A record as JSON, with its checksum."""
    return json.dumps({**content, _CHECKSUM: _of_record(content)}, indent=indent).encode()


def unsealed(text: bytes) -> dict[str, Any]:
    """The record. Raises ValueError if it is none, or not as it was written."""
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("it is no record")
    if content.pop(_CHECKSUM, None) != _of_record(content):
        raise ValueError("its checksum is another one")
    return content


def _of_record(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
