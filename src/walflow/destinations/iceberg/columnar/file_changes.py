"""The data files that a table consists of, and how a commit changes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyroaring import BitMap64

from walflow.destinations.iceberg.columnar.deletion_vectors import DeletionVector, read_vector
from walflow.destinations.iceberg.columnar.key_index import KeyedFile
from walflow.destinations.iceberg.locations import local_path
from walflow.destinations.lake.fallback import FallBackToSpark, Reason

__all__ = ["FileChanges", "Snapshot", "TableFile", "TableFiles", "check_size", "path_here"]

_MOST_FILES = 500
"""A table with more is left to Spark: to ask for them one by one takes too long."""
_MOST_ROWS = 20_000_000
"""So is one with more: it takes too long to look through their keys."""


def check_size(files: int, rows: int) -> None:
    """FallBackToSpark if a table is too large."""
    if files > _MOST_FILES or rows > _MOST_ROWS:
        raise FallBackToSpark(f"it has {files} files and {rows} rows", Reason.SIZE)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file of a snapshot."""

    file: KeyedFile
    bytes: int
    rows: int
    vector: DeletionVector | None = None
    """Which of its rows are gone."""
    first_row_id: int | None = None
    sequence_number: int | None = None
    """What Iceberg tells rows by that never were in another file."""
    metrics: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Of one that is new, what Iceberg wants to know of its columns."""

    @property
    def gone(self) -> int:
        """How many of its rows are."""
        return 0 if self.vector is None else self.vector.count


@dataclass(frozen=True, slots=True)
class Snapshot:
    id: int
    sequence_number: int
    first_row_id: int | None
    """Of the first row that came with it."""


@dataclass(slots=True)
class TableFiles:
    """The data files of a snapshot."""

    snapshot: int | None
    files: dict[str, TableFile]
    """By location."""
    _gone: dict[str, BitMap64] = field(default_factory=dict)

    def copy(self) -> TableFiles:
        return TableFiles(self.snapshot, dict(self.files), dict(self._gone))

    def check_size(self) -> None:
        """FallBackToSpark if they are too many."""
        check_size(len(self.files), sum(file.rows for file in self.files.values()))

    def gone(self, location: str) -> BitMap64:
        """Which rows of the file are gone. Not to be changed."""
        vector = self.files[location].vector
        if vector is None:
            return BitMap64()
        if location not in self._gone:
            self._gone[location] = read_vector(
                path_here(vector.location), vector.offset, vector.size
            )
        return self._gone[location]

    def after(self, delta: FileChanges, snapshot: Snapshot) -> None:
        """These are the files of the snapshot that the delta has made."""
        self.snapshot = snapshot.id
        for location in list(self.files) if delta.empties else delta.removed:
            del self.files[location]
            self._gone.pop(location, None)
        if (added := delta.added) is not None:
            self.files[added.file.location] = replace(
                added,
                first_row_id=snapshot.first_row_id,
                sequence_number=snapshot.sequence_number,
                metrics={},
            )
        for location, vector in delta.vectors.items():
            self.files[location] = replace(self.files[location], vector=vector)
            self._gone[location] = delta.gone[location]


@dataclass(frozen=True, slots=True)
class FileChanges:
    """How a commit changes a table's files."""

    added: TableFile | None = None
    gone: Mapping[str, BitMap64] = field(default_factory=dict)
    """By data file, all rows of it that are gone."""
    vectors: Mapping[str, DeletionVector] = field(default_factory=dict)
    """And where that is said."""
    removed: Collection[str] = ()
    """The data files that the one which is added stands for, and nothing else is changed then. What
    is gone is of the added one."""
    is_append: bool = False
    """Whether it can be committed whatever else is."""
    empties: bool = False
    """Whether all data files go that were there before."""

    def discard(self) -> None:
        """Remove the files that were written for it."""
        written = {path_here(vector.location) for vector in self.vectors.values()}
        if self.added is not None:
            written.add(self.added.file.path)
        for path in written:
            path.unlink(missing_ok=True)


def path_here(location: str) -> Path:
    """FallBackToSpark if it is not a file of this machine."""
    if (path := local_path(location)) is None:
        raise FallBackToSpark(f"{location} is not a file of this machine", Reason.PLACE)
    return path
