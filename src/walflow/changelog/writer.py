"""Collecting the changes of a segment and sealing it."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from walflow.changelog.durable import disk_errors, remove, sync, sync_folder
from walflow.changelog.parquet import META_COLUMNS, OpenFile, common_schema, joined
from walflow.changelog.records import LogFile, Segment
from walflow.checksums import checksum_of
from walflow.model import ChangeStats, Lsn, TableSchema

if TYPE_CHECKING:
    from walflow.changelog.log import ChangeLog

__all__ = ["SegmentWriter"]

MAX_OPEN_FILES = 128
SMALL_BATCHES = 256
"""This many batches of a table are joined into one: each costs memory beyond its values."""
COLUMN_OVERHEAD = 768
"""What an Arrow array in a batch costs beside its values, in bytes, roughly."""
SEGMENTS_A_FOLDER = 1000


class _OpenTable:
    """The part of the open segment that one table, in one schema version, has."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.bytes = 0
        self.file: OpenFile | None = None
        self.batches: list[pa.RecordBatch] = []
        self.recent: list[pa.RecordBatch] = []
        self.stats = ChangeStats()
        self._recent_bytes = 0
        self._form: pa.Schema | None = None

    def add(self, batch: pa.RecordBatch, stats: ChangeStats) -> None:
        if self._form is None or not batch.schema.equals(self._form):
            self._check(batch.schema)
            self._form = batch.schema
        batch, held = _without_parent(batch)
        self.recent.append(batch)
        self._recent_bytes += held
        self.stats += stats
        self.bytes += held
        if len(self.recent) >= SMALL_BATCHES:
            self.join_recent()

    def join_recent(self) -> None:
        if len(self.recent) > 1:
            self.recent = [joined(self.recent)]
            self.bytes += _held(self.recent[0]) - self._recent_bytes
        self.batches += self.recent
        self.recent, self._recent_bytes = [], 0

    def take(self) -> tuple[list[pa.RecordBatch], ChangeStats]:
        self.join_recent()
        batches, stats = self.batches, self.stats
        self.batches, self.stats, self.bytes = [], ChangeStats(), 0
        return batches, stats

    def _check(self, schema: pa.Schema) -> None:
        columns = [name for name in schema.names if name not in META_COLUMNS]
        if columns != list(self.schema.column_names):
            raise ValueError(
                f"a batch of {self.schema.name} has the columns {columns}, "
                f"its schema {list(self.schema.column_names)}"
            )


