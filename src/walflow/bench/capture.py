"""Capture: from a slot's backlog to the fsynced change log, against pg_recvlogical to nowhere."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from walflow.bench.measure import Comparison, Timing, compare, measured
from walflow.bench.source_table import COLUMNS, ROW, read_to_nowhere, wal_end
from walflow.changelog import ChangeLog, LogIdentity
from walflow.config import BatchSettings, LogSettings, TypeSettings
from walflow.model import Lsn
from walflow.observe.metrics import Metrics
from walflow.pipeline.capture.log_writer import LogWriter, SegmentLimits
from walflow.pipeline.capture.receiver import Receiver, Source
from walflow.pipeline.capture.relation_schemas import Describer
from walflow.source.stream.pgoutput import Decoder
from walflow.source.stream.slots import drop_slot
from walflow.testing.postgres import EmbeddedPostgres

__all__ = ["bench_capture"]


@dataclass(frozen=True, slots=True)
class _Workload:
    name: str
    changes: int
    make: Callable[[EmbeddedPostgres, int], None]


def _one_transaction(server: EmbeddedPostgres, changes: int) -> None:
    with server.connect() as connection:
        connection.execute(
            f"INSERT INTO bench SELECT {ROW.format(id='i')} FROM generate_series(1, {changes}) i"
        )


def _tiny_transactions(server: EmbeddedPostgres, changes: int) -> None:
    """Transactions of one update and one insert."""
    with server.connect() as connection:
        connection.execute(
            f"INSERT INTO warm SELECT {ROW.format(id='i')} FROM generate_series(1, 1000) i"
        )
        connection.execute(
            f"""
            DO $$ BEGIN FOR n IN 1..{changes // 2} LOOP
                UPDATE warm SET amount = amount + 1 WHERE id = n % 1000 + 1;
                INSERT INTO bench SELECT {ROW.format(id="n")};
                COMMIT;
            END LOOP; END $$
            """
        )


def _mixed(server: EmbeddedPostgres, changes: int) -> None:
    """60 % inserts, 30 % updates, 10 % deletes in transactions of 1,000."""
    with server.connect() as connection:
        connection.execute(
            f"""
            DO $$ DECLARE first bigint; BEGIN FOR n IN 0..{changes // 1000 - 1} LOOP
                first := n * 600;
                INSERT INTO bench
                    SELECT {ROW.format(id="i")} FROM generate_series(first, first + 599) i;
                UPDATE bench SET amount = amount + 1, note = note || '.'
                    WHERE id BETWEEN first AND first + 299;
                DELETE FROM bench WHERE id BETWEEN first + 500 AND first + 599;
                COMMIT;
            END LOOP; END $$
            """
        )


def bench_capture(changes: int, repeats: int, only: str | None = None) -> Iterator[Comparison]:
    """Compare on each workload; ``changes`` is the size of the largest."""
    workloads = [
        _Workload("one-transaction", changes, _one_transaction),
        _Workload("tiny-transactions", changes * 4 // 10, _tiny_transactions),
        _Workload("mixed-60-30-10", changes, _mixed),
    ]
    for workload in workloads:
        if only is None or only == workload.name:
            yield from _bench(workload, repeats)


def _bench(workload: _Workload, repeats: int) -> Iterator[Comparison]:
    with EmbeddedPostgres(
        settings={"max_wal_size": "8GB", "shared_buffers": "512MB", "checkpoint_timeout": "1h"}
    ) as server:
        with server.connect() as connection:
            connection.execute(f"CREATE TABLE bench ({COLUMNS})")
            connection.execute(f"CREATE TABLE warm ({COLUMNS})")
            connection.execute("CREATE PUBLICATION bench FOR TABLE bench, warm")
            connection.execute("SELECT pg_create_logical_replication_slot('base', 'pgoutput')")
            workload.make(server, workload.changes)
            end = wal_end(server)
            connection.execute("CHECKPOINT")
        for path, backlog in (("backlog", 1), ("live", 1 << 62)):
            yield compare(
                f"{workload.name}/{path}",
                workload.changes,
                lambda backlog=backlog: _ours(server, workload.changes, backlog),  # type: ignore[misc]
                "pg_recvlogical",
                lambda: _reference(server, end),
                repeats,
            )


def _reference(server: EmbeddedPostgres, end: Lsn) -> Timing:
    with _slot(server) as slot:
        return read_to_nowhere(server, slot, "bench", end)


def _ours(server: EmbeddedPostgres, changes: int, backlog_bytes: int) -> Timing:
    folder = Path(tempfile.mkdtemp(prefix="walflow-bench-"))
    try:
        with _slot(server) as slot:
            return measured(lambda: _drain(server, slot, folder, changes, backlog_bytes))
    finally:
        shutil.rmtree(folder)


def _drain(
    server: EmbeddedPostgres, slot: str, folder: Path, changes: int, backlog_bytes: int
) -> None:
    """Read until every change is durable in the log."""
    defaults, batch = LogSettings(), BatchSettings()
    with server.connect() as connection:
        row = connection.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
            [slot],
        ).fetchone()
    assert row is not None
    log = ChangeLog.open(
        folder,
        LogIdentity("bench", "bench", slot),
        start=Lsn.parse(row[0]),
        max_bytes=defaults.max_bytes,
        file_bytes=defaults.file_bytes,
    )
    metrics = Metrics().pipeline("bench")
    describer = Describer(server.uri, "walflow bench", slot, log, TypeSettings())
    writer = LogWriter(
        log,
        Decoder(describer.describe),
        metrics,
        SegmentLimits(batch.max_size, batch.max_fill_ms / 1000, defaults.segment_bytes),
    )
    source = Source(server.uri, slot, "bench", "walflow bench", backlog_bytes)
    receiver = Receiver(source, log, writer, metrics)
    writer.start()
    receiver.start()
    try:
        durable, seen = 0, log.start
        while durable < changes:
            receiver.check()
            log.wait_for_change(seen, 1.0)
            for segment in log.segments(seen):
                durable += sum(file.stats.rows for file in segment.files)
                seen = segment.span.upto
    finally:
        receiver.stop()
        describer.close()
        log.close()


@contextmanager
def _slot(server: EmbeddedPostgres) -> Iterator[str]:
    """A copy of the slot that is before the workload."""
    with server.connect() as connection:
        connection.execute("SELECT pg_copy_logical_replication_slot('base', 'bench')")
        try:
            yield "bench"
        finally:
            drop_slot(connection, "bench", wait_seconds=30)
