"""Where rows are: the places, in a table's data files, of rows with certain values."""

from __future__ import annotations

import json
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

from walflow.destinations.iceberg.columnar.arrow_schema import Field, arrow_type
from walflow.destinations.iceberg.columnar.reading import NameMapping, read_places, read_rows
from walflow.destinations.lake.netting.identity import IdentityPart

__all__ = ["Found", "IndexedColumn", "KeyIndex", "KeyedFile"]

_MOST_BYTES = 256 << 20
"""What is kept in memory of all tables together."""
_AT_ONCE = 4_000_000
"""So many rows are looked through at once."""
_FEW = 16
"""Of rows that are one in so many, the other columns are read where they are."""
_MANY_ROWS = 50_000
_RARE, _RARE_ELSEWHERE = 8, 64
"""Of a file with so many rows, numbers that are fewer by this factor are looked up in their order:
to look through all would take longer. The second, if the rows are in another order."""
_LOOKS = 16
"""To put a file's rows in order takes about as long as to look through them so many times."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class IndexedColumn:
    """A part of what tells rows apart, as the table has it."""

    part: IdentityPart
    field: Field | None
    """None: the table has no such column, and all its rows have null in it."""
    names: NameMapping
    """What files that do not tell ids may call the column."""

    @property
    def key(self) -> tuple[object, ...]:
        """What it is remembered by."""
        if self.field is None:
            return (self.part,)
        id = self.field["id"]
        return self.part, id, json.dumps(self.field["type"]), self.names.get(id, ())

    def sought(self, values: pa.Array) -> pa.Array:
        """Values that rows may have in it, in the form that it has here."""
        if self.field is not None:
            values = values.cast(arrow_type(self.field["type"]))
        return self.part.of(values)

    def read(self, path: Path) -> pa.Array:
        if self.field is None:
            return self._nothing(pq.read_metadata(path).num_rows)
        rows = read_rows(path, [self.field], self.names)
        return self.part.of(rows.column(0).combine_chunks())

    def read_places(self, path: Path, places: Ints) -> pa.Array:
        if self.field is None:
            return self._nothing(len(places))
        rows = read_places(path, [self.field], self.names, places)
        return self.part.of(rows.column(0).combine_chunks())

    def _nothing(self, rows: int) -> pa.Array:
        return pa.nulls(rows, pa.string() if self.part.text_of else pa.binary())


@dataclass(frozen=True, slots=True)
class KeyedFile:
    """A data file, or more precisely: what never changes of it."""

    location: str
    path: Path


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of a file that have values which were sought."""

    file: KeyedFile
    places: Ints
    """In order."""
    numbers: Ints
    """Which of the values each of them has."""


@dataclass(slots=True)
class _Read:
    values: pa.Array
    bounds: tuple[Any, Any]
    """The least and the greatest that is not null."""
    numbers: Ints | None
    """The values, if they are numbers, and many, and none is null."""
    in_order: bool
    """Whether they are as they come."""
    order: Ints | None = None
    """The places by value."""
    looks: int = 0
    """How many times they were looked through for few."""

    @classmethod
    def of(cls, values: pa.Array) -> _Read:
        numbers = _numbers(values) if len(values) >= _MANY_ROWS else None
        in_order = numbers is not None and bool((numbers[1:] >= numbers[:-1]).all())
        return cls(values, _bounds(values), numbers, in_order)

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes) + (0 if self.order is None else self.order.nbytes)

    def places(self, among: Ints) -> tuple[Ints, Ints]:
        """Of the values that are among these: their places, and which one of these they are."""
        assert self.numbers is not None
        # One after the other, they are found near each other.
        turn = np.argsort(among)
        among = among[turn]
        first = np.searchsorted(self.numbers, among, "left", self.order)
        counts = np.searchsorted(self.numbers, among, "right", self.order) - first
        which = np.repeat(turn, counts)
        begins = np.cumsum(counts) - counts
        places = np.repeat(first - begins, counts) + np.arange(len(which))
        return (places if self.order is None else self.order[places]), which