class SegmentWriter:
    """Writes one segment after the other. For one thread.

    If anything raises, the open segment is abandoned: the log is as it was after the last ``seal``,
    and the same changes can be appended again.
    """

    def __init__(self, log: ChangeLog, file_bytes: int, buffer_bytes: int) -> None:
        self._log = log
        self._file_bytes = file_bytes
        self._buffer_bytes = buffer_bytes
        self._group_bytes = max(1, buffer_bytes // 4)
        self._tables: dict[tuple[int, Lsn], _OpenTable] = {}
        self._open: OrderedDict[tuple[int, Lsn], OpenFile] = OrderedDict()
        self._files: list[LogFile] = []
        self._unsynced: list[Path] = []
        self._syncing: list[Future[None]] = []
        self._pool: ThreadPoolExecutor | None = None
        self._synced_folder: Path | None = None
        self._sequence = 0
        self._started = 0
        self._buffered = 0
        self._open_bytes = 0

    @property
    def buffered_bytes(self) -> int:
        """The memory that the open segment takes."""
        return self._buffered

    @property
    def open_bytes(self) -> int:
        """The disk space that the open segment takes."""
        return self._open_bytes

    def append(self, schema: TableSchema, batch: pa.RecordBatch, stats: ChangeStats) -> None:
        """Add changes of a table, which follow those added before.

        Small tables stay in memory until the segment is sealed. A table that outgrows its share is
        written to a file. Batches of one schema version may differ in their optional columns.
        """
        if batch.num_rows == 0:
            return
        try:
            with disk_errors(self._log.folder):
                self._append(schema, batch, stats)
        except BaseException:
            self.abandon()
            raise

    def seal(self, upto: Lsn, commit_time: int, transactions: int) -> Segment:
        """End the segment at ``upto``, the end of a transaction. It is durable when this returns.

        A segment without changes is not stored. ``ChangeLog.end`` then follows within about a
        second (see ``advance``), and is the position to acknowledge.
        """
        if not self._tables:
            empty = self._log._empty_segment(upto, commit_time, transactions)
            self.advance(upto)
            return empty
        try:
            with disk_errors(self._log.folder):
                for table in self._tables.values():
                    self._flush(table)
                    self._finish_file(table)
                self._sync_all()
                segment = self._log._seal(
                    upto,
                    commit_time,
                    transactions,
                    tuple(sorted(self._files, key=lambda f: (f.table, f.version, f.path))),
                    tuple(table.schema for table in self._tables.values()),
                )
        except BaseException:
            self.abandon()
            raise
        self._forget()
        return segment

    def advance(self, upto: Lsn, *, now: bool = False) -> Lsn:
        """Note that nothing happened up to ``upto``. Returns the position to acknowledge.

        The end is recorded at most about once a second, unless ``now`` is set (before a server's
        shutdown, or when the server asks for a reply). Does nothing inside an open segment.
        """
        if not self._tables:
            with disk_errors(self._log.folder):
                self._log._advance(upto, now)
        return self._log.end

    def abandon(self) -> None:
        """Abandon the open segment, because the connection was lost inside it. Repeats safely."""
        wait(self._syncing)
        for file in self._open.values():
            file.discard()
        if not self._log._may_be_sealed(self._sequence):
            for path in self._paths():
                remove(self._log.folder / path)
        self._forget()

    def close(self) -> None:
        self.abandon()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _append(self, schema: TableSchema, batch: pa.RecordBatch, stats: ChangeStats) -> None:
        key = (schema.oid, schema.version)
        table = self._tables.get(key)
        if table is None:
            self._log._schemas.use(schema)
            table = self._tables[key] = _OpenTable(schema)
        before = table.bytes
        table.add(batch, stats)
        self._buffered += table.bytes - before
        if table.bytes >= self._group_bytes:
            self._flush(table)
        elif self._buffered >= self._buffer_bytes:
            self._make_room()

    def _make_room(self) -> None:
        """Reduce memory to half of the limit, by writing as few and as large pieces as possible."""
        for table in self._tables.values():
            before = table.bytes
            table.join_recent()
            self._buffered += table.bytes - before
        for table in sorted(self._tables.values(), key=lambda table: table.bytes, reverse=True):
            if self._buffered <= self._buffer_bytes // 2:
                break
            self._flush(table)

    def _flush(self, table: _OpenTable) -> None:
        held = table.bytes
        batches, stats = table.take()
        self._buffered -= held
        if not batches:
            return
        schema = common_schema([batch.schema for batch in batches])
        if table.file is not None and not table.file.holds(schema):
            self._finish_file(table)
        file = table.file or self._start_file(table, schema)
        self._open.move_to_end((table.schema.oid, table.schema.version))
        file.write(batches, stats, self._group_bytes)
        if file.bytes >= self._file_bytes:
            self._finish_file(table)
        # Kept as a number, because other threads ask for it.
        self._open_bytes = sum(file.bytes for file in self._files) + sum(
            file.bytes for file in self._open.values()
        )

    def _start_file(self, table: _OpenTable, schema: pa.Schema) -> OpenFile:
        while len(self._open) >= MAX_OPEN_FILES:
            self._finish_file(self._tables[next(iter(self._open))])
        if not self._started:
            self._sequence = self._log._next_sequence()
        sequence = self._sequence
        folder = f"data/{sequence // SEGMENTS_A_FOLDER:06d}"
        if not self._started:
            (self._log.folder / folder).mkdir(exist_ok=True)
        oid, version = table.schema.oid, table.schema.version
        path = f"{folder}/{oid}-{version:016x}-{sequence:010d}-{self._started:06d}.parquet"
        self._started += 1
        try:
            file = OpenFile(self._log.folder, path, schema)
        except BaseException:
            remove(self._log.folder / path)
            raise
        table.file = self._open[oid, version] = file
        return file

    def _finish_file(self, table: _OpenTable) -> None:
        file = table.file
        if file is None:
            return
        length = file.finish()
        table.file = None
        del self._open[table.schema.oid, table.schema.version]
        path = self._log.folder / file.path
        self._files.append(
            LogFile(
                file.path,
                table.schema.oid,
                table.schema.version,
                length,
                file.stats,
                checksum_of(path),
            )
        )
        self._unsynced.append(path)
        if length >= self._file_bytes:
            # The disk works on a full file while the next one is collected.
            self._sync_in_background()

    def _sync_in_background(self) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(4, thread_name_prefix="changelog-sync")
        self._syncing += [self._pool.submit(sync, path) for path in self._unsynced]
        self._unsynced = []

    def _sync_all(self) -> None:
        """All files and the entries of their folder are on the disk when this returns."""
        if len(self._unsynced) > 2:
            self._sync_in_background()
        for path in self._unsynced:
            sync(path)
        for future in self._syncing:
            future.result()
        folder = (self._log.folder / self._files[0].path).parent
        sync_folder(folder)
        if folder != self._synced_folder:
            sync_folder(folder.parent)
            self._synced_folder = folder

    def _paths(self) -> list[str]:
        return [file.path for file in self._files] + [file.path for file in self._open.values()]

    def _forget(self) -> None:
        self._log._schemas.release([table.schema for table in self._tables.values()])
        self._tables = {}
        self._open = OrderedDict()
        self._files, self._unsynced, self._syncing = [], [], []
        self._started = self._buffered = self._open_bytes = 0


def _held(batch: pa.RecordBatch) -> int:
    """The memory that the batch keeps."""
    return int(batch.get_total_buffer_size() + COLUMN_OVERHEAD * batch.num_columns)


def _without_parent(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """The batch and the memory that it holds. A small slice of something large is copied."""
    held = _held(batch)
    # Looking at the values takes as long as looking at the buffers: not for what is small anyway.
    if held < 256 << 10 or held < 2 * batch.nbytes + (64 << 10):
        return batch, held
    batch = batch.take(np.arange(batch.num_rows))
    return batch, _held(batch)
