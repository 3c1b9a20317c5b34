"""Soak: a live pipeline over five tables for a long time, to see whether anything grows."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from prometheus_client import CollectorRegistry
from rich.console import Console

from walflow.bench.five_tables import PUBLICATION, TABLES, FiveTables
from walflow.bench.jvm_memory import JvmMemory, jvm_memory
from walflow.bench.measure import client_cpu
from walflow.config import Settings, load_settings
from walflow.observe.metrics import Metrics
from walflow.pipeline.pipeline import Pipeline
from walflow.testing.postgres import EmbeddedPostgres

__all__ = ["Minute", "bench_soak", "growth", "show_soak"]

_ROWS = 5000
_NAME = "soak"
_CHECK_SECONDS = 1.0
_SENT = "etl_batch_items_send_duration_seconds"


@dataclass(frozen=True, slots=True)
class Minute:
    """What was seen at the end of a minute; times and counts are those of the minute."""

    minute: int
    jvm: JvmMemory
    python_mb: float
    lag_seconds: float
    """The longest that was seen in the minute."""
    cores: float
    """That the driver and the JVM took, on average."""
    batches: Mapping[str, int]
    batch_seconds: Mapping[str, float]
    """By table: the mean."""
    files: Mapping[str, int]
    """By table: data files, deletion vectors and metadata on disk."""

    def to_json(self) -> str:
        return json.dumps({"name": "soak", **asdict(self)})


def bench_soak(
    minutes: int,
    per_second: int,
    destination: str = "iceberg",
    settings: Mapping[str, str] | None = None,
    *,
    debug: bool = False,
) -> Iterator[Minute]:
    """One result a minute. ``settings``: of the pipeline, beside those that say what it reads and
    writes."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="walflow-bench-"))
        stack.callback(shutil.rmtree, folder)
        server = stack.enter_context(EmbeddedPostgres())
        tables = FiveTables(server, _ROWS, per_second)
        tables.make()
        registry = CollectorRegistry()
        pipeline = Pipeline(
            _settings(server.uri, destination, folder, settings or {}),
            metrics=Metrics(registry),
            debug=debug,
        )
        stack.enter_context(pipeline)
        pipeline.wait(until_caught_up=True)
        tables.start()
        stack.callback(tables.stop)
        yield from _minutes(minutes, pipeline, tables, registry, folder / "lake")


def _settings(uri: str, destination: str, folder: Path, more: Mapping[str, str]) -> Settings:
    return load_settings(
        None,
        {
            "name": _NAME,
            "source.uri": uri,
            "source.publication": PUBLICATION,
            "destination.uri": f"{destination}://{folder}/lake",
            "log.folder": str(folder / "log"),
            # A day's worth would grow throughout a day.
            "log.retain_seconds": "60",
            "maintenance.interval_seconds": "60",
            "maintenance.keep_snapshots_seconds": "60",
            "maintenance.keep_snapshots": "10",
            **more,
        },
        environment={},
    )


def _minutes(
    minutes: int,
    pipeline: Pipeline,
    tables: FiveTables,
    registry: CollectorRegistry,
    lake: Path,
) -> Iterator[Minute]:
    began = time.monotonic()
    counts, sums, cpu = _sent(registry, "count"), _sent(registry, "sum"), client_cpu()
    for minute in range(1, minutes + 1):
        lag = 0.0
        while time.monotonic() < began + minute * 60:
            pipeline.check()
            tables.check()
            lag = max(lag, pipeline.status().lag_seconds)
            time.sleep(_CHECK_SECONDS)
        counts_now, sums_now, cpu_now = (
            _sent(registry, "count"),
            _sent(registry, "sum"),
            client_cpu(),
        )
        batches = {name: int(counts_now[name] - counts[name]) for name in TABLES}
        yield Minute(
            minute,
            jvm_memory(pipeline.spark),
            psutil.Process().memory_info().rss / 1e6,
            lag,
            (cpu_now - cpu) / 60,
            batches,
            {name: (sums_now[name] - sums[name]) / max(1, batches[name]) for name in TABLES},
            {name: _files(lake / "public" / name) for name in TABLES},
        )
        counts, sums, cpu = counts_now, sums_now, cpu_now


def _sent(registry: CollectorRegistry, what: str) -> dict[str, float]:
    """By table, of all batches so far."""
    return {
        name: registry.get_sample_value(
            f"{_SENT}_{what}", {"pipeline": _NAME, "table": f"public.{name}"}
        )
        or 0.0
        for name in TABLES
    }


def _files(folder: Path) -> int:
    return sum(1 for path in folder.rglob("*") if not path.name.startswith("."))


def growth(minutes: Sequence[Minute]) -> dict[str, float]:
    """What each figure grew by in a minute, in the second half of the time: in the first, Java
    compiles what runs often."""
    half = minutes[len(minutes) // 2 :]
    figures = [_figures(one) for one in half]
    if len(half) < 2:
        return {}
    at = [float(one.minute) for one in half]
    return {
        name: statistics.linear_regression(at, [one[name] for one in figures]).slope
        for name in figures[0]
    }


def _figures(one: Minute) -> dict[str, float]:
    return {
        "JVM, MB": one.jvm.resident_mb,
        "heap, MB": one.jvm.heap_mb,
        "metaspace, MB": one.jvm.metaspace_mb,
        "code cache, MB": one.jvm.code_mb,
        "buffers, MB": one.jvm.buffers_mb,
        "classes": float(one.jvm.classes),
        "threads": float(one.jvm.threads),
        "Python, MB": one.python_mb,
        "files": float(sum(one.files.values())),
        "seconds of a batch": statistics.mean(one.batch_seconds.values()),
        "lag, seconds": one.lag_seconds,
    }


def show_soak(console: Console, minutes: Iterator[Minute], *, as_json: bool) -> None:
    """Each minute as soon as it is over; at the end what grew."""
    seen = []
    for one in minutes:
        seen.append(one)
        _show(console, one)
        if as_json:
            print(one.to_json(), flush=True)
    slopes = growth(seen)
    if slopes:
        console.print("a minute, in the second half:")
    for name, slope in slopes.items():
        console.print(f"  {name}: {slope:+.2f}")
    if as_json:
        print(json.dumps({"name": "soak-growth", **slopes}), flush=True)


def _show(console: Console, one: Minute) -> None:
    jvm = one.jvm
    console.print(
        f"{one.minute} min: JVM {jvm.resident_mb:.0f} MB (heap {jvm.heap_mb:.0f}, metaspace"
        f" {jvm.metaspace_mb:.0f}, code {jvm.code_mb:.1f}, buffers {jvm.buffers_mb:.0f}),"
        f" {jvm.threads} threads, {jvm.classes:,} classes ({jvm.classes_ever:,} ever); Python"
        f" {one.python_mb:.0f} MB; {one.cores:.2f} cores; lag {one.lag_seconds:.1f} s"
    )
    for name in TABLES:
        console.print(
            f"    {name}: {one.batches[name]} batches of {one.batch_seconds[name]:.2f} s,"
            f" {one.files[name]} files"
        )
