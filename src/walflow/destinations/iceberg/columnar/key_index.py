"""Where rows are: the places, in a table's data files, of the rows with certain keys."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from walflow.destinations.iceberg.columnar.reading import file_columns
from walflow.destinations.lake.fallback import FallBackToSpark, Reason

__all__ = ["KeyColumn", "KeyIndex", "KeyedFile"]

_MOST_BYTES = 256 << 20
"""What is kept in memory of all tables together."""
_AT_ONCE = 4_000_000
"""So many rows are looked through at once."""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    id: int
    names: tuple[str, ...]
    """What files that do not tell ids may call it."""
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class KeyedFile:
    """A data file, or more precisely: what never changes of it."""

    location: str
    path: Path


@dataclass(frozen=True, slots=True)
class _Read:
    keys: pa.Table
    bounds: tuple[Any, Any]
    """The least and the greatest value of the key's first column."""


class KeyIndex:
    """Remembers what files have as keys, as far as there is room: they never change. Calls may
    come from several threads."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._read: OrderedDict[tuple[str, tuple[KeyColumn, ...]], _Read] = OrderedDict()
        self._bytes = 0

    def find(
        self, files: Sequence[KeyedFile], columns: tuple[KeyColumn, ...], keys: pa.Table
    ) -> Iterator[tuple[KeyedFile, npt.NDArray[np.int64]]]:
        """The files that have rows with the keys, and where in them these are, in ascending order.
        Some of these rows may be deleted. NotInColumns if a file tells its keys in another way."""
        for some, wanted in self._portions(files, columns, keys):
            found = _every(some).join(wanted, wanted.column_names, join_type="left semi")
            places = np.sort(found["place"].to_numpy())
            for file, start, part in _by_file(some, places):
                yield file, places[part] - start

    def locate(
        self, files: Sequence[KeyedFile], columns: tuple[KeyColumn, ...], keys: pa.Table
    ) -> Iterator[tuple[KeyedFile, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """So too, and which of the keys each of them has. Costs more than ``find``."""
        numbers = pa.array(np.arange(keys.num_rows, dtype=np.int64))
        for some, wanted in self._portions(files, columns, keys):
            numbered = wanted.append_column("number", numbers)
            found = _every(some).join(numbered, wanted.column_names, join_type="inner")
            found = found.sort_by("place")
            places, number = found["place"].to_numpy(), found["number"].to_numpy()
            for file, start, part in _by_file(some, places):
                yield file, places[part] - start, number[part]

    def forget(self, locations: Iterable[str]) -> None:
        """These files are no longer the table's."""
        gone = set(locations)
        with self._lock:
            for key in [key for key in self._read if key[0] in gone]:
                self._bytes -= self._read.pop(key).keys.nbytes

    def _portions(
        self, files: Sequence[KeyedFile], columns: tuple[KeyColumn, ...], keys: pa.Table
    ) -> Iterator[tuple[list[tuple[KeyedFile, pa.Table]], pa.Table]]:
        """Some of the files that may have some of the keys, with their own; and the keys in the
        same form."""
        if not keys.num_rows:
            return
        named = zip(keys.columns, columns, strict=True)
        wanted = _named([column.cast(own.type) for column, own in named])
        span = _bounds(wanted.column(0))
        portion: list[tuple[KeyedFile, pa.Table]] = []
        rows = 0
        for file in files:
            own = self._keys(file, columns, span)
            if own is None:
                continue
            if portion and rows + own.num_rows > _AT_ONCE:
                yield portion, wanted
                portion, rows = [], 0
            portion.append((file, own))
            rows += own.num_rows
        if portion:
            yield portion, wanted

    def _keys(
        self, file: KeyedFile, columns: tuple[KeyColumn, ...], span: tuple[Any, Any]
    ) -> pa.Table | None:
        """None: it has none in the span."""
        key = file.location, columns
        with self._lock:
            known = self._read.get(key)
            if known is not None:
                self._read.move_to_end(key)
        if known is None:
            known = _read(file.path, columns)
            self._remember(key, known)
        return known.keys if _meet(known.bounds, span) else None

    def _remember(self, key: tuple[str, tuple[KeyColumn, ...]], read: _Read) -> None:
        with self._lock:
            if key not in self._read:
                self._read[key] = read
                self._bytes += read.keys.nbytes
            while self._bytes > self._most_bytes:
                _, oldest = self._read.popitem(last=False)
                self._bytes -= oldest.keys.nbytes


def _read(path: Path, columns: Sequence[KeyColumn]) -> _Read:
    with pq.ParquetFile(path, memory_map=True) as file:
        names = {column.id: column.names for column in columns}
        called = file_columns(file.schema_arrow, names, names)
        if len(called) < len(columns):
            # It was added later, and all its rows have the same value in it.
            raise FallBackToSpark(f"{path} lacks a column of the key", Reason.TABLE)
        read = file.read(columns=list(called.values()))
    keys = _named([read[called[column.id]].cast(column.type) for column in columns])
    return _Read(keys, _bounds(keys.column(0)))


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    found = pc.min_max(column)
    return found["min"].as_py(), found["max"].as_py()


def _meet(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    if one[0] is None or other[0] is None:
        return False
    return bool(one[0] <= other[1] and other[0] <= one[1])


def _named(columns: Sequence[pa.ChunkedArray]) -> pa.Table:
    """By numbers: a column of the source may have any name."""
    arrays = [column.combine_chunks() for column in columns]
    return pa.table(arrays, names=[str(number) for number in range(len(arrays))])


def _every(files: Sequence[tuple[KeyedFile, pa.Table]]) -> pa.Table:
    """The keys of all of them, and the place of each in the whole."""
    every = pa.concat_tables([keys for _, keys in files])
    places = pa.array(np.arange(every.num_rows, dtype=np.int64))
    return every.append_column("place", places)


def _by_file(
    files: Sequence[tuple[KeyedFile, pa.Table]], places: npt.NDArray[np.int64]
) -> Iterator[tuple[KeyedFile, int, slice]]:
    """Of places in the whole, in order: the part that is a file's, and where the file begins."""
    begin = 0
    for file, keys in files:
        end = begin + keys.num_rows
        first, last = np.searchsorted(places, (begin, end))
        if last > first:
            yield file, begin, slice(int(first), int(last))
        begin = end
