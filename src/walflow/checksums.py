"""Checksums of files: whether a file still is as it was written."""

from __future__ import annotations

import zlib
from pathlib import Path

__all__ = ["checksum_of", "damage_of"]

_PIECE_BYTES = 1 << 20


def checksum_of(path: Path) -> int:
    """The checksum of the file's content. (CRC-32: 0.03 s of CPU for 100 MB, without the GIL.)"""
    found, piece = 0, memoryview(bytearray(_PIECE_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(piece):
            found = zlib.crc32(piece[:count], found)
    return found


def damage_of(path: Path, size: int, checksum: int) -> str | None:
    """What is wrong with a file that was written with this size and checksum. None: nothing."""
    try:
        there = path.stat().st_size
        if there != size:
            return f"{path} has {there:,} bytes, not the {size:,} that were written"
        if checksum_of(path) != checksum:
            return f"{path} is not as it was written: its checksum does not match"
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read: {error}"
    return None
