"""The receiving half of a pipeline on its own: a slot, a change log, and what fills it."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
import pyarrow.parquet as parquet

from tests.source.stream import Row, as_row
from walflow.changelog import ChangeLog, LogIdentity, Segment
from walflow.config import TypeSettings
from walflow.model import Lsn, TableSchema
from walflow.observe.metrics import Metrics
from walflow.pipeline.capture.log_writer import LogWriter, SegmentLimits
from walflow.pipeline.capture.receiver import Receiver, Source
from walflow.pipeline.capture.relation_schemas import Describer
from walflow.source.stream.pgoutput import Decoder
from walflow.source.stream.replication_connection import Replication

LIVE_ONLY = 1 << 62
ALWAYS_BULK = 0


class Capture:
    """Receiver, writer and log over a slot that is made if it is not there.

    As in a pipeline, the log is opened where the slot stands. Leaving the block stops everything
    in order; the slot and the folder stay, for another Capture to go on with.
    """

    def __init__(
        self,
        uri: str,
        folder: Path,
        *,
        slot: str,
        publication: str = "p",
        backlog_bytes: int = LIVE_ONLY,
        max_bytes: int = 1 << 40,
        max_changes: int = 1_000_000,
        segment_bytes: int = 256 << 20,
        fill_seconds: float = 0.05,
    ) -> None:
        self.uri = uri
        self.slot = slot
        self.metrics = Metrics()
        pipeline = self.metrics.pipeline("test")
        start = slot_position(uri, slot) or make_slot(uri, slot)
        self.log = ChangeLog.open(
            folder,
            LogIdentity("test", "test", slot),
            start=start,
            max_bytes=max_bytes,
            file_bytes=128 << 20,
        )
        self.describer = Describer(uri, "walflow test", slot, self.log, TypeSettings())
        self.writer = LogWriter(
            self.log,
            Decoder(self.describer.describe),
            pipeline,
            SegmentLimits(max_changes, fill_seconds, segment_bytes),
        )
        source = Source(uri, slot, publication, "walflow test", backlog_bytes)
        self.receiver = Receiver(source, self.log, self.writer, pipeline)

    def __enter__(self) -> Self:
        self.writer.start()
        self.receiver.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.receiver.stop()
        self.describer.close()
        self.log.close()

    def wait(self, condition: Callable[[], bool], seconds: float = 90, what: str = "") -> None:
        """Wait for it; what ended the receiver is raised."""
        wait_for(condition, seconds, what, self.receiver.check)

    def wait_durable(self, position: Lsn, seconds: float = 90) -> None:
        self.wait(lambda: self.log.end >= position, seconds, f"durable up to {position}")

    def catch_up(self, seconds: float = 90) -> Lsn:
        """Wait until all that is committed by now is durable here."""
        position = current_position(self.uri)
        self.wait_durable(position, seconds)
        return position

    def counted(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(name, {"pipeline": "test"}) or 0.0


def wait_for(
    condition: Callable[[], bool],
    seconds: float,
    what: str = "",
    check: Callable[[], None] = lambda: None,
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        check()
        assert time.monotonic() < deadline, f"not within {seconds} s: {what or condition}"
        time.sleep(0.02)


def scalar(uri: str, query: str, *parameters: Any) -> Any:
    with psycopg.connect(uri, autocommit=True) as connection:
        row = connection.execute(query, parameters).fetchone()
    return None if row is None else row[0]


def current_position(uri: str) -> Lsn:
    # A record of our own behind everything, flushed: keepalives then pass the position for sure.
    scalar(uri, "SELECT pg_logical_emit_message(true, 'walflow test', '')")
    return Lsn.parse(scalar(uri, "SELECT pg_current_wal_flush_lsn()::text"))


def slot_position(uri: str, slot: str) -> Lsn | None:
    text = scalar(
        uri,
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
        slot,
    )
    return None if text is None else Lsn.parse(text)


def make_slot(uri: str, slot: str) -> Lsn:
    with Replication(uri, application_name="walflow test") as replication:
        return replication.create_slot(slot).consistent_point


def changes(log: ChangeLog) -> dict[int, list[tuple[TableSchema, Row]]]:
    """All changes of the log by table, in order, each with its schema.

    Checks what every log must be: (lsn, seq) unique in a table and rising, changes inside the
    spans of their segments, spans that follow each other without a gap.
    """
    found: dict[int, list[tuple[TableSchema, Row]]] = {}
    segments = log.segments(Lsn(0))
    check_spans(segments, log.end)
    for segment in segments:
        for file in segment.files:
            schema = log.schema(file.table, file.version)
            rows = [as_row(row) for row in parquet.read_table(log.folder / file.path).to_pylist()]
            assert len(rows) == file.stats.rows
            assert all(segment.span.after <= row["_lsn"] < segment.span.upto for row in rows)
            found.setdefault(file.table, []).extend((schema, row) for row in rows)
    for pairs in found.values():
        pairs.sort(key=lambda pair: (pair[1]["_lsn"], pair[1]["_seq"]))
        order = [(row["_lsn"], row["_seq"]) for _, row in pairs]
        assert len(order) == len(set(order)), "a change is in the log twice"
    return found


def check_spans(segments: list[Segment], end: Lsn) -> None:
    for earlier, later in pairwise(segments):
        assert earlier.span.upto <= later.span.after
    if segments:
        assert segments[-1].span.upto <= end
