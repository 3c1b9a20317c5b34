"""The copy of one range of a table: COPY BINARY to a Parquet file, on an executor.

The rows become cells and the cells Arrow by the same converters as the stream's, so a row has the
same values whichever way it came.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
import pyarrow.parquet as parquet
from psycopg import pq, sql

from walflow.errors import ConnectionLost, SnapshotLost, WalflowError
from walflow.model import Column, TableSchema
from walflow.source.cells import Cells, Positions, pad
from walflow.source.connection import Session, connect
from walflow.source.refusals import refusal
from walflow.source.sparse import EXACT_TYPE, exact_map
from walflow.source.values import SESSION_OPTIONS, from_binary

__all__ = [
    "RESULT_SCHEMA",
    "CopiedFile",
    "RangeReader",
    "copied_rows",
    "copy_query",
    "snapshot_session",
]

_BATCH_BYTES = 16 << 20
_OPTIONS = "-c statement_timeout=0 -c idle_in_transaction_session_timeout=0"
_SIGNATURE_SIZE = 19
_TRAILER_SIZE = 2
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
    connection = connect(
        uri,
        application_name=application_name,
        options=f"{SESSION_OPTIONS} {_OPTIONS}",
    )
    try:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot))
    except psycopg.Error as error:
        connection.close()
        if error.sqlstate in (_UNDEFINED_OBJECT, _INVALID_PARAMETER):
            raise SnapshotLost(
                f"the copy's snapshot {snapshot} is gone",
                hint="The session that held it ended. Start again: finished tables are kept.",
            ) from error
        raise
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
    writer: parquet.ParquetWriter | None = None
    rows = 0
    has_exact = False
    try:
        for data, start in _batches(connection, query):
            if not len(start):
                continue  # the signature and the trailer of a range without rows
            batch = _to_arrow(schema.columns, data, start)
            if batch.num_columns > len(schema.columns) and writer is not None and not has_exact:
                # A Parquet file has one form: rows so far are read back under the wider one.
                writer = _widen(writer, unfinished)
            has_exact = has_exact or batch.num_columns > len(schema.columns)
            if has_exact and batch.num_columns == len(schema.columns):
                batch = batch.append_column("_exact", pa.nulls(batch.num_rows, EXACT_TYPE))
            if writer is None:
                writer = _writer(unfinished, batch.schema)
            writer.write_batch(batch, row_group_size=batch.num_rows)
            rows += batch.num_rows
            if progress is not None:
                progress(rows)
    except BaseException:
        if writer is not None:
            writer.close()
        unfinished.unlink(missing_ok=True)
        raise
    if writer is None:
        return None
    writer.close()
    unfinished.rename(path)
    return CopiedFile(str(path), rows, path.stat().st_size, has_exact)


def _writer(path: Path, schema: pa.Schema) -> parquet.ParquetWriter:
    return parquet.ParquetWriter(path, schema, compression="zstd", compression_level=1)


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


def _batches(connection: Session, query: str) -> Iterator[tuple[npt.NDArray[np.uint8], Positions]]:
    """Buffers of whole rows, and where in them each row starts."""
    pgconn = connection.pgconn
    result = pgconn.exec_(f"COPY ({query}) TO STDOUT (FORMAT binary)".encode())
    if result.status != pq.ExecStatus.COPY_OUT:
        raise refusal(result, "copy a table")
    get = pgconn.get_copy_data
    data, sizes = bytearray(), []
    skip = _SIGNATURE_SIZE
    try:
        while True:
            size, row = get(0)
            if size < 0:
                break
            data += row
            sizes.append(size)
            if len(data) >= _BATCH_BYTES:
                yield _rows(data, sizes, skip)
                data, sizes, skip = bytearray(), [], 0
    except psycopg.Error as error:
        raise ConnectionLost(f"the copy broke: {error}") from error
    if sizes:
        yield _rows(data, sizes, skip)
    while (answer := pgconn.get_result()) is not None:
        if answer.status == pq.ExecStatus.FATAL_ERROR:
            raise refusal(answer, "copy a table")


def _rows(data: bytearray, sizes: list[int], skip: int) -> tuple[npt.NDArray[np.uint8], Positions]:
    size = np.array(sizes, np.int64)
    end = np.cumsum(size)
    start = end - size
    start[0] += skip
    # The trailer, and a first frame that holds the signature alone, are no rows.
    return pad(data), start[end - start > _TRAILER_SIZE]


def _to_arrow(
    columns: tuple[Column, ...], data: npt.NDArray[np.uint8], start: Positions
) -> pa.RecordBatch:
    int32: npt.NDArray[np.int32] = np.ndarray((len(data) - 3,), ">i4", data, strides=(1,))
    at = start + 2
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
