"""Drain: from a slot's backlog to a merged Iceberg table, against pg_recvlogical to nowhere."""

from __future__ import annotations

from collections.abc import Iterator

from walflow.bench.lake_pipeline import SLOT, CopiedTable, copied_table
from walflow.bench.measure import Comparison, Timing, compare, measured_with_jvm
from walflow.bench.source_table import read_to_nowhere, wal_end
from walflow.source.stream.slots import drop_slot

__all__ = ["bench_drain"]

_REFERENCE_SLOT = "reference"


def bench_drain(
    rows: int, changes: int, repeats: int, *, debug: bool = False
) -> Iterator[Comparison]:
    """Both read the same backlog. Ours lasts from the start of a pipeline in a warm JVM until the
    last change is committed to the table."""
    with copied_table(rows, debug=debug) as table:
        turns = iter(range(1_000))

        def reference() -> Timing:
            # A new backlog each time, which ours then finds too.
            table.change(changes, next(turns))
            return _reference(table)

        reference()
        _drain(table)  # warms up the JVM
        yield compare(
            f"drain, {rows / 1e6:g}M rows, {changes:,} changes 60/30/10",
            changes,
            lambda: measured_with_jvm(lambda: _drain(table)),
            "pg_recvlogical",
            reference,
            repeats,
        )


def _drain(table: CopiedTable) -> None:
    with table.pipeline() as pipeline:
        pipeline.wait(until_caught_up=True, poll=0.05)


def _reference(table: CopiedTable) -> Timing:
    server = table.server
    with server.connect() as connection:
        connection.execute(
            f"SELECT pg_copy_logical_replication_slot('{SLOT}', '{_REFERENCE_SLOT}')"
        )
        try:
            return read_to_nowhere(server, _REFERENCE_SLOT, "walflow", wal_end(server))
        finally:
            drop_slot(connection, _REFERENCE_SLOT, wait_seconds=30)
