"""Rows of a DataFrame as Arrow batches on the driver, never all of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["arrow_batches"]

_AT_ONCE = 20_000
_PART_ROWS = 100_000


def arrow_batches(
    frame: DataFrame, size: int, *, order: Sequence[str] = (), at_most: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows in batches of ``size``, the last of which may have fewer; one batch without rows if
    there are none. Timestamps with a zone are in UTC.

    ``order``: the columns that the rows are sorted by. ``at_most``: how many rows there can be, if
    that is known; few are fetched at once, others partition by partition, so that the driver holds
    one of them at a time.
    """
    if at_most is not None and at_most <= _AT_ONCE:
        table = frame.toArrow()
        if order:
            table = table.sort_by([(name, "ascending") for name in order])
        batches: Iterable[pa.RecordBatch] = table.to_batches()
    else:
        if order:
            parts = 1 + (at_most or 0) // _PART_ROWS
            frame = frame.repartitionByRange(parts, *order).sortWithinPartitions(*order)
        batches = _streamed(frame)
    none_yet = True
    for batch in _cut(batches, size):
        none_yet = False
        yield _in_utc(batch)
    if none_yet:
        schema = frame.limit(0).toArrow().schema
        yield _in_utc(pa.RecordBatch.from_pylist([], schema=schema))


def _streamed(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """In the frame's order. Executors pack batches as bytes, since only rows can be streamed."""
    for row in frame.mapInArrow(_packed, "batch binary").toLocalIterator():
        with pa.ipc.open_stream(bytes(row["batch"])) as reader:
            yield from reader


def _packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs on executors. Pickled by name: walflow is importable there."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield pa.record_batch({"batch": pa.array([sink.getvalue().to_pybytes()], pa.binary())})


def _cut(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of this size: how they came must not show in what is sent."""
    waiting: list[pa.RecordBatch] = []
    room = size
    for batch in batches:
        while batch.num_rows:
            part, batch = batch.slice(0, room), batch.slice(room)
            waiting.append(part)
            room -= part.num_rows
            if not room:
                yield pa.concat_batches(waiting)
                waiting, room = [], size
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
