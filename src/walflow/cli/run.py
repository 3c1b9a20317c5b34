"""``walflow run``: runs a pipeline until it is stopped or has caught up."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from walflow.cli.help_pages import HelpedCommand, debug_option, is_debug, setting
from walflow.cli.options import SETTINGS_EPILOG, Chosen, pipeline_options

if TYPE_CHECKING:
    from walflow.config import Settings
    from walflow.observe.metrics import Metrics
    from walflow.pipeline.pipeline import Pipeline

__all__ = ["run"]

_POLL_SECONDS = 0.2
_STOPPING = "stopping: finishing the batch (Ctrl-C again stops at once)"


@click.command(
    cls=HelpedCommand,
    epilog="In a terminal a live view shows bars for copies, with rows a second and the time left, "
    "then lag and rates. Elsewhere log lines are written to stderr.\n\n"
    "Ctrl-C (or SIGTERM) finishes the batch and stops, with exit code 0; with --until-caught-up or "
    "during the start with 130 (143), because the work was not done. A second Ctrl-C stops at "
    "once. Nothing is lost: the next run resumes after the last complete batch.\n\n"
    "A table that cannot be copied or written is set aside while the others go on: see `walflow "
    "status`. --until-caught-up waits for it only if its next attempt is due within 30 seconds; "
    "when all others have caught up, the run ends with exit code 52 and names it. All exit codes: "
    "`walflow --help`.\n\n" + SETTINGS_EPILOG,
    examples=(
        "walflow run --from postgresql://walflow@db/shop --to iceberg:///data/lake "
        "--create-publication",
        "walflow run pipeline.yaml --metrics 127.0.0.1:9000",
        "walflow run pipeline.yaml --until-caught-up --quiet && echo all there",
    ),
)
@pipeline_options(ends=True, publishing=True)
@click.option(
    "--until-caught-up",
    is_flag=True,
    help="End when the lag is zero (exit code 52: some tables are set aside).",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help=setting("metrics_address", "Serve Prometheus metrics here.", "not served"),
)
@click.option("--json", "as_json", is_flag=True, help="Log lines as JSON, and no live view.")
@click.option("--quiet", "-q", is_flag=True, help="Warnings and errors only.")
@debug_option
@click.pass_context
def run(context: click.Context, /, chosen: Chosen, **given: Any) -> int:
    """Copy the published tables, then keep them equal to the source."""
    settings = chosen.settings({"metrics_address": given["metrics"]})
    return _run(
        settings,
        again=chosen.again,
        until_caught_up=given["until_caught_up"],
        json=given["as_json"],
        quiet=given["quiet"],
        debug=is_debug(context),
    )


def _run(
    settings: Settings, *, again: str, until_caught_up: bool, json: bool, quiet: bool, debug: bool
) -> int:
    from rich.console import Console

    from walflow.cli.processes import (
        Signals,
        Work,
        end_descendants,
        leave_at_once,
        own_temporary_folder,
    )
    from walflow.cli.watcher import Watcher
    from walflow.errors import SparkError, WalflowError
    from walflow.observe.metrics import Metrics, serve_metrics
    from walflow.pipeline.pipeline import Pipeline
    from walflow.redaction import redacted
    from walflow.source.connection import redact

    metrics = Metrics()
    running = _Running(Pipeline(settings, metrics=metrics, debug=debug), until_caught_up)
    work = Work(running.work)
    watcher = Watcher(
        Console(),
        settings.name,
        redact(settings.source.uri.get_secret_value()),
        redacted(settings.destination.uri),
        again=again,
        json=json,
        quiet=quiet,
        debug=debug,
    )
    with Signals() as signals, own_temporary_folder() as folder:
        with watcher, _served(serve_metrics, settings.metrics_address, metrics):
            work.start()
            while work.is_alive() and signals.count < 2:
                if signals.count:
                    running.pipeline.stop()
                    running.stopping = True
                    if not running.started:
                        # Nothing is written yet. What the start waits for fails, and it cleans up.
                        end_descendants()
                watcher.look(running)
                work.join(_POLL_SECONDS)
            watcher.look(running)
        if work.is_alive():
            leave_at_once(signals.exit_code, folder)
    if signals.count and not running.started:
        return signals.exit_code
    try:
        work.result()
    except Exception as error:
        of_spark = isinstance(error, SparkError) or not isinstance(error, WalflowError)
        if debug or not signals.count or not of_spark:
            raise
        # A signal to every process (as of systemd with its default KillMode=control-group) ends
        # Spark's JVM before we are done with it.
        click.echo(
            "Spark was ended as well, which interrupted the last batch. The next run repeats it.",
            err=True,
        )
        return signals.exit_code
    return 0 if running.done or not until_caught_up else signals.exit_code


def _served(serve: Any, address: str | None, metrics: Metrics) -> AbstractContextManager[object]:
    return nullcontext() if address is None else serve(address, metrics.registry)


class _Running:
    """The running pipeline, as the watcher sees it."""

    def __init__(self, pipeline: Pipeline, until_caught_up: bool) -> None:
        self.pipeline = pipeline
        self.started = False
        self.stopping = False
        self.done = False
        self._until_caught_up = until_caught_up
        self._ended = False

    @property
    def stage(self) -> str:
        """What the pipeline does, in words; empty in normal operation."""
        if self._ended or self.done:
            return ""
        if self.stopping:
            return _STOPPING
        return "" if self.started else self.pipeline.stage

    def work(self) -> None:
        try:
            self.pipeline.start()
            self.started = True
            try:
                self.pipeline.wait(until_caught_up=self._until_caught_up)
                self.done = not self.stopping
            finally:
                self.pipeline.shutdown()
        finally:
            self._ended = True
