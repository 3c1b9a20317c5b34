"""The journal: an append-only list of what has been sealed.

Each line is one record after its checksum: a segment as JSON, or the end of the log as a number. A
record counts once its line is synced, so a segment appears whole or not at all. A crash can tear
only the last line of the last file. That line was never acknowledged, and is cut off. Any other
unreadable line is damage and raises LogDamaged.

Files are named ``<epoch>-<number>.jsonl``. The journal moves to a new file from time to time, so
that files of retired segments can be removed. Each file begins with the end of the log at that
time, so no file depends on an earlier one.
"""

from __future__ import annotations

import os
import re
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from walflow.changelog.durable import remove, sync_folder
from walflow.changelog.records import Segment
from walflow.errors import LogDamaged
from walflow.model import Lsn
from walflow.serialization import from_json, to_json

__all__ = ["Contents", "Journal"]

ROTATE_BYTES = 1 << 20

_NAME = re.compile(r"(\d{6})-(\d{8})\.jsonl")

DAMAGE_HINT = (
    "Restore the folder from a backup, or remove it: walflow then starts a new log and copies "
    "again the tables that need it."
)


@dataclass(slots=True)
class Contents:
    """The records of all the journal's files."""

    end: Lsn | None = None
    segments: list[Segment] = field(default_factory=list)
    last_of_file: dict[int, int] = field(default_factory=dict)
    """The last sequence number in each file, -1 if it has none."""


class Journal:
    """The open journal. One thread writes. Another may remove older files."""

    def __init__(self, folder: Path, epoch: int, number: int, size: int, sequence: int) -> None:
        self.folder = folder
        self.epoch = epoch
        self.number = number
        self.torn = False
        """Whether a record that failed may still be at the end of the file. Its segment's files
        must then stay."""
        # One value, so that an interrupt finds both parts old or both new.
        self._durable = (size, sequence)
        self._descriptor = os.open(
            self._path(number), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666
        )

    @classmethod
    def create(
        cls, folder: Path, epoch: int, end: Lsn, *, number: int = 0, sequence: int = -1
    ) -> Self:
        """Create a durable journal (or its next file) that only says where the log ends."""
        remove(folder / _name(epoch, number))
        journal = cls(folder, epoch, number, 0, sequence)
        try:
            journal.append_end(end)
            sync_folder(folder)
        except BaseException:
            journal.close()
            remove(folder / _name(epoch, number))
            raise
        return journal

    @classmethod
    def open(cls, folder: Path, epoch: int) -> tuple[Self, Contents]:
        """Read everything, cut off a torn last line, and continue from there. Files of other epochs
        are leftovers of a restart and are removed."""
        numbers = []
        for path in sorted(folder.iterdir()):
            match = _NAME.fullmatch(path.name)
            if match is not None and int(match[1]) == epoch:
                numbers.append(int(match[2]))
            else:
                remove(path)
        if not numbers:
            raise LogDamaged(f"the change log has no journal in {folder}", hint=DAMAGE_HINT)
        contents = Contents()
        size = 0
        for number in numbers:
            size = _read(folder / _name(epoch, number), contents, number, number == numbers[-1])
        if contents.end is None:
            raise LogDamaged(
                f"the change log's journal in {folder} has no readable record", hint=DAMAGE_HINT
            )
        sequence = contents.segments[-1].sequence if contents.segments else -1
        journal = cls(folder, epoch, numbers[-1], size, sequence)
        try:
            journal._cut()
            if size == 0:
                journal.append_end(contents.end)
        except BaseException:
            journal.close()
            raise
        return journal, contents

    @property
    def last_sequence(self) -> int:
        """The last segment that is durable."""
        return self._durable[1]

    @property
    def full(self) -> bool:
        return self._durable[0] >= ROTATE_BYTES

    def append_segment(self, segment: Segment) -> None:
        """Append a segment. It is durable when this returns. If it raises, nothing was appended,
        with two exceptions. An interrupt may come after the record is durable: ``last_sequence``
        has then moved. And a disk may refuse to take the record back: the journal is then ``torn``.
        """
        self._append(to_json(segment), segment.sequence)

    def append_end(self, end: Lsn) -> None:
        """Record, durably, that nothing more happened up to ``end``."""
        self._append(b"%d" % end, self.last_sequence)

    def rotated(self, end: Lsn) -> Journal:
        """Switch to the next file, which is durable, and close this one."""
        following = Journal.create(
            self.folder, self.epoch, end, number=self.number + 1, sequence=self.last_sequence
        )
        self.close()
        return following

    def drop_file(self, number: int) -> None:
        remove(self._path(number))

    def drop_all(self) -> None:
        """Remove the files of this epoch, which has ended."""
        self.close()
        for path in self.folder.glob(f"{self.epoch:06d}-*.jsonl"):
            remove(path)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _path(self, number: int) -> Path:
        return self.folder / _name(self.epoch, number)

    def _append(self, record: bytes, sequence: int) -> None:
        if self.torn:
            self._cut()
        line = _encode(record)
        durable = (self._durable[0] + len(line), sequence)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
            os.fsync(self._descriptor)
            self._durable = durable
        except BaseException:
            if self._durable is not durable:
                # If cutting fails too, the next append tries again before it writes. If there is
                # none, the line is torn, or a whole segment whose files are all there.
                self.torn = True
                with suppress(OSError):
                    self._cut()
            raise

    def _cut(self) -> None:
        os.ftruncate(self._descriptor, self._durable[0])
        os.fsync(self._descriptor)
        self.torn = False


def _name(epoch: int, number: int) -> str:
    return f"{epoch:06d}-{number:08d}.jsonl"


def _encode(record: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(record), record)


def _decode(line: bytes) -> Segment | Lsn | None:
    """The segment, or the end of the log, or None if the line is not whole."""
    if not line.endswith(b"\n") or line[8:9] != b" ":
        return None
    text = line[9:-1]
    if line[:8] != b"%08x" % zlib.crc32(text):
        return None
    return from_json(Segment, text) if text.startswith(b"{") else Lsn(text)


def _read(path: Path, contents: Contents, number: int, last_file: bool) -> int:
    """Add the file's records to the contents. Returns the length of its intact part."""
    contents.last_of_file[number] = -1
    whole = 0
    lines = path.read_bytes().splitlines(keepends=True)
    for at, line in enumerate(lines):
        record = _decode(line)
        if record is None:
            if last_file and at == len(lines) - 1:
                break
            raise LogDamaged(f"line {at + 1} of {path} is damaged", hint=DAMAGE_HINT)
        whole += len(line)
        if isinstance(record, Segment):
            contents.segments.append(record)
            contents.last_of_file[number] = record.sequence
            contents.end = record.span.upto
        else:
            contents.end = record
    return whole
