"""One way to show a running pipeline: a live view in a terminal, log lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol, Self

import structlog
from rich.console import Console

from walflow.cli.advice import advise
from walflow.cli.progress import Meter, Progress, TableProgress
from walflow.cli.view import View
from walflow.observe import logs
from walflow.pipeline.pipeline import Pipeline
from walflow.units import iso_time

__all__ = ["Shown", "Watcher"]

_LINE_SECONDS = 10.0

_logger = structlog.get_logger(__name__)


class Shown(Protocol):
    """What ``Watcher`` reads."""

    @property
    def stage(self) -> str: ...

    @property
    def pipeline(self) -> Pipeline | None: ...


class Watcher:
    """Shows a pipeline for as long as the block runs; ``look`` is called often."""

    def __init__(
        self,
        console: Console,
        title: str,
        source: str,
        destination: str,
        *,
        again: str = "",
        json: bool = False,
        quiet: bool = False,
        debug: bool = False,
    ) -> None:
        """``again``: the options with which other commands find this pipeline."""
        self._json = json
        self._again = again
        self._began = time.time()
        self._level = "debug" if debug else "warning" if quiet else "info"
        self._live = console.is_terminal and not (json or quiet or debug)
        self._view = View(console, title, source, destination, again) if self._live else None
        self._meter = Meter()
        self._stage = ""
        self._lined: float | None = None
        self._reminded = False
        self._stack = ExitStack()
        self.progress: Progress | None = None

    def __enter__(self) -> Self:
        if self._view is not None:
            view: AbstractContextManager[object] = self._view
            self._stack.enter_context(view)
            # The view has replaced stderr: log lines appear above it.
            logs.configure(level="warning", stream=sys.stderr)
            self._stack.callback(lambda: logs.configure(level="warning", stream=sys.stderr))
        else:
            logs.configure(json=self._json, level=self._level)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def look(self, shown: Shown) -> None:
        """Read the pipeline's state, and show it if it is time to."""
        pipeline = shown.pipeline
        if pipeline is not None and pipeline.stage == "running":
            self.progress = self._meter.measure(pipeline.status())
        if self._view is not None:
            self._view.show(shown.stage, self.progress)
        else:
            self._log(shown.stage)

    def _log(self, stage: str) -> None:
        # The part after a comma changes too often for log lines.
        step = stage.partition(",")[0]
        if step and step != self._stage:
            _logger.info(step)
        self._stage = step
        now = time.monotonic()
        if self.progress is None or not self.progress.tables:
            return
        if not self._reminded:
            self._reminded = True
            self._remind(self.progress.set_aside)
        if self._lined is not None and now - self._lined < _LINE_SECONDS:
            return
        self._lined = now
        _logger.info("progress", **_fields(self.progress))

    def _remind(self, set_aside: Sequence[TableProgress]) -> None:
        """Log the tables that were set aside before this start. (The pipeline logs later ones.)"""
        for table in set_aside:
            if table.error is None or table.since >= self._began:
                continue
            advice = advise(table.name, table.error, time.time(), self._again)
            _logger.warning(
                "a table is still set aside",
                table=str(table.name),
                since=iso_time(table.since),
                error=advice.reason,
                hint=advice.hint,
                next=advice.next,
                command=advice.command,
            )


def _fields(progress: Progress) -> dict[str, object]:
    names = [str(table.name) for table in progress.set_aside]
    tried = [str(table.name) for table in progress.failing if not table.set_aside]
    return {
        "tables": len(progress.tables),
        "copying": progress.copying,
        # Only if there are any, so that such a line stands out.
        **({"set_aside": ", ".join(names)} if names else {}),
        **({"tried_again": ", ".join(tried)} if tried else {}),
        "rows_copied": progress.rows_copied,
        **_of_copies(progress),
        "changes": progress.changes,
        "changes_per_second": round(progress.changes_per_second),
        "lag_bytes": progress.lag_bytes,
        "lag_seconds": round(progress.lag_seconds, 1),
        "log_end": str(progress.log_end),
        "applied": str(progress.applied),
    }


def _of_copies(progress: Progress) -> dict[str, object]:
    """Fields about copies; empty while there are none."""
    if not progress.rows_per_second:
        return {}
    left = progress.seconds_left
    return {
        "rows_per_second": round(progress.rows_per_second),
        **({} if left is None else {"copies_seconds_left": round(left)}),
    }
