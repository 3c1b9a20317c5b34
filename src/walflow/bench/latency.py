"""Latency: from a commit at the source until a reader that opens the Iceberg table sees it."""

from __future__ import annotations

import bisect
import json
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from walflow.bench.lake_pipeline import CopiedTable, copied_table
from walflow.bench.measure import client_cpu
from walflow.bench.source_table import SingleRows
from walflow.destinations import warehouse_of
from walflow.destinations.iceberg import IcebergFormat
from walflow.model import Lsn, TableName

__all__ = ["Latency", "bench_latency"]

_LOOK_SECONDS = 0.01
_WARM_UP_SECONDS = 60.0
"""A pipeline runs for days; in its first minute Java compiles more than it works."""
_LAST_SECONDS = 60.0
_TRUNCATE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Latency:
    table: str
    """``plain`` or ``hard``."""
    commits: int
    seconds: float
    p50: float
    p99: float
    worst: float
    batches: int
    """Commits of the table in that time."""
    cpu: float
    """How many cores the client used."""

    def to_json(self) -> str:
        return json.dumps(
            {
                "name": f"latency, {self.table}",
                "commits": self.commits,
                "seconds": round(self.seconds, 1),
                "p50_s": round(self.p50, 3),
                "p99_s": round(self.p99, 3),
                "max_s": round(self.worst, 3),
                "batches": self.batches,
                "cpu_cores": round(self.cpu, 3),
            }
        )

    def show(self, console: Console, *, as_json: bool) -> None:
        console.print(
            f"{self.table}, commit to visible: p50 {self.p50:.2f} s, p99 {self.p99:.2f} s,"
            f" max {self.worst:.2f} s"
            f" ({self.commits:,} commits in {self.seconds:.0f} s, {self.batches} batches,"
            f" {self.cpu:.2f} cores)"
        )
        if as_json:
            print(self.to_json())


def bench_latency(
    rows: int, per_second: int, seconds: float, *, hard: bool = False, debug: bool = False
) -> Latency:
    """Single-row commits at an even pace, on a table that is already copied. ``hard``: changes as
    SingleRows makes them, and a truncate a minute."""
    with copied_table(rows, hard=hard, debug=debug) as table:
        changes = SingleRows(rows, hard=hard)
        with table.pipeline() as pipeline:
            pipeline.wait(until_caught_up=True)
            _commit(table, changes, per_second, _WARM_UP_SECONDS)
            with _Watch(table) as watch:
                began, cpu = time.perf_counter(), client_cpu()
                commits = _commit(table, changes, per_second, seconds)
                took = time.perf_counter() - began
                cores = (client_cpu() - cpu) / took
                watch.wait_for(commits[-1][0])
        waits = np.array([watch.seen_at(lsn) - at for lsn, at in commits])
        return Latency(
            table="hard" if hard else "plain",
            commits=len(commits),
            seconds=took,
            p50=float(np.quantile(waits, 0.5)),
            p99=float(np.quantile(waits, 0.99)),
            worst=float(waits.max()),
            batches=watch.batches,
            cpu=cores,
        )


def _commit(
    table: CopiedTable, changes: SingleRows, per_second: int, seconds: float
) -> list[tuple[Lsn, float]]:
    """Change single rows; the position and the time of each commit."""
    commits = []
    with table.server.connect() as connection:
        began = time.perf_counter()
        emptied = began - _TRUNCATE_SECONDS / 2
        for number in range(int(per_second * seconds)):
            time.sleep(max(0.0, began + number / per_second - time.perf_counter()))
            if time.perf_counter() - emptied > _TRUNCATE_SECONDS:
                emptied = time.perf_counter()
                changes.empty(connection)
            changes.change(connection)
            at = time.perf_counter()
            row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            assert row is not None
            commits.append((Lsn.parse(row[0]), at))
    return commits


class _Watch:
    """Opens the table whenever it has a new version, and notes its position and the time."""

    def __init__(self, table: CopiedTable) -> None:
        warehouse = warehouse_of(table.settings.destination.uri)
        self._format = IcebergFormat(str(warehouse))
        self._spark = table.spark
        self._name = TableName("public", "bench")
        # The file that names the newest version. Reading it costs nothing, so watching does not
        # slow down the pipeline.
        self._version = (
            warehouse / self._name.schema / self._name.name / "metadata" / "version-hint.text"
        )
        self._stop = threading.Event()
        self._seen: list[tuple[Lsn, float]] = []
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)

    @property
    def batches(self) -> int:
        return len(self._seen)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        newest = version = ""
        while not self._stop.wait(_LOOK_SECONDS):
            with suppress(FileNotFoundError):  # while it is replaced
                newest = self._version.read_text()
            if newest == version:
                continue
            version = newest
            stored = self._format.look(self._spark, self._name)
            position = None if stored is None else stored.position
            if position is not None and (not self._seen or position > self._seen[-1][0]):
                self._seen.append((position, time.perf_counter()))

    def wait_for(self, position: Lsn) -> None:
        deadline = time.monotonic() + _LAST_SECONDS
        while not self._seen or self._seen[-1][0] < position:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the table has not reached {position}")
            time.sleep(_LOOK_SECONDS)

    def seen_at(self, position: Lsn) -> float:
        return self._seen[bisect.bisect_left(self._seen, (position, 0.0))][1]
