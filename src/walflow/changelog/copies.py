"""The copies of tables' existing rows: what is to be read, what has been read, what is complete.

A table's folder ``copy/<oid>/`` holds:

- ``plan.json``: the ranges of pages that the table was cut into. A table of one range has none.
- ``NNNNNN-<plan>-<position>.parquet``: the rows of a range, as the snapshot of that position has
  them; ``NNNNNN.done``: says so, and is written once they are durable.
- ``complete.json``: all is read; which files are the copy. Written last.

Executors write into it while the driver does, and an executor may outlive its driver for a while.
So every file's name and every ``.done`` names its plan, and nothing is ever rewritten in place.
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
    """How a table was cut when its copy began; a range's number is its place in ``ranges``."""

    schema: TableSchema
    row_filter: str | None
    filenodes: Mapping[int, int]
    """By relation: the file that the page numbers are of."""
    ranges: tuple[PageRange, ...]
    membership: Membership
    """How the table was published when it was last read of it."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])


@dataclass(frozen=True, slots=True)
class FinishedRange:
    """A range whose rows are durable."""

    plan: str
    number: int
    position: Lsn
    """Of the snapshot that it was read under."""
    file: CopyFile | None
    """None: there were no rows."""


@dataclass(frozen=True, slots=True)
class FinishedCopy:
    """A copy that waits to be loaded: the table exactly as it is at the position."""

    schema: TableSchema
    """With a version just before the position, as has every schema of which there are rows."""
    position: Lsn
    files: tuple[CopyFile, ...]
    membership: Membership
    """How the table was published when it was read."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def overflow(self) -> bool:
        """Whether some file has the column of exact texts."""
        return any(file.overflow for file in self.files)


def store_range(folder: Path, finished: FinishedRange) -> None:
    """Note that a range is read; its file must be durable. For executors."""
    # One sync of the folder serves the file's name too: a note without its file does not count.
    write_atomically(folder / f"{finished.number:06}{_DONE}", sealed(to_dict(finished)))


@dataclass(frozen=True, slots=True)
class CopyFolder:
    """One table's copy in the log. There need not be one: then it has no plan and no files.

    Used by one thread at a time, while executors add ranges.
    """

    table: int
    """The table's oid."""
    folder: Path

    def begin(self, plan: CopyPlan) -> None:
        """Forget what was read before, and remember this plan."""
        self.drop()
        self.extend(plan)

    def extend(self, plan: CopyPlan) -> None:
        """Remember the plan, which may have more ranges now; what was read of it still counts."""
        with disk_errors(self.folder):
            self.make_folder()
            write_atomically(self.folder / _PLAN, sealed(to_dict(plan)))

    def make_folder(self) -> None:
        with disk_errors(self.folder):
            if not self.folder.exists():
                self.folder.mkdir(parents=True)
                sync_folder(self.folder.parent)

    def plan(self) -> CopyPlan | None:
        """None also for one that cannot be read: the table is then copied anew."""
        return _read(self.folder / _PLAN, CopyPlan)

    def finished_ranges(self, plan: CopyPlan) -> dict[int, FinishedRange]:
        """By number, the ranges of the plan that were read and whose files are there in full."""
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
        """Remove what broken-off attempts have left: all data but these files."""
        names = set(kept)
        for path in self.folder.iterdir() if self.folder.exists() else ():
            if path.suffix not in (_DONE, ".json") and path.name not in names:
                remove(path)

    def complete(self, whole: FinishedCopy) -> None:
        """Remember that its files, which are durable, are the table as of the position."""
        with disk_errors(self.folder):
            self.make_folder()
            write_atomically(self.folder / _COMPLETE, sealed(to_dict(whole)))

    def completed(self) -> FinishedCopy | None:
        """The copy, if it is complete and its files are there in full."""
        found = _read(self.folder / _COMPLETE, FinishedCopy)
        return found if found and all(self._is_whole(file) for file in found.files) else None

    def paths(self, finished: FinishedCopy) -> tuple[Path, ...]:
        """Where its files are."""
        return tuple(self.folder / file.name for file in finished.files)

    def reopen(self) -> None:
        """Forget that the copy is complete; what was read stays."""
        (self.folder / _COMPLETE).unlink(missing_ok=True)

    def discard(self, names: Iterable[str]) -> None:
        """Remove these files, which are damaged, and forget that the copy is complete."""
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
    """Remove from a log's folder ``copy`` what no copy of this format is."""
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
