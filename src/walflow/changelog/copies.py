"""The copies of tables' existing rows: the plan, the ranges that were read, and the finished copy.

A table's folder ``copy/<oid>/`` holds:

- ``plan.json``: the ranges of pages that the table was cut into. A table of one range has none.
- ``NNNNNN-<plan>-<position>.parquet``: the rows of a range under the snapshot of that position.
  ``NNNNNN.done`` is written once these rows are durable.
- ``complete.json``: the list of files that make up the finished copy. It is written last.

Executors write into the folder while the driver does, and an executor may outlive its driver for a
while. So every file's name and every ``.done`` names its plan, and nothing is rewritten in place.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from walflow.changelog.durable import (
    disk_errors,
    remove,
    sealed,
    sync_folder,
    unsealed,
    write_atomically,
)
from walflow.model import CopyFile, Lsn, PageRange, TableSchema
from walflow.serialization import from_dict, to_dict
from walflow.states import Membership

__all__ = [
    "CopyFolder",
    "CopyPlan",
    "FinishedCopy",
    "FinishedRange",
    "find_copies",
    "remove_strangers",
    "store_range",
]

_PLAN = "plan.json"
_COMPLETE = "complete.json"
_DONE = ".done"

_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """How a table was cut into ranges when its copy began. A range's number is its index in
    ``ranges``."""

    schema: TableSchema
    row_filter: str | None
    filenodes: Mapping[int, int]
    """By relation: the file (relfilenode) that the page numbers refer to."""
    ranges: tuple[PageRange, ...]
    membership: Membership
    """How the table was published when its catalog entry was last read."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])


@dataclass(frozen=True, slots=True)
class FinishedRange:
    """A range whose rows are durable."""

    plan: str
    number: int
    position: Lsn
    """The position of the snapshot that it was read under."""
    file: CopyFile | None
    """None: the range had no rows."""


@dataclass(frozen=True, slots=True)
class FinishedCopy:
    """A copy that waits to be loaded: the table exactly as it is at the position."""

    schema: TableSchema
    """Its version is just before the position, like the version of every schema that rows were
    written with."""
    position: Lsn
    files: tuple[CopyFile, ...]
    membership: Membership
    """How the table was published when it was read."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def overflow(self) -> bool:
        """Whether some file has the column of overflow texts."""
        return any(file.overflow for file in self.files)


def store_range(folder: Path, finished: FinishedRange) -> None:
    """Note that a range is read; its file must be durable. For executors."""
    # One sync of the folder serves the file's name too: a note without its file does not count.
    write_atomically(folder / f"{finished.number:06}{_DONE}", sealed(to_dict(finished)))


@dataclass(frozen=True, slots=True)
class CopyFolder:
    """One table's copy in the log. It may be empty: then it has no plan and no files.

    One thread at a time uses it, while executors add ranges.
    """

    table: int
    """The table's oid."""
    folder: Path

    def begin(self, plan: CopyPlan) -> None:
        """Discard what was read before, and store this plan."""
        self.drop()
        self.extend(plan)

    def extend(self, plan: CopyPlan) -> None:
        """Store the plan, which may have more ranges than before. The ranges that were read still
        count."""
        with disk_errors(self.folder):
            self.make_folder()
            write_atomically(self.folder / _PLAN, sealed(to_dict(plan)))

    def make_folder(self) -> None:
        with disk_errors(self.folder):
            if not self.folder.exists():
                self.folder.mkdir(parents=True)
                sync_folder(self.folder.parent)

    def plan(self) -> CopyPlan | None:
        """The plan. None if there is none, or if it cannot be read: the table is then copied
        again."""
        return _read(self.folder / _PLAN, CopyPlan)

    def finished_ranges(self, plan: CopyPlan) -> dict[int, FinishedRange]:
        """The ranges of the plan that were read and whose files are complete, by number."""
        found = (_read(path, FinishedRange) for path in self.folder.glob(f"*{_DONE}"))
        return {
            done.number: done
            for done in found
            if done is not None
            and done.plan == plan.id
            and done.number < len(plan.ranges)
            and (done.file is None or self._is_whole(done.file))
        }

    def remove_others(self, kept: Iterable[str]) -> None:
        """Remove what interrupted attempts left: all data except these files."""
        names = set(kept)
        for path in self.folder.iterdir() if self.folder.exists() else ():
            if path.suffix not in (_DONE, ".json") and path.name not in names:
                remove(path)

    def complete(self, whole: FinishedCopy) -> None:
        """Note that these files are the table as of the position. They must be durable."""
        with disk_errors(self.folder):
            self.make_folder()
            write_atomically(self.folder / _COMPLETE, sealed(to_dict(whole)))

    def completed(self) -> FinishedCopy | None:
        """The finished copy. None if it is not finished, or if a file is missing or incomplete."""
        found = _read(self.folder / _COMPLETE, FinishedCopy)
        return found if found and all(self._is_whole(file) for file in found.files) else None

    def paths(self, finished: FinishedCopy) -> tuple[Path, ...]:
        """Where its files are."""
        return tuple(self.folder / file.name for file in finished.files)

    def reopen(self) -> None:
        """Discard the note that the copy is finished. The ranges that were read stay."""
        (self.folder / _COMPLETE).unlink(missing_ok=True)

    def discard(self, names: Iterable[str]) -> None:
        """Remove these damaged files, and discard the note that the copy is finished."""
        self.reopen()
        for name in names:
            remove(self.folder / name)

    def drop(self) -> None:
        """Remove the copy. Repeats safely."""
        if not self.folder.exists():
            return
        with disk_errors(self.folder):
            # These first: what is left by a crash in the middle is then no copy.
            for name in (_COMPLETE, _PLAN):
                (self.folder / name).unlink(missing_ok=True)
            _remove_folder(self.folder)

    def _is_whole(self, file: CopyFile) -> bool:
        try:
            return (self.folder / file.name).stat().st_size == file.bytes
        except FileNotFoundError:
            return False


def find_copies(folder: Path) -> Iterator[CopyFolder]:
    """The copies in a log's folder ``copy``."""
    for path in sorted(folder.iterdir()):
        if path.name.isdecimal():
            yield CopyFolder(int(path.name), path)


def remove_strangers(folder: Path) -> None:
    """Remove everything from a log's folder ``copy`` that is not a copy in this format."""
    for path in folder.iterdir():
        if not path.name.isdecimal():
            _remove_folder(path) if path.is_dir() else remove(path)


def _remove_folder(folder: Path) -> None:
    # An executor of a job that was broken off may still add a file.
    for _ in range(3):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
    if os.path.lexists(folder):
        shutil.rmtree(folder)


def _read(path: Path, kind: type[_Record]) -> _Record | None:
    with suppress(FileNotFoundError, ValueError):
        return from_dict(kind, unsealed(path.read_bytes()))
    return None
