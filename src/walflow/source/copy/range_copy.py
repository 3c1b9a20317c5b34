"""The copy of some rows of a table: COPY BINARY to a Parquet file, on an executor.

The rows become cells and the cells Arrow by the same converters as the stream's, so a row has the
same values whichever way it came.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
from psycopg import sql

from walflow.checksums import checksum_of
from walflow.errors import PublicationChanged, SnapshotLost
from walflow.model import CopyFile, TableName, TableSchema
from walflow.source.codec.sparse import EXACT_TYPE
from walflow.source.connection import Session, connect, lift_timeouts, source_error
from walflow.source.copy.binary_rows import rows_to_arrow
from walflow.source.copy.copy_out import copy_out

__all__ = [
    "check_name",
    "copy_queries",
    "copy_query",
    "filter_file",
    "snapshot_session",
]

_PIECE_BYTES = 4 << 20
"""Decoded at once: more falls out of the processor's caches, less costs calls."""
_GROUP_BYTES = 64 << 20
"""A Parquet row group, before compression."""
_UNDEFINED_OBJECT = "42704"
_INVALID_PARAMETER = "22023"


def snapshot_session(
    uri: str, snapshot: str, *, application_name: str, lock_seconds: float
) -> Session:
    """A session that sees the source as the exported snapshot does.

    It waits so long for a table that is locked: then reading it raises TableLocked.
    """
    connection = connect(uri, application_name=application_name)
    try:
        lift_timeouts(connection)
        connection.execute(f"SET lock_timeout = {round(lock_seconds * 1000)}")
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot))
    except psycopg.Error as error:
        connection.close()
        if error.sqlstate in (_UNDEFINED_OBJECT, _INVALID_PARAMETER):
            raise SnapshotLost(
                f"the copy's snapshot {snapshot} is gone",
                hint="The session that held it ended. What was read is kept.",
            ) from error
        raise source_error(str(error), error.sqlstate, "take over the copy's snapshot") from error
    return connection


def check_name(connection: Session, name: TableName, oid: int) -> None:
    """Raise PublicationChanged unless what was just read by this name is the relation.

    A name means what it means now, whatever the snapshot: tables may have exchanged theirs. To be
    called after the reading, whose lock keeps the name as it was then, until the session ends.
    """
    row = connection.execute("SELECT to_regclass(%s)::oid::int8", [name.quoted]).fetchone()
    if row != (oid,):
        raise PublicationChanged(f"{name} is another table now, which took the name of the former")


def copy_query(
    connection: Session,
    query: str,
    schema: TableSchema,
    path: Path,
    *,
    progress: Callable[[int], None] | None = None,
) -> CopyFile | None:
    """Write the rows of a SELECT (its columns in the schema's order) to a Parquet file.

    Gives None, and writes nothing, if there are no rows. The file appears under its name only
    when it is whole and durable; the name itself becomes durable with its folder.
    """
    return copy_queries(connection, [query], schema, path, progress=progress)


def copy_queries(
    connection: Session,
    queries: Iterable[str],
    schema: TableSchema,
    path: Path,
    *,
    progress: Callable[[int], None] | None = None,
    keep: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
) -> CopyFile | None:
    """Like ``copy_query``, with the rows of all queries, of each batch those that ``keep`` keeps.

    ``keep`` is called on a query's rows before the next query is taken.
    """
    # Of its own, because a task that Spark gave up may still be writing.
    unfinished = path.with_name(f"{path.stem}.{uuid.uuid4().hex}.unfinished")
    rows = 0
    file: _RowsFile | None = None
    try:
        for query in queries:
            copying = f"COPY ({query}) TO STDOUT (FORMAT binary)".encode()
            doing = f"copy {schema.name}"
            for copied in copy_out(connection, copying, doing, piece_bytes=_PIECE_BYTES):
                batch = rows_to_arrow(schema.columns, copied)
                batch = batch if keep is None else keep(batch)
                if not batch.num_rows:
                    continue
                if file is None:
                    file = _RowsFile(unfinished)
                file.add(batch, copied.size)
                rows += batch.num_rows
                if progress is not None:
                    progress(rows)
        if file is None:
            return None
        file.close()
    except BaseException:
        if file is not None:
            file.discard()
        raise
    return _finished(unfinished, path, rows, file.overflow)


