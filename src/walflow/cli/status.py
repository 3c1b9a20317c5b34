"""``walflow status``: the state of a pipeline and its tables, from its store alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from walflow.cli.console import table_console
from walflow.cli.help_pages import HelpedCommand, debug_option
from walflow.cli.options import Chosen, pipeline_options
from walflow.errors import ConfigError

if TYPE_CHECKING:
    from walflow.cli.options import Chosen
    from walflow.cli.overview import Overview
    from walflow.config import ApplySettings

__all__ = ["status"]

NOT_RUNNING = 1
"""The exit code of --check when no process runs the pipeline."""


@click.command(
    cls=HelpedCommand,
    epilog="Reads the pipeline's store, whether it runs or not; the source, the destination and "
    "Spark are not asked. Lag is how far a table is behind the source's log, as of the pipeline's "
    "last report; - while it is not followed, or nothing was reported. The mode is what "
    "the settings file wants, if it is named.\n\n"
    "Exit code 0; with --check 1 if no process runs the pipeline, else 52 if a table fails: it is "
    "set aside, or is tried again after an error and has not succeeded yet.\n\n"
    "The object of --json: pipeline, at, running, holder (host, pid, lease_seconds_left), report "
    "(at, wal_end, log_end, applied, lag_bytes, lag_seconds, batches (how many, by the engine that "
    "wrote them)), set_aside (how many), failing "
    "(how many have an error), tables (table, schema, name, oid, destination, mode (null "
    "without a settings file), phase, since, position, rows_copied, "
    "changes_applied, lag_bytes, attempts, error (code, reason, hint, phase, retry, "
    "next_attempt)), requests (id, table, action, asked). Times are ISO 8601 in UTC; "
    "positions are text (0/16B3748), and integers under the same key with _number added. "
    "Keys are never removed.",
    examples=(
        "walflow status pipeline.yaml",
        "walflow status --name shop --check || echo look at it",
        "walflow status --json | jq '.tables[] | select(.error)'",
    ),
)
@pipeline_options(ends=False)
@click.option("--errors", is_flag=True, help="Only tables that fail.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--check", is_flag=True, help="Say by the exit code whether all is well.")
@debug_option
def status(chosen: Chosen, errors: bool, as_json: bool, check: bool) -> int:
    """Show the state of a pipeline and its tables."""
    import time

    from walflow.cli.open_store import opened_store
    from walflow.cli.overview import read_overview
    from walflow.cli.status import _lake_settings
    from walflow.errors import TablesSetAside

    settings = chosen.store_settings()
    with opened_store(settings) as store:
        overview = read_overview(store, settings.name, time.time(), _lake_settings(chosen))
    shown = overview.errors_only() if errors else overview
    if as_json:
        import json

        click.echo(json.dumps(shown.to_dict(), ensure_ascii=False))
    else:
        _print(shown, chosen.again)
    if not check:
        return 0
    if not overview.running:
        return NOT_RUNNING
    return TablesSetAside.exit_code if overview.failing else 0


def _print(overview: Overview, again: str) -> None:
    from walflow.cli.overview_text import print_overview

    print_overview(table_console(), overview, again)


def _lake_settings(chosen: Chosen) -> ApplySettings | None:
    """None if no file is named, or the destination is not a lake. (Without a file the defaults may
    differ from what the pipeline was started with.)"""
    from walflow.destinations import is_lake

    if chosen.file is None:
        return None
    try:
        settings = chosen.settings({"source.uri": ""})
    except ConfigError:
        # Such as a variable in a URI that is not set here. Reading the state does not need it.
        return None
    return settings.apply if is_lake(settings.destination.uri) else None
