"""What a benchmark measures, and how it is shown.

Machines are noisy, so ours and the reference run in turns, and medians are compared.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import psutil
from rich import box
from rich.console import Console
from rich.table import Table

__all__ = ["Comparison", "Timing", "client_cpu", "compare", "measured", "measured_with_jvm", "show"]

REPEATS = 3


@dataclass(frozen=True, slots=True)
class Timing:
    wall: float
    cpu: float
    """The client's CPU seconds: of this process, and of the children that ended meanwhile."""


@dataclass(frozen=True, slots=True)
class Comparison:
    name: str
    rows: int
    ours: tuple[Timing, ...]
    reference: str
    theirs: tuple[Timing, ...]

    @property
    def wall(self) -> float:
        return statistics.median(timing.wall for timing in self.ours)

    @property
    def reference_wall(self) -> float:
        return statistics.median(timing.wall for timing in self.theirs)

    @property
    def ratio(self) -> float:
        """How many times as fast as the reference."""
        return self.reference_wall / self.wall

    def cpu_per_million(self, timings: Sequence[Timing]) -> float:
        return statistics.median(timing.cpu for timing in timings) / self.rows * 1e6

    def to_json(self) -> str:
        return json.dumps(
            {
                "name": self.name,
                "rows": self.rows,
                "wall_s": round(self.wall, 3),
                "cpu_s_per_million": round(self.cpu_per_million(self.ours), 3),
                "reference": self.reference,
                "reference_wall_s": round(self.reference_wall, 3),
                "ratio": round(self.ratio, 3),
            }
        )


def measured(work: Callable[[], object]) -> Timing:
    """Run it and measure its time."""
    began, cpu = time.perf_counter(), _cpu()
    work()
    return Timing(time.perf_counter() - began, _cpu() - cpu)


def measured_with_jvm(work: Callable[[], object]) -> Timing:
    """The same for a client that is this process, its JVM and the JVM's Python workers."""
    began, cpu = time.perf_counter(), client_cpu()
    work()
    return Timing(time.perf_counter() - began, client_cpu() - cpu)


def client_cpu() -> float:
    """CPU seconds of this process and its descendants, without those of Postgres servers."""
    total = 0.0
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        try:
            if process.name().startswith("postgres"):
                continue
            used = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += used.user + used.system
    return total


def compare(
    name: str,
    rows: int,
    ours: Callable[[], Timing],
    reference: str,
    theirs: Callable[[], Timing],
    repeats: int = REPEATS,
) -> Comparison:
    """Run both in turns, that often."""
    pairs = [(theirs(), ours()) for _ in range(repeats)]
    return Comparison(
        name,
        rows,
        tuple(pair[1] for pair in pairs),
        reference,
        tuple(pair[0] for pair in pairs),
    )


def show(console: Console, comparisons: Iterable[Comparison], *, as_json: bool) -> None:
    """Show a table of all; each result is also printed on stderr when it is measured."""
    comparisons = [_printed(one) for one in comparisons]
    references = ", ".join(sorted({one.reference for one in comparisons}))
    table = Table(
        title=f"walflow against {references}: medians; CPU in seconds per million rows",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("workload", no_wrap=True)
    for name in ("rows", "wall s", "CPU", "their wall s", "their CPU", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in comparisons:
        table.add_row(
            one.name,
            f"{one.rows:,}",
            f"{one.wall:.2f}",
            f"{one.cpu_per_million(one.ours):.2f}",
            f"{one.reference_wall:.2f}",
            f"{one.cpu_per_million(one.theirs):.2f}",
            f"{one.ratio:.2f}",
        )
    console.print(table)
    if as_json:
        for one in comparisons:
            print(one.to_json())


def _printed(one: Comparison) -> Comparison:
    print(
        f"{one.name}: {one.wall:.2f} s, {one.reference} {one.reference_wall:.2f} s",
        file=sys.stderr,
        flush=True,
    )
    return one


def _cpu() -> float:
    """CPU seconds of this process and of children that have ended."""
    used = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