class KeyIndex:
    """Remembers what files have in columns that tell rows apart, as far as there is room: they
    never change. Calls may come from several threads."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._read: OrderedDict[tuple[str, tuple[object, ...]], _Read] = OrderedDict()
        self._bytes = 0

    def find(
        self,
        files: Sequence[KeyedFile],
        columns: Sequence[IndexedColumn],
        keys: pa.Table,
        *,
        whole_rows: bool,
    ) -> Iterator[Found]:
        """Of each file that has some, the rows that have one of the keys (which are all different,
        with the columns of the parts), also if they are deleted. ``whole_rows``: the columns are
        so many that only the first one is remembered, and the others are read where they may
        matter."""
        if not keys.num_rows:
            return
        sought = [column.sought(keys[column.part.column].combine_chunks()) for column in columns]
        encoded = [values.dictionary_encode(null_encoding="encode") for values in sought]
        order = list(range(len(columns)))
        if whole_rows:
            # What has the most different values leaves the fewest rows to look at; bytes last.
            order.sort(key=lambda n: (-len(encoded[n].dictionary), sought[n].nbytes))
        stages = _stages([encoded[n] for n in order])
        numbers = np.empty(keys.num_rows, dtype=np.int64)
        numbers[stages[-1].codes] = np.arange(keys.num_rows)
        columns = [columns[n] for n in order]
        for portion in self._portions(files, columns[0], sought[order[0]]):
            yield from self._find(portion, columns, stages, numbers, whole_rows)

    def _find(
        self,
        portion: Sequence[tuple[KeyedFile, _Read]],
        columns: Sequence[IndexedColumn],
        stages: Sequence[_Stage],
        numbers: Ints,
        whole_rows: bool,
    ) -> Iterator[Found]:
        ends = np.cumsum([len(read.values) for _, read in portion])
        hits, codes = self._first_hits([read for _, read in portion], stages[0].values)
        for column, stage in zip(columns[1:], stages[1:], strict=True):
            if not len(hits):
                return
            parts = np.searchsorted(hits, np.concatenate([[0], ends]))
            found = []
            for number, (file, read) in enumerate(portion):
                places = hits[parts[number] : parts[number + 1]]
                places = places - (ends[number] - len(read.values))
                if len(places):
                    found.append(self._values(file, column, places, len(read.values), whole_rows))
            more = _codes(pa.chunked_array(found), stage.values)
            codes, stays = stage.next(codes, more)
            hits = hits[stays]
        parts = np.searchsorted(hits, np.concatenate([[0], ends]))
        for number, (file, read) in enumerate(portion):
            part = slice(int(parts[number]), int(parts[number + 1]))
            if part.stop > part.start:
                begin = ends[number] - len(read.values)
                yield Found(file, hits[part] - begin, numbers[codes[part]])

    def _first_hits(self, reads: Sequence[_Read], among: pa.Array) -> tuple[Ints, Ints]:
        """Of the values that are among these, which are all different: their places in all that was
        read, in order, and which one of these they are."""
        begins = np.cumsum([0, *(len(read.values) for read in reads)])
        wanted = _numbers(among)
        parts, whole = [], []
        for number, read in enumerate(reads):
            if wanted is not None and self._is_ordered(read, len(wanted)):
                places, which = read.places(wanted)
                parts.append((begins[number] + places, which))
            else:
                whole.append(number)
        if whole:
            codes = _codes(pa.chunked_array([reads[number].values for number in whole]), among)
            hits = np.flatnonzero(codes >= 0)
            codes = codes[hits]
            ends = np.cumsum([len(reads[number].values) for number in whole])
            of = np.searchsorted(ends, hits, side="right")
            shift = begins[whole] - np.concatenate([[0], ends[:-1]])
            parts.append((hits + shift[of], codes))
        hits, codes = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(hits, kind="stable")
        return hits[order], codes[order]

    def _is_ordered(self, read: _Read, sought: int) -> bool:
        """Whether so many values can be looked up in their order. It is made once it pays, as far
        as there is room."""
        rare = _RARE if read.in_order else _RARE_ELSEWHERE
        if read.numbers is None or sought * rare > len(read.numbers):
            return False
        if read.in_order or read.order is not None:
            return True
        read.looks += 1
        if read.looks <= _LOOKS or self._bytes + read.values.nbytes > self._most_bytes:
            return False
        order = np.argsort(read.numbers, kind="stable")
        with self._lock:
            if read.order is None:
                read.order = order
                if any(read is one for one in self._read.values()):
                    self._bytes += order.nbytes
        return True

    def _values(
        self, file: KeyedFile, column: IndexedColumn, places: Ints, rows: int, whole_rows: bool
    ) -> pa.Array:
        if whole_rows and len(places) * _FEW < rows:
            return column.read_places(file.path, places)
        return self._column(file, column, remember=not whole_rows).values.take(pa.array(places))

    def forget(self, locations: Iterable[str]) -> None:
        """These files are no longer the table's."""
        gone = set(locations)
        with self._lock:
            for key in [key for key in self._read if key[0] in gone]:
                self._bytes -= self._read.pop(key).nbytes

    def _portions(
        self, files: Sequence[KeyedFile], column: IndexedColumn, sought: pa.Array
    ) -> Iterator[list[tuple[KeyedFile, _Read]]]:
        """Some of the files that may have some of the values, with what they have."""
        span = None if sought.null_count else _bounds(sought)
        portion: list[tuple[KeyedFile, _Read]] = []
        rows = 0
        for file in files:
            read = self._column(file, column, remember=True)
            if span is not None and not _meet(read.bounds, span):
                continue
            if portion and rows + len(read.values) > _AT_ONCE:
                yield portion
                portion, rows = [], 0
            portion.append((file, read))
            rows += len(read.values)
        if portion:
            yield portion

    def _column(self, file: KeyedFile, column: IndexedColumn, *, remember: bool) -> _Read:
        key = file.location, column.key
        with self._lock:
            known = self._read.get(key)
            if known is not None:
                self._read.move_to_end(key)
                return known
        read = _Read.of(column.read(file.path))
        if remember:
            self._remember(key, read)
        return read

    def _remember(self, key: tuple[str, tuple[object, ...]], read: _Read) -> None:
        with self._lock:
            if key not in self._read:
                self._read[key] = read
                self._bytes += read.nbytes
            while self._bytes > self._most_bytes:
                _, oldest = self._read.popitem(last=False)
                self._bytes -= oldest.nbytes


