"""``walflow bench``: how fast it is here, beside a reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from walflow.cli.debugging import debug_option, is_debug
from walflow.cli.printing import table_console

if TYPE_CHECKING:
    from walflow.config.lake import Freshness

__all__ = ["bench"]

_batches = click.option(
    "--rounds", default=3, show_default=True, type=click.IntRange(min=1), help="Medians of these."
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Last, one JSON object a workload.")


@click.group()
def bench() -> None:
    """Measure walflow on this machine, beside a reference."""


@bench.command()
@click.option(
    "--changes",
    default=1_000_000,
    show_default=True,
    type=click.IntRange(min=1000),
    help="The size of the largest workload.",
)
@_batches
@click.option("--only", metavar="NAME", help="One workload alone.")
@_as_json
@debug_option
def capture(changes: int, batches: int, only: str | None, as_json: bool) -> None:
    """From a backlog to the durable change log, against pg_recvlogical to /dev/null."""
    from walflow.bench.capture import bench_capture
    from walflow.bench.measure import show

    comparisons = list(bench_capture(changes, batches, only))
    if not comparisons:
        raise click.UsageError(f"There is no workload {only!r}.")
    show(table_console(), comparisons, as_json=as_json)


@bench.command()
@click.option(
    "--rows", default=3_000_000, show_default=True, type=click.IntRange(min=1000), help="To copy."
)
@_batches
@_as_json
@debug_option
@click.pass_context
def copy(context: click.Context, rows: int, batches: int, as_json: bool) -> None:
    """From a table to an Iceberg table, against psql's COPY to /dev/null."""
    from walflow.bench.copying import bench_copy
    from walflow.bench.measure import show

    show(table_console(), bench_copy(rows, batches, debug=is_debug(context)), as_json=as_json)


@bench.command()
@click.option(
    "--rows",
    default="200000,2000000,10000000",
    show_default=True,
    help="Sizes of the table, with commas between.",
)
@click.option(
    "--freshness",
    default="merge,view",
    show_default=True,
    help="Ways to apply, with a comma between.",
)
@_batches
@_as_json
@debug_option
@click.pass_context
def apply(context: click.Context, rows: str, freshness: str, batches: int, as_json: bool) -> None:
    """Rounds of changes into an Iceberg table, against a bare MERGE."""
    from walflow.bench.applying import bench_apply
    from walflow.bench.measure import show

    try:
        sizes = [int(size) for size in rows.split(",")]
    except ValueError:
        raise click.UsageError(f"--rows {rows!r}: whole numbers with commas between.") from None
    ways: list[Freshness] = [way for way in ("merge", "view") if way in freshness.split(",")]
    comparisons = bench_apply(sizes, batches, ways, debug=is_debug(context))
    show(table_console(), comparisons, as_json=as_json)


_table_rows = click.option(
    "--rows", default=2_000_000, show_default=True, type=click.IntRange(min=1000), help="At first."
)


@bench.command()
@_table_rows
@click.option(
    "--changes",
    default=1_000_000,
    show_default=True,
    type=click.IntRange(min=1000),
    help="In the backlog.",
)
@_batches
@_as_json
@debug_option
@click.pass_context
def drain(context: click.Context, rows: int, changes: int, batches: int, as_json: bool) -> None:
    """From a backlog to a merged Iceberg table, against pg_recvlogical to /dev/null."""
    from walflow.bench.draining import bench_drain
    from walflow.bench.measure import show

    show(
        table_console(),
        bench_drain(rows, changes, batches, debug=is_debug(context)),
        as_json=as_json,
    )


@bench.command()
@_table_rows
@click.option(
    "--per-second", default=100, show_default=True, type=click.IntRange(min=1), help="Commits."
)
@click.option(
    "--seconds", default=60.0, show_default=True, type=click.FloatRange(min=1), help="How long."
)
@click.option(
    "--freshness", default="merge", show_default=True, type=click.Choice(["merge", "view"])
)
@_as_json
@debug_option
@click.pass_context
def latency(
    context: click.Context,
    rows: int,
    per_second: int,
    seconds: float,
    freshness: Freshness,
    as_json: bool,
) -> None:
    """From a commit until who opens the Iceberg table sees it."""
    from walflow.bench.latency import bench_latency

    result = bench_latency(rows, per_second, seconds, freshness, debug=is_debug(context))
    result.show(table_console(), as_json=as_json)
