"""What Iceberg wants to know of a data file: counts, and the bounds of its columns.

Readers skip files by it. Iceberg could read it from the file's footer itself, but takes longer for
that than for the whole commit of a small batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq

from walflow.destinations.iceberg.columnar.arrow_schema import Field

__all__ = ["metrics_of"]

_LENGTH = 16
"""Bounds of texts and bytes are cut off here, as is Iceberg's default."""


def metrics_of(metadata: pq.FileMetaData, fields: Sequence[Field]) -> dict[str, Any]:
    """The metrics as a part of Iceberg's JSON of a data file."""
    columns = [(number, metadata.schema.column(number)) for number in range(metadata.num_columns)]
    # What is nested may look like a column that has dots in its name.
    at = {column.path: number for number, column in columns if not column.max_repetition_level}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes: dict[int, int] = {}
    nulls: dict[int, int] = {}
    lower: dict[int, str] = {}
    upper: dict[int, str] = {}
    for field in fields:
        # Of what is nested there are no bounds, and counts would be those of the elements.
        if not isinstance(field["type"], str) or field["name"] not in at:
            continue
        id, chunks = field["id"], [group.column(at[field["name"]]) for group in groups]
        sizes[id] = sum(chunk.total_compressed_size for chunk in chunks)
        found = [chunk.statistics for chunk in chunks]
        if any(stats is None or stats.null_count is None for stats in found):
            continue
        nulls[id] = sum(stats.null_count for stats in found)
        least, most = _bounds(field["type"], found)
        if least is not None and most is not None:
            lower[id], upper[id] = least.hex().upper(), most.hex().upper()
    counts = dict.fromkeys(nulls, metadata.num_rows)
    return {
        "column-sizes": _map(sizes),
        "value-counts": _map(counts),
        "null-value-counts": _map(nulls),
        "lower-bounds": _map(lower),
        "upper-bounds": _map(upper),
    }


def _map(values: Mapping[int, Any]) -> dict[str, list[Any]]:
    return {"keys": list(values), "values": list(values.values())}


def _bounds(type: str, found: Sequence[pq.Statistics]) -> tuple[bytes | None, bytes | None]:
    """None: there are none. Groups of nothing but nulls have no bounds of their own."""
    kind = type.partition("(")[0]
    bounded = [stats for stats in found if stats.has_min_max]
    complete = len(bounded) == sum(stats.num_values > 0 for stats in found)
    if (
        not bounded
        or not complete
        or (kind not in _FIXED and kind not in _CUT and kind != "decimal")
    ):
        return None, None
    if kind == "decimal":
        numbers = [(_signed(stats.min_raw), _signed(stats.max_raw)) for stats in bounded]
        least, most = min(one for one, _ in numbers), max(one for _, one in numbers)
        return _shortest(least), _shortest(most)
    least, most = min(stats.min_raw for stats in bounded), max(stats.max_raw for stats in bounded)
    if kind in _FIXED:
        return _FIXED[kind](least), _FIXED[kind](most)
    return _CUT[kind](least, most)


def _integer(size: int) -> Callable[[int], bytes]:
    return lambda value: int(value).to_bytes(size, "little", signed=True)


_FIXED: Mapping[str, Callable[[Any], bytes]] = {
    "boolean": lambda value: bytes([value]),
    "int": _integer(4),
    "long": _integer(8),
    "date": _integer(4),
    "time": _integer(8),
    "timestamp": _integer(8),
    "timestamptz": _integer(8),
}
"""(Of floats there are none: where NaN is in their order, readers do not agree.)"""


def _signed(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


def _shortest(number: int) -> bytes:
    return number.to_bytes(
        (8 + (number if number >= 0 else ~number).bit_length()) // 8, "big", signed=True
    )


def _cut_text(least: bytes, most: bytes) -> tuple[bytes | None, bytes | None]:
    low, high = least.decode(), most.decode()
    return low[:_LENGTH].encode(), _above(high)


def _above(text: str) -> bytes | None:
    """The text, or a short one that comes after all that begin like it."""
    if len(text) <= _LENGTH:
        return text.encode()
    for end in range(_LENGTH, 0, -1):
        following = ord(text[end - 1]) + 1
        # Not into the surrogates, which no text has.
        following = 0xE000 if 0xD800 <= following <= 0xDFFF else following
        if following <= 0x10FFFF:
            return (text[: end - 1] + chr(following)).encode()
    return None


def _cut_bytes(least: bytes, most: bytes) -> tuple[bytes | None, bytes | None]:
    if len(most) <= _LENGTH:
        return least[:_LENGTH], most
    begin = most[:_LENGTH].rstrip(b"\xff")
    return least[:_LENGTH], begin[:-1] + bytes([begin[-1] + 1]) if begin else None


_CUT: Mapping[str, Callable[[bytes, bytes], tuple[bytes | None, bytes | None]]] = {
    "string": _cut_text,
    "binary": _cut_bytes,
}
