"""``walflow list``: the pipelines on this machine, from the notes beside their logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from walflow.cli.help_pages import HelpedCommand, debug_option

if TYPE_CHECKING:
    from walflow.cli.local_pipelines import Listed

__all__ = ["list_pipelines"]


@click.command(
    "list",
    cls=HelpedCommand,
    epilog="The command lists the pipelines whose logs are in ~/.walflow, or in the folders of "
    "--log. It asks neither source nor destination nor Spark. The numbers of tables and of failing "
    "tables are known for pipelines whose state is in an SQLite file. For others the log's lock "
    "file says whether a process on this machine runs them.\n\n"
    "The object of --json: pipelines (pipeline, running, pid, host (of the process that runs it, "
    "or null), begun, started, stopped (null while it runs, or if it did not stop in order), "
    "source, destination, publication, slot, log, tables, set_aside, failing (tables that are set "
    "aside or tried again; all three null if not known)). Keys are never removed.",
    examples=(
        "walflow list",
        "walflow list --log /srv/logs --json | jq '.pipelines[] | select(.running | not)'",
    ),
)
@click.option(
    "--log",
    "folders",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="A pipeline's log, or the folder with the logs of several; can be repeated.  "
    "[default: ~/.walflow]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@debug_option
def list_pipelines(folders: tuple[Path, ...], as_json: bool) -> int:
    """List the pipelines on this machine."""
    from walflow.cli.local_pipelines import listed
    from walflow.pipeline.state.pipeline_notes import default_logs

    found = list(listed(folders or (default_logs(),)))
    if as_json:
        import json

        shown = [one.to_dict() for one in found]
        click.echo(json.dumps({"pipelines": shown}, ensure_ascii=False))
        return 0
    if not found:
        places = ", ".join(map(str, folders)) or str(default_logs())
        click.echo(f"No pipeline has its log in {places}.")
        return 0
    _print(found)
    return 0


def _print(found: list[Listed]) -> None:
    import time

    from walflow.units import human_seconds

    now = time.time()
    for number, one in enumerate(found):
        if number:
            click.echo()
        notes = one.notes
        if one.running:
            where = f"process {one.pid} on {one.host}"
            state = f"has been running for {human_seconds(now - notes.started)} ({where})"
        else:
            # Without its state, it is not known whether another machine runs it.
            here = " on this machine" if one.tables is None else ""
            if notes.stopped is not None:
                state = f"stopped {human_seconds(now - notes.stopped)} ago{here}"
            else:
                state = f"does not run{here}; it did not stop in order"
        click.echo(f"{click.style(notes.name, bold=True)}  {state}")
        if one.tables is not None:
            aside = f", {one.set_aside} set aside" if one.set_aside else ""
            tried = (one.failing or 0) - (one.set_aside or 0)
            again = f", {tried} tried again after a failure" if tried else ""
            count = "1 table" if one.tables == 1 else f"{one.tables} tables"
            click.echo(f"  {count}{aside}{again}")
        click.echo(f"  from  {notes.source}")
        click.echo(f"  to    {notes.destination}")
        click.echo(f"  log   {one.folder}")
