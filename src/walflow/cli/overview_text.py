"""An overview as text: a table, and below it the errors in full."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from walflow.cli.advice import advise
from walflow.cli.console import PHASE_STYLES
from walflow.cli.overview import Overview, TableOverview
from walflow.stores.base import Report
from walflow.units import human_age, human_bytes, human_count, human_seconds

__all__ = ["print_overview"]

_MODE_WIDTH = len("soft_delete,")
_ROOMY = 100
"""From this width on, columns are separated by two spaces."""


def print_overview(console: Console, overview: Overview, again: str) -> None:
    """``again``: the options that find this pipeline, for the commands to paste."""
    console.print(_who_runs_it(overview))
    if overview.report is not None:
        console.print(_positions(overview), style="dim")
        if overview.report.batches:
            console.print(_batches(overview.report), style="dim")
    console.print()
    if overview.tables:
        console.print(_for_people(console, overview) if console.is_terminal else _plain(overview))
    else:
        console.print("No tables to show.")
    for table in overview.failing:
        console.print()
        _print_error(console, table, overview, again)
    if overview.requests:
        console.print()
        console.print(*_waiting(overview), sep="\n")


def _who_runs_it(overview: Overview) -> Text:
    text = Text.assemble(("walflow ", "bold"), (overview.pipeline, "bold cyan"), "  ")
    lease = overview.lease
    if lease is None:
        return text.append("not running", style="bold yellow")
    process = f"process {lease.holder.pid} on {lease.holder.host}"
    reported = (
        "has not reported yet"
        if lease.report is None
        else f"last reported {human_age(overview.at - lease.report.at)} ago"
    )
    if overview.running:
        return text.append("running", style="bold green").append(f": {process}, {reported}")
    text.append("not running", style="bold yellow")
    return text.append(f": {process} ended unexpectedly, {reported}")


def _positions(overview: Overview) -> str:
    report = overview.report
    assert report is not None
    when = "" if overview.running else ", when it last reported"
    return (
        f"wal {report.wal_end}, log {report.log_end}, applied {report.applied}: "
        f"{human_bytes(max(0, report.wal_end - report.applied))} and "
        f"{human_seconds(report.lag_seconds)} behind{when}"
    )


def _batches(report: Report) -> str:
    counts = (f"{count:,} {engine}" for engine, count in report.batches.items())
    return f"batches written since the start: {', '.join(counts)}"


def _for_people(console: Console, overview: Overview) -> Table:
    # Nothing is cut off: a long name continues on the next line.
    gap = 2 if console.width >= _ROOMY else 1
    grid = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    grid.add_column("table", overflow="fold")
    _add_columns(grid, overview)
    for table in overview.tables:
        name = Text(str(table.name))
        if table.destination != table.name:
            name.append(f"\n→ {table.destination}", style="dim")
        grid.add_row(name, *_cells(table, overview.at))
    return grid


def _plain(overview: Overview) -> Table:
    """One line a table, always with the same columns."""
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column("table", no_wrap=True)
    grid.add_column("destination", no_wrap=True)
    _add_columns(grid, overview)
    for table in overview.tables:
        cells = _cells(table, overview.at)
        grid.add_row(Text(str(table.name)), Text(str(table.destination)), *cells)
    return grid


def _add_columns(grid: Table, overview: Overview) -> None:
    if any(table.plan is not None for table in overview.tables):
        # In a narrow terminal the table's name needs the room more.
        grid.add_column("mode", min_width=_MODE_WIDTH)
    grid.add_column("phase", no_wrap=True)
    for name in ("since", "rows", "changes", "lag", "failures"):
        grid.add_column(name, justify="right", no_wrap=True)


def _cells(table: TableOverview, now: float) -> list[str | Text]:
    state = table.state
    mode = [] if table.plan is None else [Text(table.plan.mode)]
    return [
        *mode,
        Text(state.phase.value, style=PHASE_STYLES.get(state.phase, "yellow")),
        human_age(now - state.since),
        human_count(state.rows_copied),
        human_count(state.changes_applied),
        "-" if table.lag_bytes is None else human_bytes(table.lag_bytes),
        str(state.attempts),
    ]


def _print_error(console: Console, table: TableOverview, overview: Overview, again: str) -> None:
    state, running = table.state, overview.running
    assert state.error is not None
    advice = advise(
        table.name, state.error, overview.at, again, set_aside=table.set_aside, running=running
    )
    failures = "1 failure" if state.attempts == 1 else f"{state.attempts} failures"
    age, where = human_age(overview.at - state.since), state.error.phase.value
    title = Text(str(table.name), style="bold red")
    if table.set_aside:
        title.append(" was set aside ")
        title.append(f"{age} ago in {where}, after {failures}", style="not bold default")
    else:
        title.append(" failed ")
        # Nothing happens to it while no process runs the pipeline.
        tried = f", and has been tried again for {age}" if running else ""
        title.append(f"in {where}{tried}, after {failures}", style="not bold default")
    console.print(title)
    _print_indented(console, advice.reason)
    if advice.hint:
        _print_indented(console, f"What to do: {advice.hint}")
    _print_indented(console, advice.next)
    if not advice.command:
        return
    # Not wrapped, because it is to be pasted.
    console.print(Text(f"    {advice.command}", style="bold"), soft_wrap=True)


def _print_indented(console: Console, text: str) -> None:
    console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))


def _waiting(overview: Overview) -> Iterable[Text]:
    for request in overview.requests:
        waits = "" if overview.running else "; it will be done at the pipeline's next start"
        yield Text(
            f"Requested {human_age(overview.at - request.asked)} ago: {request.action.value} of "
            f"{request.table}{waits}"
        )
