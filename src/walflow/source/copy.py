"""The copy of one range of a table: COPY BINARY to a Parquet file, on an executor.

The rows become cells and the cells Arrow by the same converters as the stream's, so a row has the
same values whichever way it came.
"""

from __future__ import annotations

import contextlib
import errno
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
import pyarrow.parquet as parquet
from psycopg import sql

from walflow.errors import DiskFull, LogError, SnapshotLost, WalflowError
from walflow.model import Column, TableSchema
from walflow.source.cells import Cells
from walflow.source.connection import Session, connect, lift_timeouts, source_error
from walflow.source.copyout import Piece, copy_out
from walflow.source.sparse import EXACT_TYPE, exact_map
from walflow.source.values import from_binary

__all__ = [
    "RESULT_SCHEMA",
    "CopiedFile",
    "RangeReader",
    "copied_rows",
    "copy_query",
    "snapshot_session",
]

_PIECE_BYTES = 4 << 20
"""Decoded at once: more falls out of the processor's caches, less costs calls."""
_GROUP_BYTES = 64 << 20
"""A Parquet row group, before compression."""
_UNDEFINED_OBJECT = "42704"
_INVALID_PARAMETER = "22023"


@dataclass(frozen=True, slots=True)
class CopiedFile:
    path: str
    rows: int
    bytes: int
    exact: bool
    """Whether the file has the column of exact texts."""


def snapshot_session(uri: str, snapshot: str, *, application_name: str) -> Session:
    """A session that sees the source as the exported snapshot does."""
    connection = connect(uri, application_name=application_name)
    try:
        lift_timeouts(connection)
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot))
    except psycopg.Error as error:
        connection.close()
        if error.sqlstate in (_UNDEFINED_OBJECT, _INVALID_PARAMETER):
            raise SnapshotLost(
                f"the copy's snapshot {snapshot} is gone",
                hint="The session that held it ended. Start again: finished tables are kept.",
            ) from error
        raise source_error(str(error), error.sqlstate, "take over the copy's snapshot") from error
    return connection


def copy_query(
    connection: Session,
    query: str,
    schema: TableSchema,
    path: Path,
    *,
    progress: Callable[[int], None] | None = None,
) -> CopiedFile | None:
    """Write the rows of a SELECT (its columns in the schema's order) to a Parquet file.

    Gives None, and writes nothing, if there are no rows. The file appears under its name only
    when it is whole.
    """
    unfinished = path.with_suffix(".unfinished")
    rows = 0
    file: _CopyFile | None = None
    try:
        copying = f"COPY ({query}) TO STDOUT (FORMAT binary)".encode()
        for piece in copy_out(connection, copying, f"copy {schema.name}", piece_bytes=_PIECE_BYTES):
            if file is None:
                file = _CopyFile(unfinished)
            file.add(_to_arrow(schema.columns, piece), len(piece.data))
            rows += len(piece)
            if progress is not None:
                progress(rows)
        if file is None:
            return None
        file.close()
    except BaseException:
        if file is not None:
            file.discard()
        raise
    unfinished.rename(path)
    return CopiedFile(str(path), rows, path.stat().st_size, file.exact)


class _CopyFile:
    """A Parquet file that grows by row groups, and widens when an exact text turns up."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: parquet.ParquetWriter | None = None
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self.exact = False

    def add(self, batch: pa.RecordBatch, size: int) -> None:
        if not self.exact and "_exact" in batch.schema.names:
            self.exact = True
            if self._writer is not None:
                # A Parquet file has one form: rows so far are read back under the wider one.
                self._writer = _widen(self._writer, self._path)
        self._batches.append(batch)
        self._bytes += size
        if self._bytes >= _GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        batches = [_with_exact(batch) if self.exact else batch for batch in self._batches]
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


def _with_exact(batch: pa.RecordBatch) -> pa.RecordBatch:
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
    """Rewrite what has been written so far with the column of exact texts."""
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


def _to_arrow(columns: tuple[Column, ...], piece: Piece) -> pa.RecordBatch:
    data = piece.data
    int32: npt.NDArray[np.int32] = np.ndarray((len(data) - 3,), ">i4", data, strides=(1,))
    at = piece.start + 2
    arrays = []
    exact = {}
    for column in columns:
        length = int32[at].astype(np.int64)
        at = at + 4
        valid: npt.NDArray[np.bool_] | None = length >= 0
        if valid is not None and valid.all():
            valid = None
        else:
            length = np.maximum(length, 0)
        end = at + length
        converted = from_binary(column, Cells(data, at, end, valid))
        arrays.append(converted.values)
        if converted.exact is not None:
            exact[column.name] = converted.exact
        at = end
    names = [column.name for column in columns]
    texts = exact_map(exact)
    if texts is not None:
        arrays.append(texts)
        names.append("_exact")
    return pa.RecordBatch.from_arrays(arrays, names=names)


RESULT_SCHEMA = "path string, rows bigint, bytes bigint, exact boolean, error binary"
"""What RangeReader yields, as Spark DDL: a row a finished file, or one row with a pickled error."""


@dataclass(frozen=True, slots=True)
class RangeReader:
    """What an executor runs: copies the ranges of its share, one session for all of them.

    Called by Spark with batches that name the shares (``id``). Errors are yielded, not raised,
    because Spark would keep only their text.
    """

    uri: str
    snapshot: str
    application_name: str
    schema: TableSchema
    folder: str
    shares: tuple[tuple[tuple[int, str], ...], ...]
    """For each share: numbers (they name the files) and queries of its ranges."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for share in batch.column("id").to_pylist():
                try:
                    for copied in self._copy(self.shares[share]):
                        yield _result(copied, None)
                except WalflowError as error:
                    yield _result(None, error)
                except OSError as error:
                    yield _result(None, _disk_error(error, self.folder))

    def _copy(self, ranges: tuple[tuple[int, str], ...]) -> Iterator[CopiedFile]:
        with snapshot_session(
            self.uri, self.snapshot, application_name=self.application_name
        ) as session:
            for number, query in ranges:
                path = Path(self.folder) / f"{number:06}.parquet"
                copied = copy_query(
                    session, query, self.schema, path, progress=_Progress(path.with_suffix(".rows"))
                )
                if copied is not None:
                    yield copied


def _disk_error(error: OSError, folder: str) -> WalflowError:
    kind = DiskFull if error.errno == errno.ENOSPC else LogError
    return kind(f"a copy could not be written to {folder}: {error}")


@dataclass(frozen=True, slots=True)
class _Progress:
    """Tells the driver how far a range is, through a small file beside the data."""

    path: Path

    def __call__(self, rows: int) -> None:
        self.path.write_text(str(rows))


def copied_rows(folder: Path) -> int:
    """How many rows the executors have read into this folder so far."""
    total = 0
    for path in folder.glob("*.rows"):
        with contextlib.suppress(ValueError, FileNotFoundError):  # being written just now
            total += int(path.read_text())
    return total


def _result(copied: CopiedFile | None, error: WalflowError | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "path": pa.array([copied and copied.path], pa.string()),
            "rows": pa.array([copied and copied.rows], pa.int64()),
            "bytes": pa.array([copied and copied.bytes], pa.int64()),
            "exact": pa.array([copied and copied.exact], pa.bool_()),
            "error": pa.array([error and pickle.dumps(error)], pa.binary()),
        }
    )
