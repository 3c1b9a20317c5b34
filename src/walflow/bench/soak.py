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

from prometheus_client import CollectorRegistry
from rich import box
from rich.console import Console
from rich.table import Table

from walflow.bench.five_tables import PUBLICATION, TABLES, FiveTables
from walflow.bench.jvm_memory import JvmMemory, jvm_memory, live_heap_mb
from walflow.bench.measure import client_cpu
from walflow.bench.python_memory import PythonMemory, python_memory
from walflow.config import Settings, load_settings
from walflow.observe.metrics import Metrics
from walflow.pipeline.pipeline import Pipeline
from walflow.testing.postgres import EmbeddedPostgres

__all__ = ["Growth", "Minute", "bench_soak", "growth", "show_soak"]

_ROWS = 5000
_NAME = "soak"
_CHECK_SECONDS = 1.0
_LIVE_EVERY = 5
"""So many minutes: all of the heap is collected for it, which a pipeline does not do by itself."""
_EARLY = 10
"""By this minute Java has compiled what runs often, and maintenance has come to its pace."""
_SENT = "etl_batch_items_send_duration_seconds"


@dataclass(frozen=True, slots=True)
class Minute:
    """What was seen at the end of a minute; times and counts are those of the minute."""

    minute: int
    jvm: JvmMemory
    live_mb: float | None
    """Of the heap, after a full collection; not in every minute."""
    python: PythonMemory
    lag_seconds: float
    """The longest that was seen in the minute."""
    cores: float
    """That the driver and the JVM took, on average."""
    batches: Mapping[str, int]
    batch_seconds: Mapping[str, float]
    """By table: the mean."""
    files: Mapping[str, int]
    """On disk, by kind."""
    files_mb: float

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
        yield from _minutes(minutes, pipeline, tables, registry, folder)


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
    folder: Path,
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
        jvm, python = jvm_memory(pipeline.spark), python_memory()
        is_last = minute == minutes
        # After all else is known of the minute.
        live = live_heap_mb(pipeline.spark) if is_last or minute % _LIVE_EVERY == 0 else None
        yield Minute(
            minute,
            jvm,
            live,
            python,
            lag,
            (cpu_now - cpu) / 60,
            batches,
            {name: (sums_now[name] - sums[name]) / max(1, batches[name]) for name in TABLES},
            *_files(folder),
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


def _files(folder: Path) -> tuple[dict[str, int], float]:
    """How many of each kind, and how large all are."""
    kinds = dict.fromkeys(("data", "deletion vectors", "metadata", "cuts", "log"), 0)
    size = 0
    for path in folder.rglob("*"):
        try:
            if not path.is_file():
                continue
            size += path.stat().st_size
        except FileNotFoundError:
            # They come and go meanwhile.
            continue
        kinds[_kind(path.relative_to(folder).parts)] += 1
    return kinds, size / 1e6


def _kind(parts: Sequence[str]) -> str:
    place, *inside, name = parts
    if place != "lake":
        return "log"
    if inside[:1] != ["public"]:
        return "cuts"
    if name.endswith((".puffin", ".bin")):
        return "deletion vectors"
    return "data" if name.endswith(".parquet") and "_delta_log" not in inside else "metadata"


@dataclass(frozen=True, slots=True)
class Growth:
    """Of one figure."""

    early: float
    end: float
    per_hour: float
    """In the second half of the time: in the first, Java compiles what runs often."""


def growth(minutes: Sequence[Minute]) -> dict[str, Growth]:
    """What became of each figure. Early is the tenth minute, or where the second half begins if
    that is sooner."""
    seen: dict[str, dict[int, float]] = {}
    for one in minutes:
        for name, value in _figures(one).items():
            seen.setdefault(name, {})[one.minute] = value
    middle = len(minutes) // 2 + 1
    early = min(_EARLY, middle)
    grew = {}
    for name, values in seen.items():
        half = {minute: value for minute, value in values.items() if minute >= middle}
        if len(half) > 1:
            slope = statistics.linear_regression(list(half), list(half.values())).slope
            first = next(value for minute, value in values.items() if minute >= early)
            grew[name] = Growth(first, half[max(half)], slope * 60)
    return grew


def _figures(one: Minute) -> dict[str, float]:
    live = {} if one.live_mb is None else {"heap after collection, MB": one.live_mb}
    return {
        "JVM, MB": one.jvm.resident_mb,
        "heap taken, MB": one.jvm.committed_mb,
        **live,
        "metaspace, MB": one.jvm.metaspace_mb,
        "code cache, MB": one.jvm.code_mb,
        "buffers, MB": one.jvm.buffers_mb,
        "classes": float(one.jvm.classes),
        "classes ever": float(one.jvm.classes_ever),
        "threads": float(one.jvm.threads),
        "Python, MB": one.python.resident_mb,
        "Python without Arrow's, MB": one.python.resident_mb - one.python.arrow_mb,
        "Arrow, MB": one.python.arrow_mb,
        "Python's blocks": float(one.python.blocks),
        "Python's threads": float(one.python.threads),
        **{f"files: {kind}": float(count) for kind, count in one.files.items()},
        "files, MB": one.files_mb,
        "seconds of a batch": statistics.mean(one.batch_seconds.values()),
        "lag, seconds": one.lag_seconds,
        "cores": one.cores,
    }


def show_soak(console: Console, minutes: Iterator[Minute], *, as_json: bool) -> None:
    """Each minute as soon as it is over; at the end what grew."""
    seen = []
    for one in minutes:
        seen.append(one)
        _show(console, one)
        if as_json:
            print(one.to_json(), flush=True)
    grew = growth(seen)
    if grew:
        console.print(_summary(seen, grew))
    if as_json:
        figures = {name: asdict(one) for name, one in grew.items()}
        print(json.dumps({"name": "soak-growth", **figures}), flush=True)


def _summary(seen: Sequence[Minute], grew: Mapping[str, Growth]) -> Table:
    early = min(_EARLY, len(seen) // 2 + 1)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for name in (f"minute {early}", f"minute {len(seen)}", "an hour, in the second half"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, one in grew.items():
        table.add_row(name, f"{one.early:,.2f}", f"{one.end:,.2f}", f"{one.per_hour:+,.2f}")
    return table


def _show(console: Console, one: Minute) -> None:
    jvm, python = one.jvm, one.python
    live = "" if one.live_mb is None else f", {one.live_mb:.0f} after a collection"
    console.print(
        f"{one.minute} min: JVM {jvm.resident_mb:.0f} MB (heap {jvm.heap_mb:.0f} of"
        f" {jvm.committed_mb:.0f}{live}; metaspace {jvm.metaspace_mb:.0f}, code {jvm.code_mb:.1f},"
        f" buffers {jvm.buffers_mb:.0f}), {jvm.threads} threads, {jvm.classes:,} classes"
        f" ({jvm.classes_ever:,} ever); {one.cores:.2f} cores; lag {one.lag_seconds:.1f} s"
    )
    console.print(
        f"    Python {python.resident_mb:.0f} MB (Arrow {python.arrow_mb:.0f}, at most"
        f" {python.arrow_most_mb:.0f}), {python.blocks:,} blocks, {python.threads} threads; "
        + ", ".join(f"{kind} {count}" for kind, count in one.files.items())
        + f" files, {one.files_mb:.0f} MB"
    )
    console.print(
        "    "
        + ", ".join(
            f"{name} {one.batches[name]} of {one.batch_seconds[name]:.2f} s" for name in TABLES
        )
    )
