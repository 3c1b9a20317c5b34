"""The change log: received changes, until they are applied and for a while after."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Condition, Lock
from typing import Self

from walflow.changelog.copies import CopyFolder, find_copies, remove_strangers
from walflow.changelog.durable import TEMPORARY, disk_errors, remove, sync_folder
from walflow.changelog.identity import FOLDERS, Head, check_ours, lock
from walflow.changelog.journal import DAMAGE_HINT, Contents, Journal
from walflow.changelog.records import LogFile, LogIdentity, Segment
from walflow.changelog.schemas import SchemaFolder
from walflow.changelog.writer import SEGMENTS_A_FOLDER, SegmentWriter
from walflow.checksums import damage_of
from walflow.errors import LogDamaged, LogError
from walflow.model import Lsn, Span, TableSchema
from walflow.paths import is_there

__all__ = ["ChangeLog"]

END_SECONDS = 1.0
"""The end is recorded at most this often while no changes come."""


class ChangeLog:
    """A folder of sealed segments, and the one writer that adds to it.

    One thread writes (``writer``, ``restart``). Any thread may list, retire and wait. State is on
    the disk before a call returns, in this order: a segment's files, their folder, schemas, then
    the journal's record. A retirement is noted before its files are removed.
    """

    def __init__(
        self, folder: Path, descriptor: int, head: Head, journal: Journal, contents: Contents
    ) -> None:
        """Use ``open``."""
        self.folder = folder
        self.max_bytes = 0
        self._lock_descriptor = descriptor
        self._head = head
        self._journal = journal
        self._journal_files = contents.last_of_file
        self._writer: SegmentWriter | None = None
        self._end = self._reached = Lsn(0) if contents.end is None else contents.end
        self._end_recorded = 0.0
        self._retired_at = 0.0
        self._closed = False
        self._changed = Condition(Lock())
        self._retiring = Lock()
        """Held while log.json changes. Acquired before ``_changed``."""
        self._segments = [s for s in contents.segments if s.sequence >= head.first]
        self._ends = [int(segment.span.upto) for segment in self._segments]
        self._sealed_bytes = sum(segment.bytes for segment in self._segments)
        self._sequence = max(head.first, journal.last_sequence + 1)
        self._schemas = SchemaFolder(folder / "schemas")
        self._schemas.count(file for segment in self._segments for file in segment.files)

    @classmethod
    def open(
        cls,
        folder: Path,
        identity: LogIdentity,
        *,
        start: Lsn,
        max_bytes: int,
        file_bytes: int,
        buffer_bytes: int = 64 << 20,
    ) -> Self:
        """Open the log, or create it: a new one is complete from ``start`` on. Leftovers of a crash
        are removed. Raises LogForeign, LogInUse, LogDamaged or DiskFull, and then changes no
        segment."""
        with disk_errors(folder):
            check_ours(folder, identity)
            made = [path for path in (folder, *folder.parents) if not is_there(path)]
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = lock(folder)
            try:
                # Again, now that nobody else can be making it.
                check_ours(folder, identity)
                for path in made:
                    sync_folder(path.parent)
                log = cls._load(folder, descriptor, identity, start)
            except BaseException:
                os.close(descriptor)
                raise
            log.max_bytes = max_bytes
            log._writer = SegmentWriter(log, file_bytes, buffer_bytes)
        return log

    @classmethod
    def _load(cls, folder: Path, descriptor: int, identity: LogIdentity, start: Lsn) -> Self:
        head = Head.load(folder)
        for name in FOLDERS:
            (folder / name).mkdir(exist_ok=True)
        if head is None:
            head = Head(identity, start)
            # The journal first: where there is a log.json, there is a log.
            Journal.create(folder / "journal", head.epoch, start).close()
            sync_folder(folder)
            head.store(folder)
        journal, contents = Journal.open(folder / "journal", head.epoch)
        try:
            log = cls(folder, descriptor, head, journal, contents)
            log._schemas.load(log.end)
            log._check_files_and_clean()
        except BaseException:
            journal.close()
            raise
        return log

    @property
    def start(self) -> Lsn:
        """The log has every change after this position, except retired ones."""
        return self._head.start

    @property
    def end(self) -> Lsn:
        """Everything up to here is durable and may be acknowledged."""
        return self._end

    @property
    def timeline(self) -> int | None:
        """The source's timeline that ``end`` is on. None: not set since the start."""
        return self._head.timeline

    def go_on_with(self, timeline: int) -> None:
        """Note that the log is on this timeline of the source from ``end`` on."""
        with self._retiring, disk_errors(self.folder):
            head = replace(self._head, timeline=timeline)
            head.store(self.folder)
            self._head = head

    @property
    def size_bytes(self) -> int:
        """The files of all segments, the open one included; copies are not counted."""
        return self._sealed_bytes + (0 if self._writer is None else self._writer.open_bytes)

    @property
    def has_room(self) -> bool:
        """Whether receiving may go on. A transaction larger than the limit must still end, so it
        alone never fills the log."""
        return self._sealed_bytes == 0 or self.size_bytes < self.max_bytes

    @property
    def closed(self) -> bool:
        return self._closed

    def writer(self) -> SegmentWriter:
        """The log's one writer."""
        if self._writer is None:
            raise LogError(f"the change log {self.folder} is closed")
        return self._writer

    def segments(
        self, after: Lsn, upto: Lsn | None = None, table: int | None = None
    ) -> list[Segment]:
        """The sealed segments that reach into ``(after, upto]``, in order.

        With a table, only those that have changes of it, with its files only. A segment that
        begins before ``after`` is given whole: readers filter by ``_lsn``.
        """
        with self._changed:
            found = self._segments[bisect_right(self._ends, after) :]
        if upto is not None:
            found = [segment for segment in found if segment.span.after < upto]
        if table is not None:
            narrowed = (segment.of_table(table) for segment in found)
            found = [segment for segment in narrowed if segment.files]
        return found

    def check(self, files: Iterable[LogFile]) -> None:
        """Raise LogDamaged if one of the files is not as it was written. Call it before the files
        are used. It reads all of them."""
        for file in files:
            damage = damage_of(self.folder / file.path, file.bytes, file.checksum)
            if damage is not None:
                raise LogDamaged(damage, hint=DAMAGE_HINT)

    def waiting(self, after: Lsn) -> int:
        """How many segments were sealed past ``after``."""
        with self._changed:
            return len(self._ends) - bisect_right(self._ends, after)

    def wait_for_change(self, after: Lsn, timeout: float) -> bool:
        """Wait for a segment past ``after``. Returns False if none comes in time, or if the log was
        closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or bool(self._ends and self._ends[-1] > after), timeout
            )
            return bool(self._ends and self._ends[-1] > after)

    def schema(self, table: int, version: Lsn) -> TableSchema:
        """The schema of the log's files of this table and version."""
        schema = self._schemas.get(table, version)
        if schema is None:
            raise LogError(
                f"the change log {self.folder} has no schema {version} of table {table}",
                hint="It may have been retired with the last segment that used it.",
            )
        return schema

    def store_schema(self, schema: TableSchema) -> None:
        """Store the schema that a table is copied with, before the log has changes of the table."""
        with disk_errors(self.folder):
            self._schemas.store([schema])

    def latest_schema(self, table: int, at: Lsn | None = None) -> TableSchema | None:
        """The newest schema of the table (at a position: the newest that is not after it)."""
        return self._schemas.latest(table, at)

    def covers(self, table: int, position: Lsn) -> bool:
        """Whether the log has, or will get, every change of the table after ``position``."""
        head = self._head
        return position >= head.start and head.retired.get(table, 0) <= position

    def break_off(self, table: int, since: Lsn = Lsn(0)) -> None:
        """Note that changes of the table are missing from here on: no position covers the table, up
        to ``since`` at least."""
        with self._retiring, disk_errors(self.folder):
            retired = {**self._head.retired, table: Lsn(max(self._end, since) + 1)}
            head = replace(self._head, retired=retired)
            head.store(self.folder)
            self._head = head

    def retire(self, upto: Lsn, older_than: float) -> int:
        """Remove the segments that end at or before ``upto`` and were sealed longer ago than that.

        ``upto`` must be applied everywhere: files may vanish while they are still read. An
        age of 0 removes all of them at once; otherwise a call soon after the last one (a sixtieth
        of the age) waits for more. Returns how many segments went.
        """
        with self._retiring, disk_errors(self.folder):
            if self._closed or (
                older_than > 0 and time.monotonic() - self._retired_at < older_than / 60
            ):
                return 0
            now = time.time()
            with self._changed:
                count = bisect_right(self._ends, upto)
                if older_than > 0:
                    ages = (now - s.sealed > older_than for s in self._segments[:count])
                    count = next((at for at, old in enumerate(ages) if not old), count)
                gone = self._segments[:count]
            if not gone:
                return 0
            self._retired_at = time.monotonic()
            retired = dict(self._head.retired)
            for segment in gone:
                for file in segment.files:
                    retired[file.table] = max(retired.get(file.table, Lsn(0)), segment.span.upto)
            # Readers must learn that it is gone before it goes.
            head = replace(self._head, first=gone[-1].sequence + 1, retired=retired)
            head.store(self.folder)
            self._head = head
            self._forget_segments(count)
            self._remove_files(gone)
            self._remove_unused(head.first)
            return count

    def restart(self, start: Lsn) -> None:
        """Drop all segments and begin again at ``start``, because the slot is ahead of the log.

        The switch is atomic. Only the writer's thread may call it, and an open segment is
        abandoned. Copies stay: ``covers`` says whether one can still be used.
        """
        self.writer().abandon()
        with self._retiring, disk_errors(self.folder):
            epoch = self._head.epoch + 1
            last = self._journal.last_sequence
            journal = Journal.create(self.folder / "journal", epoch, start, sequence=last)
            head = Head(self._head.identity, start, epoch, self._sequence)
            try:
                head.store(self.folder)
            except BaseException:
                journal.close()
                raise
            former, self._journal = self._journal, journal
            former.drop_all()
            with self._changed:
                self._head = head
                self._end = self._reached = start
                self._journal_files = {journal.number: -1}
            gone = self._forget_segments(len(self._segments))
            self._schemas.clear()
            self._remove_files(gone)

    def copy(self, table: int) -> CopyFolder:
        """The table's copy, which may be empty."""
        return CopyFolder(table, self.folder / "copy" / str(table))

    def copies(self) -> list[CopyFolder]:
        """The copies in the folder, finished or not, by table."""
        return sorted(find_copies(self.folder / "copy"), key=lambda copy: copy.table)

    def close(self) -> None:
        """Abandon the open segment and unlock the folder. Repeats safely. The writer's thread must
        have ended, or be the caller."""
        if self._closed:
            return
        try:
            writer = self.writer()
            writer.close()
            writer.advance(self._reached, now=True)
        finally:
            with self._retiring, self._changed:
                self._closed = True
                self._writer = None
                self._changed.notify_all()
            self._journal.close()
            os.close(self._lock_descriptor)

    # What follows is for the writer.

    def _next_sequence(self) -> int:
        return self._sequence

    def _may_be_sealed(self, sequence: int) -> bool:
        """Whether the segment's record may be in the journal, although sealing it was
        interrupted."""
        return sequence <= self._journal.last_sequence or self._journal.torn

    def _empty_segment(self, upto: Lsn, commit_time: int, transactions: int) -> Segment:
        return Segment(Span(self._end, upto), commit_time, transactions, ())

    def _advance(self, upto: Lsn, now: bool) -> None:
        self._reached = max(self._reached, upto)
        if self._reached <= self._end:
            return
        if now or time.monotonic() - self._end_recorded >= END_SECONDS:
            self._journal.append_end(self._reached)
            self._end = self._reached
            self._end_recorded = time.monotonic()
            self._rotate()

    def _seal(
        self,
        upto: Lsn,
        commit_time: int,
        transactions: int,
        files: tuple[LogFile, ...],
        schemas: tuple[TableSchema, ...],
    ) -> Segment:
        """Record the segment. Its files are durable."""
        if upto <= self._end:
            raise ValueError(
                f"a segment with changes cannot end at {upto}: the log is at {self._end}"
            )
        self._schemas.store(schemas)
        span = Span(self._end, upto)
        segment = Segment(span, commit_time, transactions, files, self._sequence, time.time())
        try:
            self._journal.append_segment(segment)
        finally:
            # Also when an interrupt came right after the record was durable.
            if self._journal.last_sequence == segment.sequence:
                self._add_segment(segment)
            elif self._journal.torn:
                self._sequence += 1
        self._rotate()
        return segment

    def _add_segment(self, segment: Segment) -> None:
        self._schemas.count(segment.files)
        with self._changed:
            self._segments.append(segment)
            self._ends.append(int(segment.span.upto))
            self._sealed_bytes += segment.bytes
            self._journal_files[self._journal.number] = segment.sequence
            self._end = segment.span.upto
            self._reached = max(self._reached, self._end)
            self._end_recorded = time.monotonic()
            self._sequence = segment.sequence + 1
            self._changed.notify_all()

    def _rotate(self) -> None:
        if self._journal.full:
            # What was to be recorded is; a disk too full for a new file is met at the next seal.
            with suppress(OSError):
                journal = self._journal.rotated(self._end)
                with self._changed:
                    self._journal = journal
                    self._journal_files[journal.number] = -1

    # Opening and retiring.

    def _check_files_and_clean(self) -> None:
        """Check that every file of a segment is complete, and remove all other files."""
        expected = {file.path: file.bytes for s in self._segments for file in s.files}
        strangers = []
        for bucket in sorted((self.folder / "data").iterdir()):
            with os.scandir(bucket) as entries:
                for entry in entries:
                    path = f"data/{bucket.name}/{entry.name}"
                    length = expected.pop(path, None)
                    if length is None:
                        strangers.append(self.folder / path)
                    elif entry.stat().st_size != length:
                        raise LogDamaged(
                            f"{self.folder / path} has {entry.stat().st_size:,} bytes, "
                            f"not the {length:,} that were written",
                            hint=DAMAGE_HINT,
                        )
        if expected:
            raise LogDamaged(
                f"{self.folder / next(iter(expected))} is missing"
                + (f", and {len(expected) - 1} more files" if len(expected) > 1 else ""),
                hint=DAMAGE_HINT,
            )
        for stranger in (*strangers, *self.folder.glob(f"*{TEMPORARY}")):
            remove(stranger)
        remove_strangers(self.folder / "copy")
        self._remove_unused(self._head.first)

    def _forget_segments(self, count: int) -> list[Segment]:
        with self._changed:
            gone = self._segments[:count]
            del self._segments[:count], self._ends[:count]
            self._sealed_bytes -= sum(segment.bytes for segment in gone)
        self._schemas.discount(file for segment in gone for file in segment.files)
        return gone

    def _remove_files(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            for file in segment.files:
                remove(self.folder / file.path)

    def _remove_unused(self, first: int) -> None:
        """Remove journal files, folders and schemas that no segment needs."""
        self._schemas.drop_unused()
        with self._changed:
            current = self._journal.number
            old = [n for n, last in self._journal_files.items() if n != current and last < first]
            for number in old:
                del self._journal_files[number]
            filling = self._sequence // SEGMENTS_A_FOLDER
        for number in old:
            self._journal.drop_file(number)
        for bucket in (self.folder / "data").iterdir():
            if int(bucket.name) < filling and not any(bucket.iterdir()):
                bucket.rmdir()
