"""``walflow bench``: how fast it is here, beside a reference."""

from __future__ import annotations

import click

from walflow.cli.debugging import debug_option, is_debug

__all__ = ["bench"]

_rounds = click.option(
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
@_rounds
@click.option("--only", metavar="NAME", help="One workload alone.")
@_as_json
@debug_option
def capture(changes: int, rounds: int, only: str | None, as_json: bool) -> None:
    """From a backlog to the durable change log, against pg_recvlogical to /dev/null."""
    from rich.console import Console

    from walflow.bench.capture import bench_capture
    from walflow.bench.measure import show

    comparisons = list(bench_capture(changes, rounds, only))
    if not comparisons:
        raise click.UsageError(f"There is no workload {only!r}.")
    show(Console(), comparisons, as_json=as_json)


@bench.command()
@click.option(
    "--rows", default=3_000_000, show_default=True, type=click.IntRange(min=1000), help="To copy."
)
@_rounds
@_as_json
@debug_option
@click.pass_context
def copy(context: click.Context, rows: int, rounds: int, as_json: bool) -> None:
    """From a table to an Iceberg table, against psql's COPY to /dev/null."""
    from rich.console import Console

    from walflow.bench.copying import bench_copy
    from walflow.bench.measure import show

    show(Console(), bench_copy(rows, rounds, debug=is_debug(context)), as_json=as_json)