@dataclass(frozen=True, slots=True)
class _Stage:
    """A column of what is sought, and those before it."""

    values: pa.Array
    """Its values, all different."""
    pairs: Ints
    """In order: of each code of the columns before, and the number of a value, that go together."""
    codes: Ints
    """For each that is sought, the number of its pair."""

    def next(self, codes: Ints, values: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """For rows with these codes by the columns before, and values: their own codes, of those
        that have one; and which these are."""
        pairs = codes * len(self.values) + values
        place = np.minimum(np.searchsorted(self.pairs, pairs), len(self.pairs) - 1)
        stays = (values >= 0) & (self.pairs[place] == pairs)
        return place[stays], stays


def _stages(encoded: Sequence[pa.DictionaryArray]) -> list[_Stage]:
    stages: list[_Stage] = []
    for column in encoded:
        numbers = np.asarray(column.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
        if stages:
            pairs = stages[-1].codes * len(column.dictionary) + numbers
            pairs, numbers = np.unique(pairs, return_inverse=True)
        else:
            pairs = np.arange(len(column.dictionary))
        stages.append(_Stage(column.dictionary, pairs, numbers))
    return stages


def _codes(values: pa.ChunkedArray, among: pa.Array) -> Ints:
    """For each value, its number among these, or -1."""
    numbers = pc.index_in(values, value_set=among).fill_null(-1)
    return np.asarray(numbers.to_numpy(), dtype=np.int64)


def _numbers(values: pa.Array) -> Ints | None:
    """The same order as numbers; None: they have none, or some are null."""
    kind = values.type
    is_number = pa.types.is_signed_integer(kind) or pa.types.is_temporal(kind)
    if not is_number or kind.bit_width not in (32, 64) or values.null_count:
        return None
    numbers: Ints = values.view(pa.int64() if kind.bit_width == 64 else pa.int32()).to_numpy()
    return numbers


def _bounds(values: pa.Array) -> tuple[Any, Any]:
    found = pc.min_max(values)
    return found["min"].as_py(), found["max"].as_py()


def _meet(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    if one[0] is None or other[0] is None:
        return False
    return bool(one[0] <= other[1] and other[0] <= one[1])
