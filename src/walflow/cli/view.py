"""The live view of a pipeline in a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from walflow.cli.advice import advise
from walflow.cli.console import PHASE_STYLES
from walflow.cli.progress import Progress, TableProgress
from walflow.model import Phase, TableName
from walflow.pasting import with_options
from walflow.units import human_bytes, human_count, human_rate, human_seconds

__all__ = ["View"]

_FRAMES_PER_SECOND = 4
_QUIET_SECONDS = 1.0
"""How often the view is drawn when only the clock has changed."""
_LINES_AROUND = 9
"""Lines of the terminal for header, footer and space around the tables."""

_LINES_A_ERROR = 5

_BAR_WIDTH = 13

_URGENCY = {Phase.DATA_SYNC: 1, Phase.FINISHED_COPY: 2, Phase.INIT: 3}
"""The order in which phases are shown if there is no room for all. (Failing tables come first.)"""


class View:
    """Shows the last ``show``; a context manager. Draws at most four times a second."""

    def __init__(
        self, console: Console, title: str, source: str, destination: str, again: str = ""
    ) -> None:
        """``again``: the options with which other commands find this pipeline."""
        self._console = console
        self._title = title
        self._source = source
        self._destination = destination
        self._again = again
        self._began = time.monotonic()
        self._spinner = Spinner("dots", style="cyan")
        self._stage = ""
        self._progress: Progress | None = None
        self._drawn: tuple[float, object] = (0.0, None)
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.refresh()
        self._live.stop()

    def show(self, stage: str, progress: Progress | None) -> None:
        """``stage`` is what the pipeline does, in words; empty in normal operation."""
        now = time.monotonic()
        since, content = self._drawn
        self._stage, self._progress = stage, progress
        # The spinner must turn; otherwise draw only what has changed.
        news = bool(stage) or content != progress
        if now - since < (1 / _FRAMES_PER_SECOND if news else _QUIET_SECONDS) - 0.02:
            return
        self._drawn = (now, progress)
        self._live.refresh()

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = [self._header()]
        if self._progress is not None and self._progress.tables:
            failing = self._progress.failing
            shown_errors = min(len(failing), max(1, self._console.height // _LINES_A_ERROR // 2))
            room = self._console.height - _LINES_AROUND - _LINES_A_ERROR * shown_errors
            parts += ["", _tables(self._progress.tables, max(1, room)), ""]
            parts += [self._error(table) for table in failing[:shown_errors]]
            parts.append(_totals(self._progress))
        if self._stage:
            self._spinner.update(text=Text(f"{self._stage} …"))
            parts.append(self._spinner)
        return Group(*parts)

    def _header(self) -> RenderableType:
        position = ""
        if self._progress is not None and self._progress.log_end:
            position = f"log {self._progress.log_end}"
            if self._progress.applied:
                position += f", applied {self._progress.applied}"
        top = Table.grid(expand=True)
        top.add_column()
        top.add_column(justify="right")
        top.add_row(
            Text.assemble(("walflow ", "bold"), (self._title, "bold cyan"), f"  {position}"),
            Text(_clock(time.monotonic() - self._began), style="dim"),
        )
        way = Text(f"{self._source} → {self._destination}", style="dim", no_wrap=True)
        way.overflow = "ellipsis"
        return Group(top, way)

    def _error(self, table: TableProgress) -> RenderableType:
        """In few lines; `walflow status` shows the full text."""
        assert table.error is not None
        advice = advise(
            table.name, table.error, time.time(), self._again, set_aside=table.set_aside
        )
        what = "was set aside" if table.set_aside else "failed"
        elsewhere = with_options("`walflow status` shows the whole text", self._again)
        lines = [
            Text.assemble((f"✗ {table.name} {what}: ", "bold red"), advice.reason),
            Text(f"  {advice.hint or elsewhere}"),
            Text(f"  {advice.next}", style="yellow"),
            *([Text(f"    {advice.command}", style="bold")] if advice.command else []),
        ]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(*lines, "")


def _tables(tables: Sequence[TableProgress], room: int) -> RenderableType:
    if any(map(_has_bar, tables)):
        # They have their own heading, and an empty line below.
        room = max(1, room - 2)
    shown = sorted(tables, key=_urgency)
    if len(tables) > room:
        # One line less where "and more" needs it.
        shown = shown[: max(1, room - 1)]
    # Always in the same order, so that a line is easy to find again.
    shown.sort(key=lambda table: table.name)
    copies = [table for table in shown if _has_bar(table)]
    others = [table for table in shown if not _has_bar(table)]
    parts: list[RenderableType] = []
    if copies:
        parts += [_copies(copies), *([""] if others else [])]
    if others:
        parts.append(_followed(others))
    if len(shown) < len(tables):
        parts.append(Text(f"… and {len(tables) - len(shown)} more", style="dim"))
    return Group(*parts)


# Widths are fixed, so that nothing jumps about; together they fit into 80 columns.


def _grid(**widths: int) -> Table:
    grid = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    grid.add_column("table", no_wrap=True, overflow="ellipsis", min_width=12, max_width=21)
    for name, width in widths.items():
        grid.add_column(name.replace("_", " "), justify="right", no_wrap=True, width=width)
    return grid


def _copies(tables: Sequence[TableProgress]) -> RenderableType:
    grid = _grid(copied=_BAR_WIDTH + 5, rows=22, per_s=7, left=6)
    for table in tables:
        # The number of rows is an estimate: 100 % only when it is done.
        share = min(0.99, table.rows_copied / table.rows_expected)
        bar = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
        bar.add_row(ProgressBar(total=1.0, completed=share, width=_BAR_WIDTH), f"{share:4.0%}")
        left = table.seconds_left
        grid.add_row(
            str(table.name),
            bar,
            f"{human_count(table.rows_copied)} of {human_count(table.rows_expected)}",
            human_rate(table.rows_per_second) if table.rows_per_second else "",
            "" if left is None else human_seconds(left),
        )
    return grid


def _followed(tables: Sequence[TableProgress]) -> RenderableType:
    grid = _grid(phase=12, rows_copied=14, changes=9, per_s=6, lag=6, behind=6)
    grid.columns[1].justify = "left"
    for table in tables:
        grid.add_row(
            str(table.name),
            Text(table.phase.value, style=PHASE_STYLES.get(table.phase, "yellow")),
            human_count(table.rows_copied),
            human_count(table.changes),
            human_rate(table.changes_per_second),
            "" if table.lag_bytes is None else human_bytes(table.lag_bytes),
            "" if table.lag_seconds is None else human_seconds(table.lag_seconds),
        )
    return grid


def _has_bar(table: TableProgress) -> bool:
    return table.phase is Phase.DATA_SYNC and table.rows_expected > 0


def _urgency(table: TableProgress) -> tuple[int, int, TableName]:
    """Which tables are shown if there is no room for all: failing ones, then unfinished ones, then
    those with most changes."""
    # By the total of changes, in powers of two: by current rates, lines would come and go.
    rank = 0 if table.failing else _URGENCY.get(table.phase, len(_URGENCY) + 1)
    return rank, -table.changes.bit_length(), table.name


def _totals(progress: Progress) -> Text:
    lag, set_aside = progress.lag_bytes, len(progress.set_aside)
    tried = len(progress.failing) - set_aside
    text = Text(f"{len(progress.tables)} table{'' if len(progress.tables) == 1 else 's'}")
    if set_aside:
        text.append(" · ").append(f"{set_aside} set aside", style="bold red")
    if tried:
        text.append(" · ").append(f"{tried} tried again", style="bold red")
    if progress.copying:
        text.append(f" · {progress.copying} being copied")
    text.append(f" · {human_count(progress.rows_copied)} rows copied")
    if progress.changes:
        text.append(
            f" · {human_count(progress.changes)} changes ({progress.changes_per_second:,.0f}/s)"
        )
    if lag is not None:
        text.append(f" · {human_bytes(lag)} and {human_seconds(progress.lag_seconds)} behind")
    text.stylize_before("bold")
    return text


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