def filter_file(
    source: Path, path: Path, keep: Callable[[pa.Table], pa.ChunkedArray], columns: list[str]
) -> CopyFile | None:
    """Write the rows of a copy's file that ``keep`` is true for to another; None if that are none.

    ``keep`` is given those of the ``columns`` that the file has. If it is true for all rows, no
    file is written, and the result names the source.
    """
    with parquet.ParquetFile(source) as file:
        schema = file.schema_arrow
        read = [name for name in columns if name in schema.names]
        masks = [
            keep(file.read_row_group(group, columns=read)) for group in range(file.num_row_groups)
        ]
        kept = [pc.sum(mask).as_py() or 0 for mask in masks]
        rows, overflow = sum(kept), "_exact" in schema.names
        if rows == file.metadata.num_rows:
            return _described(source, rows, overflow)
        if not rows:
            return None
        unfinished = path.with_name(f"{path.stem}.{uuid.uuid4().hex}.unfinished")
        with _writer(unfinished, schema) as writer:
            for group, mask in enumerate(masks):
                if kept[group]:
                    table = file.read_row_group(group).filter(mask)
                    writer.write_table(table, row_group_size=table.num_rows)
    return _finished(unfinished, path, rows, overflow)


def _finished(unfinished: Path, path: Path, rows: int, overflow: bool) -> CopyFile:
    descriptor = os.open(unfinished, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    unfinished.rename(path)
    return _described(path, rows, overflow)


def _described(path: Path, rows: int, overflow: bool) -> CopyFile:
    return CopyFile(path.name, rows, path.stat().st_size, overflow, checksum_of(path))


class _RowsFile:
    """A Parquet file that grows by row groups, and widens when an overflow text turns up."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: parquet.ParquetWriter | None = None
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self.overflow = False

    def add(self, batch: pa.RecordBatch, size: int) -> None:
        if not self.overflow and "_exact" in batch.schema.names:
            self.overflow = True
            if self._writer is not None:
                # A Parquet file has one schema: write the rows so far again with the wider one.
                self._writer = _widen(self._writer, self._path)
        self._batches.append(batch)
        self._bytes += size
        if self._bytes >= _GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        batches = [_with_overflow(batch) if self.overflow else batch for batch in self._batches]
        table = pa.Table.from_batches(batches)
        if self._writer is None:
            self._writer = _writer(self._path, table.schema)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._batches, self._bytes = [], 0

    def close(self) -> None:
        if self._batches:
            self._write()
        assert self._writer is not None
        self._writer.close()

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._path.unlink(missing_ok=True)


def _with_overflow(batch: pa.RecordBatch) -> pa.RecordBatch:
    if "_exact" in batch.schema.names:
        return batch
    return batch.append_column("_exact", pa.nulls(batch.num_rows, EXACT_TYPE))


def _writer(path: Path, schema: pa.Schema) -> parquet.ParquetWriter:
    # The destination may keep these files: zstd makes them a third of lz4's size. Dictionaries
    # would double the CPU, and zstd finds most of what they would save.
    return parquet.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        store_schema=False,
    )


def _widen(writer: parquet.ParquetWriter, path: Path) -> parquet.ParquetWriter:
    """Rewrite what has been written so far with the column of overflow texts."""
    writer.close()
    narrow = path.with_suffix(".narrow")
    path.rename(narrow)
    with parquet.ParquetFile(narrow) as source:
        schema = source.schema_arrow.append(pa.field("_exact", EXACT_TYPE))
        wide = _writer(path, schema)
        for group in range(source.num_row_groups):
            table = source.read_row_group(group)
            wide.write_table(table.append_column("_exact", pa.nulls(table.num_rows, EXACT_TYPE)))
    narrow.unlink()
    return wide
