"""Rows of a DataFrame as Arrow batches on the driver, never all of them at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["AtMost", "arrow_batches", "in_files"]

_AT_ONCE = 20_000
_AT_ONCE_BYTES = 16 << 20
_PART_ROWS = 100_000
_PART_BYTES = 64 << 20
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class AtMost:
    """How much there can be."""

    rows: int
    bytes: int


def in_files(files: Iterable[str], rows: int) -> AtMost:
    """So many rows, which are in these Parquet files: their footers say how large values are when
    they are not compressed."""
    size = 0
    for file in files:
        footer = pq.read_metadata(file)
        size += sum(footer.row_group(n).total_byte_size for n in range(footer.num_row_groups))
    return AtMost(rows, size)


def arrow_batches(
    frame: DataFrame, size: int, *, order: Sequence[str] = (), at_most: AtMost | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows in batches of ``size``, the last of which may have fewer; one batch without rows if
    there are none. A batch that would be larger than 16 MB has fewer rows, but one at least.
    Timestamps with a zone are in UTC.

    ``order``: the columns that the rows are sorted by. ``at_most``: what there can be, if that is
    known; little is fetched at once, more of it partition by partition, so that the driver holds
    one of them at a time.
    """
    if at_most is not None and at_most.rows <= _AT_ONCE and at_most.bytes <= _AT_ONCE_BYTES:
        table = frame.toArrow()
        if order:
            table = table.sort_by([(name, "ascending") for name in order])
        batches: Iterable[pa.RecordBatch] = table.to_batches()
    else:
        if order:
            frame = frame.repartitionByRange(_parts(at_most), *order).sortWithinPartitions(*order)
        batches = _streamed(frame)
    none_yet = True
    for batch in _cut(batches, size):
        none_yet = False
        yield _in_utc(batch)
    if none_yet:
        schema = frame.limit(0).toArrow().schema
        yield _in_utc(pa.RecordBatch.from_pylist([], schema=schema))


def _parts(at_most: AtMost | None) -> int:
    if at_most is None:
        return 1
    return 1 + max(at_most.rows // _PART_ROWS, at_most.bytes // _PART_BYTES)


def _streamed(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """In the frame's order. Executors pack batches as bytes, since only rows can be streamed."""
    for row in frame.mapInArrow(_packed, "batch binary").toLocalIterator():
        with pa.ipc.open_stream(bytes(row["batch"])) as reader:
            yield from reader


def _packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs on executors. Pickled by name: walflow is importable there."""
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    for batch in batches:
        while batch.num_rows:
            # Spark's batches are counted in rows, which may be wide.
            rows = max(1, _fitting(batch, _PIECE_BYTES))
            piece, batch = batch.slice(0, rows), batch.slice(rows)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, piece.schema, options=options) as writer:
                writer.write_batch(piece)
            yield pa.record_batch({"batch": pa.array([sink.getvalue().to_pybytes()], pa.binary())})


def _fitting(batch: pa.RecordBatch, limit: int) -> int:
    """How many of the first rows are together not larger than this."""
    if batch.nbytes <= limit:
        return int(batch.num_rows)
    return bisect_right(range(1, batch.num_rows), limit, key=lambda n: batch.slice(0, n).nbytes)


def _cut(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of this size: how they came must not show in what is sent."""
    waiting: list[pa.RecordBatch] = []
    room, space = size, _PIECE_BYTES
    for batch in batches:
        while batch.num_rows:
            rows = _fitting(batch.slice(0, room), space)
            if rows or not waiting:
                part, batch = batch.slice(0, rows or 1), batch.slice(rows or 1)
                waiting.append(part)
                room, space = room - part.num_rows, space - part.nbytes
            if not room or not rows:
                yield pa.concat_batches(waiting)
                waiting, room, space = [], size, _PIECE_BYTES
    if waiting:
        yield pa.concat_batches(waiting)


def _in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A session may have another time zone; the moments are the same."""
    fields = [field.with_type(_utc(field.type)) for field in batch.schema]
    return batch.cast(pa.schema(fields))


def _utc(kind: Any) -> Any:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_utc(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_utc(field.type)) for field in kind])
    return kind
