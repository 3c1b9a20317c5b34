"""``walflow bench``: measures walflow on this machine, beside a reference."""

from __future__ import annotations

from collections.abc import Callable

import click

from walflow.cli.console import table_console
from walflow.cli.help_pages import debug_option, is_debug
from walflow.cli.options import key_and_value

__all__ = ["bench"]

_Option = Callable[[Callable[..., None]], Callable[..., None]]


def _count(option: str, default: int, help: str, *, least: int = 1000) -> _Option:
    return click.option(
        option, default=default, show_default=True, type=click.IntRange(min=least), help=help
    )


_repeats = click.option(
    "--repeat",
    "repeats",
    default=3,
    show_default=True,
    type=click.IntRange(min=1),
    help="How often to measure; medians are shown.",
)
_settings_option = click.option(
    "--set",
    "others",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the pipeline, such as batch.max_fill_ms=100. Can be repeated.",
)
_as_json = click.option("--json", "as_json", is_flag=True, help="At the end, one JSON object each.")


def _with_logs(context: click.Context) -> bool:
    """Whether ``--debug`` is given. Logs go to stderr: programs read results from stdout."""
    from walflow.observe import logs

    debug = is_debug(context)
    logs.configure(level="debug" if debug else "warning")
    return debug


@click.group()
def bench() -> None:
    """Measure walflow on this machine, beside a reference."""


@bench.command()
@_count("--changes", 1_000_000, "The size of the largest workload.")
@_repeats
@click.option("--only", metavar="NAME", help="Only this workload.")
@_as_json
@debug_option
@click.pass_context
def capture(
    context: click.Context, changes: int, repeats: int, only: str | None, as_json: bool
) -> None:
    """From a backlog to the durable change log, against pg_recvlogical to /dev/null."""
    from walflow.bench.capture import bench_capture
    from walflow.bench.measure import show

    _with_logs(context)
    comparisons = list(bench_capture(changes, repeats, only))
    if not comparisons:
        raise click.UsageError(f"There is no workload {only!r}.")
    show(table_console(), comparisons, as_json=as_json)


@bench.command()
@_count("--rows", 3_000_000, "Rows to copy.")
@_repeats
@_as_json
@debug_option
@click.pass_context
def copy(context: click.Context, rows: int, repeats: int, as_json: bool) -> None:
    """From a table to an Iceberg table, against psql's COPY to /dev/null."""
    from walflow.bench.copying import bench_copy
    from walflow.bench.measure import show

    show(table_console(), bench_copy(rows, repeats, debug=_with_logs(context)), as_json=as_json)


@bench.command()
@click.option(
    "--rows",
    default="200000,2000000,10000000",
    show_default=True,
    help="Sizes of the table, with commas between.",
)
@click.option(
    "--hard", is_flag=True, help="Hard batches instead: overflow, TOAST, key changes, truncates."
)
@click.option(
    "--format",
    "formats",
    default="iceberg,delta",
    show_default=True,
    help="With --hard: formats of the tables, with a comma between.",
)
@_settings_option
@_repeats
@_as_json
@debug_option
@click.pass_context
def apply(
    context: click.Context,
    rows: str,
    hard: bool,
    formats: str,
    others: tuple[str, ...],
    repeats: int,
    as_json: bool,
) -> None:
    """Batches of changes into a table of a lake, against a bare MERGE."""
    from walflow.bench.applying import bench_apply
    from walflow.bench.measure import show

    try:
        sizes = [int(size) for size in rows.split(",")]
    except ValueError:
        raise click.UsageError(f"--rows {rows!r}: whole numbers with commas between.") from None
    if hard:
        from walflow.bench.hard_batches import bench_hard_batches, show_hard_batches

        results = bench_hard_batches(
            sizes,
            [one for one in ("iceberg", "delta") if one in formats.split(",")],
            dict(map(key_and_value, others)),
            repeats,
            debug=_with_logs(context),
        )
        show_hard_batches(table_console(), results, as_json=as_json)
        return
    comparisons = bench_apply(sizes, repeats, debug=_with_logs(context))
    show(table_console(), comparisons, as_json=as_json)


_table_rows = _count("--rows", 2_000_000, "Rows at the start.")


@bench.command()
@_table_rows
@_count("--changes", 1_000_000, "Changes in the backlog.")
@_repeats
@_as_json
@debug_option
@click.pass_context
def drain(context: click.Context, rows: int, changes: int, repeats: int, as_json: bool) -> None:
    """From a backlog to a merged Iceberg table, against pg_recvlogical to /dev/null."""
    from walflow.bench.draining import bench_drain
    from walflow.bench.measure import show

    show(
        table_console(),
        bench_drain(rows, changes, repeats, debug=_with_logs(context)),
        as_json=as_json,
    )


@bench.command()
@_table_rows
@_count("--per-second", 100, "Commits a second.", least=1)
@click.option(
    "--seconds", default=60.0, show_default=True, type=click.FloatRange(min=1), help="How long."
)
@click.option(
    "--table",
    "tables",
    default="plain",
    show_default=True,
    help="plain, hard (infinity, NaN, values that are not sent, changes of key, truncates), or "
    "both with a comma between.",
)
@_as_json
@debug_option
@click.pass_context
def latency(
    context: click.Context,
    rows: int,
    per_second: int,
    seconds: float,
    tables: str,
    as_json: bool,
) -> None:
    """From a commit until a reader that opens the Iceberg table sees it."""
    from walflow.bench.latency import bench_latency

    kinds = tables.split(",")
    if unknown := set(kinds) - {"plain", "hard"}:
        raise click.UsageError(f"--table {', '.join(unknown)}: plain, hard, or both.")
    for table in kinds:
        result = bench_latency(
            rows, per_second, seconds, hard=table == "hard", debug=_with_logs(context)
        )
        result.show(table_console(), as_json=as_json)


@bench.command()
@_count("--minutes", 20, "How long.", least=1)
@_count("--per-second", 350, "Changes a second.", least=1)
@click.option(
    "--format",
    "destination",
    default="iceberg",
    show_default=True,
    type=click.Choice(["iceberg", "delta"]),
    help="The format of the tables.",
)
@_settings_option
@_as_json
@debug_option
@click.pass_context
def soak(
    context: click.Context,
    minutes: int,
    per_second: int,
    destination: str,
    others: tuple[str, ...],
    as_json: bool,
) -> None:
    """Follow five tables for a long time, to see whether memory or anything else grows."""
    from walflow.bench.soak import bench_soak, show_soak

    settings = dict(map(key_and_value, others))
    results = bench_soak(minutes, per_second, destination, settings, debug=_with_logs(context))
    show_soak(table_console(), results, as_json=as_json)
