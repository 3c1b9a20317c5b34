"""Deletion vectors: which rows of a data file are gone, as Puffin files have them.

A Puffin file is its magic, blobs, and a footer that says where they are. Such a blob is a bitmap in
the portable form of 64-bit Roaring, with a length, a magic of its own and a checksum around it.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyroaring import BitMap64

__all__ = ["DeletionVector", "read_vector", "write_vectors"]

_MAGIC = b"PFA1"
_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"
_ROW_POSITION = 2147483645
"""The id of Iceberg's column of positions."""


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """A deletion vector in a file."""

    location: str
    file_bytes: int
    offset: int
    size: int
    count: int
    """How many rows are gone."""


def write_vectors(
    path: Path, location: str, bitmaps: Mapping[str, BitMap64]
) -> dict[str, DeletionVector]:
    """Write the bitmaps of data files (by their locations) to a new file. ``location``: what
    Iceberg calls the file."""
    content = bytearray(_MAGIC)
    places: dict[str, tuple[int, int]] = {}
    for referenced, bitmap in bitmaps.items():
        blob = _blob(bitmap)
        places[referenced] = len(content), len(blob)
        content += blob
    blobs = [
        {
            "type": "deletion-vector-v1",
            "fields": [_ROW_POSITION],
            # Not known before the commit.
            "snapshot-id": -1,
            "sequence-number": -1,
            "offset": offset,
            "length": size,
            "properties": {
                "referenced-data-file": referenced,
                "cardinality": str(len(bitmaps[referenced])),
            },
        }
        for referenced, (offset, size) in places.items()
    ]
    payload = json.dumps({"blobs": blobs, "properties": {}}).encode()
    content += _MAGIC + payload + struct.pack("<ii", len(payload), 0) + _MAGIC
    path.write_bytes(content)
    return {
        referenced: DeletionVector(location, len(content), offset, size, len(bitmaps[referenced]))
        for referenced, (offset, size) in places.items()
    }


def _blob(bitmap: BitMap64) -> bytes:
    vector = _VECTOR_MAGIC + bitmap.serialize()
    return struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))


def read_vector(path: Path, offset: int, size: int) -> BitMap64:
    """ValueError if it is not one."""
    with path.open("rb") as file:
        file.seek(offset)
        blob = file.read(size)
    length = int.from_bytes(blob[:4], "big")
    vector, checksum = blob[4 : 4 + length], blob[4 + length :]
    if not vector.startswith(_VECTOR_MAGIC) or struct.pack(">I", zlib.crc32(vector)) != checksum:
        raise ValueError(f"{path} has no deletion vector at {offset}")
    return BitMap64.deserialize(vector[len(_VECTOR_MAGIC) :])
