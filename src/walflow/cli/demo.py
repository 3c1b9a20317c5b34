"""``walflow demo``: a live shop in an embedded Postgres, replicated and compared."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from walflow.cli.help_pages import HelpedCommand, debug_option, is_debug

if TYPE_CHECKING:
    from rich.console import Console

    from walflow.demo.compare import TableComparison
    from walflow.demo.scenario import Outcome

__all__ = ["demo"]

_POLL_SECONDS = 0.1


@click.command(
    cls=HelpedCommand,
    short_help="Replicate a live shop to Iceberg tables, and compare both.",
    epilog="Exit code 0 only if both sides are equal, 1 if not. Ctrl-C ends it at any moment with "
    "130, and leaves nothing behind.",
    examples=("walflow demo --seconds 10", "walflow demo --rate 2000 --folder ./lake"),
)
@click.option(
    "--seconds",
    default=30.0,
    show_default=True,
    type=click.FloatRange(min=1),
    help="How long the shop is open.",
)
@click.option(
    "--rate",
    default=500.0,
    show_default=True,
    type=click.FloatRange(min=1),
    help="Row changes a second.",
)
@click.option(
    "--rows",
    default=200_000,
    show_default=True,
    type=click.IntRange(min=100),
    help="Rows that exist before the pipeline starts, about.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the tables go; new or empty.  [default: a temporary folder]",
)
@click.option("--json", "as_json", is_flag=True, help="Log lines as JSON, last the result.")
@debug_option
@click.option("--damage", is_flag=True, hidden=True, help="Spoil one value before comparing.")
@click.pass_context
def demo(
    context: click.Context,
    seconds: float,
    rate: float,
    rows: int,
    folder: Path | None,
    as_json: bool,
    damage: bool,
) -> int:
    """Run a shop in an embedded Postgres, replicate it to Iceberg tables, compare both."""
    began = time.monotonic()
    from rich.console import Console

    from walflow.cli.processes import Signals, Work, leave_at_once, own_temporary_folder
    from walflow.cli.watcher import Watcher
    from walflow.demo.folder import demo_folder
    from walflow.demo.scenario import Demo

    console = Console(stderr=as_json)
    debug = is_debug(context)
    with Signals() as signals, demo_folder(folder) as kept:
        run = Demo(
            kept.path,
            rows=rows,
            rate=rate,
            seconds=seconds,
            damage=damage,
            debug=debug,
            began=began,
        )
        with own_temporary_folder(kept.path / "tmp"):
            work = Work(run.run)
            with Watcher(
                console,
                "demo",
                "an embedded Postgres",
                run.destination,
                json=as_json,
                debug=debug,
            ) as watcher:
                work.start()
                while work.is_alive() and not signals.count:
                    watcher.look(run)
                    work.join(_POLL_SECONDS)
            if signals.count:
                click.echo("Stopping; removing what the demo created …", err=True)
                leave_at_once(signals.exit_code, *kept.made)
            work.result()
        kept.keep(run.lake)
        return _tell(console, run.outcome, run.lake, as_json=as_json)


def _tell(console: Console, outcome: Outcome, lake: Path, *, as_json: bool) -> int:
    from walflow.demo.folder import query_program
    from walflow.errors import NotEqual

    if as_json:
        click.echo(_as_json(outcome, lake))
    else:
        _print_comparison(console, outcome)
    program = lake.parent / "query.py"
    program.write_text(query_program(lake))
    if not as_json:
        _print_where(lake, program)
    if not outcome.equal:
        raise NotEqual(
            "Source and destination differ: "
            + ", ".join(str(one.table) for one in outcome.comparisons if not one.equal)
            + ".",
            hint="Please report it with the keys above: this must not happen.",
        )
    return 0


def _print_comparison(console: Console, outcome: Outcome) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("table")
    table.add_column("source rows", justify="right")
    table.add_column("destination rows", justify="right")
    table.add_column("")
    for one in outcome.comparisons:
        verdict = "[green]equal[/]" if one.equal else "[bold red]not equal[/]"
        table.add_row(str(one.table), f"{one.source_rows:,}", f"{one.destination_rows:,}", verdict)
    console.print()
    console.print(table)
    for one in outcome.comparisons:
        for line in _differences(one):
            click.echo(line)
    click.echo()
    first, caught_up = outcome.first_applied_seconds, outcome.catch_up_seconds
    click.echo(
        f"{outcome.transactions:,} transactions changed {outcome.changes:,} rows."
        + (f" First change applied {first:.1f} s after the start." if first else "")
        + (f" All applied {caught_up:.1f} s after the load's end." if caught_up else "")
    )
    if outcome.equal:
        click.echo(
            f"{click.style('equal', fg='green', bold=True)}:"
            " every key and every value of every table was compared."
        )


def _differences(one: TableComparison) -> list[str]:
    """The first differing keys of each kind."""
    lines: list[str] = []
    for what, keys, count in (
        ("only in the source", one.missing, one.missing_count),
        ("only in the destination", one.surplus, one.surplus_count),
        ("more than once in the destination", one.repeated, len(one.repeated)),
    ):
        lines += [f"{one.table} ({key}): {what}" for key in keys]
        if count > len(keys):
            lines.append(f"{one.table}: {count - len(keys):,} more {what}")
    lines += [
        f"{one.table} ({value.key}): {value.column} is {_short(value.source)} in the source, "
        f"{_short(value.destination)} in the destination"
        for value in one.different
    ]
    if one.different_count > len(one.different):
        lines.append(f"{one.table}: {one.different_count - len(one.different):,} more values")
    return lines


def _short(text: str | None) -> str:
    if text is None:
        return "NULL"
    return repr(text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)")


def _print_where(lake: Path, program: Path) -> None:
    import shlex
    import sys

    click.echo(f"\nThe tables are Iceberg tables in {lake}. To query them with PySpark:\n")
    click.echo(f"  {shlex.join([sys.executable, str(program)])}\n")
    click.echo("or paste what is in it:\n")
    # Not indented: Python would not take it.
    click.echo(program.read_text(), nl=False)


def _as_json(outcome: Outcome, lake: Path) -> str:
    import dataclasses
    import json

    def rounded(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds, 2)

    return json.dumps(
        {
            "equal": outcome.equal,
            "tables": [
                {**dataclasses.asdict(one), "table": str(one.table), "equal": one.equal}
                for one in outcome.comparisons
            ],
            "transactions": outcome.transactions,
            "changes": outcome.changes,
            "first_applied_s": rounded(outcome.first_applied_seconds),
            "catch_up_s": rounded(outcome.catch_up_seconds),
            "lake": str(lake),
        }
    )
