"""Whether a copy that broke off can go on under a newer snapshot, and what it must read again.

Why that is right is in docs/decisions/0008-resuming-a-copy.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as parquet

from walflow.changelog import ChangeLog, CopyPlan, FinishedRange, LogFile
from walflow.errors import LogDamaged, Stopped
from walflow.model import ChangeStats, Lsn
from walflow.source.catalog.published_tables import PublishedTable
from walflow.source.copy.key_reads import can_be_read_by_key, key_texts
from walflow.source.copy.snapshot import OpenSnapshot, SeenRelation
from walflow.spark.touched import touched_keys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["StartOver", "check_log", "check_plan", "touched_texts", "wait_for_log"]

_FEW_KEYS = 100_000
_MANY_KEYS = 5_000_000
"""Executors hold all of them in memory."""
_POLL_SECONDS = 0.1
_CHECK_SECONDS = 5.0
_FULL_SECONDS = 30.0


class StartOver(Exception):
    """What was read under older snapshots is of no use; the message says why."""


def check_plan(
    plan: CopyPlan,
    finished: Iterable[FinishedRange],
    table: PublishedTable,
    seen: Iterable[SeenRelation],
    position: Lsn,
) -> None:
    """Raise StartOver unless the ranges that are finished can be brought to the position."""
    oldest = min(done.position for done in finished)
    if max(done.position for done in finished) > position:
        raise StartOver("it was read under a newer snapshot")
    if not plan.schema.same_columns(table.schema):
        raise StartOver("the table has another schema now")
    if plan.row_filter != table.row_filter:
        raise StartOver("the row filter has changed")
    if not plan.membership.continues(table.membership):
        # The log may not show it: what it lacks may lie ahead of it.
        raise StartOver("it was published in another way, or not at all for a time")
    files = {relation.oid: relation.filenode for relation in seen}
    if any(files.get(oid) != filenode for oid, filenode in plan.filenodes.items()):
        raise StartOver("the table was rewritten, or has lost a partition")
    if oldest < position:
        if not can_be_read_by_key(table.schema):
            raise StartOver("its rows cannot be read by key")
        if table.publication.unpublished:
            raise StartOver("the publication leaves changes out")


def check_log(log: ChangeLog, table: PublishedTable, after: Lsn, upto: Lsn) -> list[LogFile]:
    """The log's files with the table's changes in ``(after, upto]``.

    Raises StartOver if they do not show which rows are still the same.
    """
    oid = table.schema.oid
    if not log.covers(oid, after):
        raise StartOver("the log does not have all changes since")
    files = [file for segment in log.segments(after, upto, oid) for file in segment.files]
    try:
        # First: what a file says of itself is believed below.
        log.check(files)
    except LogDamaged as damaged:
        raise StartOver(f"the log is damaged: {damaged.message}") from damaged
    files = [
        file
        for file in files
        if log.schema(oid, file.version).same_schema(table.schema)
        or _has_changes(log, file, after, upto)
    ]
    truncates = [file.stats.last_truncate for file in files if file.stats.last_truncate]
    if any(lsn >= after for lsn, _ in truncates):
        raise StartOver("the table was truncated")
    if not all(log.schema(oid, file.version).same_schema(table.schema) for file in files):
        raise StartOver("the table had another schema meanwhile")
    return files


def _has_changes(log: ChangeLog, file: LogFile, after: Lsn, upto: Lsn) -> bool:
    """Whether the file has changes in ``(after, upto]``, as its segment has."""
    try:
        footer = parquet.read_metadata(log.folder / file.path)
    except FileNotFoundError:
        raise StartOver("the log does not have all changes since") from None
    column = footer.schema.names.index("_lsn")
    groups = (footer.row_group(group) for group in range(footer.num_row_groups))
    spans = [group.column(column).statistics for group in groups]
    return any(span is None or (span.max >= after and span.min < upto) for span in spans)


def wait_for_log(log: ChangeLog, snapshot: OpenSnapshot, stop: threading.Event) -> None:
    """Return when the log has all changes up to the snapshot.

    Raises StartOver if it is full: it may be that it waits for this copy.
    """
    moved = checked = time.monotonic()
    end = log.end
    while end < snapshot.position:
        if stop.wait(_POLL_SECONDS):
            raise Stopped("the copy was told to stop")
        now = time.monotonic()
        if log.end > end or log.has_room:
            end, moved = log.end, now
        elif now - moved > _FULL_SECONDS:
            raise StartOver("the log is full")
        if now - checked > _CHECK_SECONDS:
            snapshot.keeper.check()
            checked = now


def touched_texts(
    spark: SparkSession, log: ChangeLog, table: PublishedTable, after: Lsn, upto: Lsn
) -> list[pa.StringArray]:
    """The keys, as texts by column, that changes in ``(after, upto]`` touched.

    The log must have reached ``upto``. Raises StartOver if there are too many.
    """
    columns = table.schema.key_columns
    files = check_log(log, table, after, upto)
    if not files:
        return [pa.array([], pa.string()) for _ in columns]
    stats = sum((file.stats for file in files), ChangeStats())
    paths = [str(log.folder / file.path) for file in files]
    limit = max(_FEW_KEYS, min(table.rows // 5, _MANY_KEYS))
    keys = touched_keys(spark, paths, table.schema, stats, after, upto).limit(limit + 1).toArrow()
    if keys.num_rows > limit:
        raise StartOver(f"changes have touched more than {limit:,} keys")
    # Segments that were retired while they were read would be missing.
    check_log(log, table, after, upto)
    arrays: Mapping[str, pa.Array] = {
        name: keys.column(name).combine_chunks() for name in keys.column_names
    }
    numbers = range(len(columns))
    texts = key_texts(
        columns,
        [arrays[f"v{number}"] for number in numbers],
        [arrays.get(f"e{number}") for number in numbers],
    )
    # In an order that finds neighbours in an index together.
    ordered = pa.table(texts, names=[str(number) for number in numbers])
    ordered = ordered.sort_by([(name, "ascending") for name in ordered.column_names])
    return [column.combine_chunks() for column in ordered.columns]
