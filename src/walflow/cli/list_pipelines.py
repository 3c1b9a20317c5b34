"""``walflow list``: the pipelines on this machine, from the notes beside their logs."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from walflow.changelog.identity import LOCK
from walflow.cli.help_pages import HelpedCommand, debug_option
from walflow.config import Settings, load_settings
from walflow.errors import WalflowError
from walflow.model import Phase
from walflow.pipeline.state.pipeline_notes import PipelineNotes, find_pipelines
from walflow.pipeline.state.process_marks import is_held, runs_here
from walflow.stores import open_store, state_file_is_there
from walflow.units import iso_time

__all__ = ["list_pipelines", "listed"]


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
    from walflow.cli.list_pipelines import listed
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


def _print(found: list[_Listed]) -> None:
    import time

    from walflow.units import human_seconds

    now = time.time()
    for number, one in enumerate(found):
        if number:
            click.echo()
        known = one.known
        if one.running:
            where = f"process {one.pid} on {one.host}"
            state = f"has been running for {human_seconds(now - known.started)} ({where})"
        else:
            # Without its state, it is not known whether another machine runs it.
            here = " on this machine" if one.tables is None else ""
            if known.stopped is not None:
                state = f"stopped {human_seconds(now - known.stopped)} ago{here}"
            else:
                state = f"does not run{here}; it did not stop in order"
        click.echo(f"{click.style(known.name, bold=True)}  {state}")
        if one.tables is not None:
            aside = f", {one.set_aside} set aside" if one.set_aside else ""
            tried = (one.failing or 0) - (one.set_aside or 0)
            again = f", {tried} tried again after a failure" if tried else ""
            count = "1 table" if one.tables == 1 else f"{one.tables} tables"
            click.echo(f"  {count}{aside}{again}")
        click.echo(f"  from  {known.source}")
        click.echo(f"  to    {known.destination}")
        click.echo(f"  log   {one.folder}")


@dataclass(frozen=True, slots=True)
class _Listed:
    folder: Path
    known: PipelineNotes
    pid: int | None = None
    """The process that runs it; None: none does, as far as this machine knows."""
    host: str | None = None
    tables: int | None = None
    """None: not known."""
    set_aside: int | None = None
    failing: int | None = None
    """Tables that are set aside, or are tried again and have not succeeded yet."""

    @property
    def running(self) -> bool:
        return self.pid is not None

    def to_dict(self) -> dict[str, Any]:
        """The object that ``walflow list --json`` prints: keys are never removed."""
        known = self.known
        ended = None if self.running else known.stopped
        return {
            "pipeline": known.name,
            "running": self.running,
            "pid": self.pid,
            "host": self.host,
            "begun": iso_time(known.begun),
            "started": iso_time(known.started),
            "stopped": None if ended is None else iso_time(ended),
            "source": known.source,
            "destination": known.destination,
            "publication": known.publication,
            "slot": known.slot,
            "log": str(self.folder.absolute()),
            "tables": self.tables,
            "set_aside": self.set_aside,
            "failing": self.failing,
        }


def listed(folders: Iterable[Path]) -> Iterator[_Listed]:
    """The pipelines whose logs are these folders, or are in them, ordered by name."""
    found = find_pipelines(folder.expanduser() for folder in folders)
    for folder, known in sorted(found, key=lambda one: (one[1].name, one[0])):
        yield _with_state(folder, known) or _by_lock(folder, known)


def _with_state(folder: Path, known: PipelineNotes) -> _Listed | None:
    """None if the state is not in an existing file."""
    if "store.uri" in known.left_out:
        return None
    try:
        settings = _settings(folder, known)
        if not state_file_is_there(settings):
            return None
        with closing(open_store(settings)) as store:
            states = store.get_table_replication_states().values()
            lease = store.get_lease()
    except WalflowError:
        # Such as a file of a newer version, or in a folder that this user may not read. The other
        # pipelines are listed all the same.
        return None
    held = lease if is_held(lease) else None
    return _Listed(
        folder,
        known,
        None if held is None else held.holder.pid,
        None if held is None else held.holder.host,
        len(states),
        sum(state.phase is Phase.ERRORED for state in states),
        sum(state.error is not None for state in states),
    )


def _settings(folder: Path, known: PipelineNotes) -> Settings:
    """The settings that find the store."""
    store = known.settings.get("store", {})
    said = {"name": known.name, "log.folder": str(folder.absolute()), "store": store}
    return load_settings(None, {**said, "source.uri": "", "destination.uri": ""}, {})


def _by_lock(folder: Path, known: PipelineNotes) -> _Listed:
    """The process that holds the log has written its number into the lock file."""
    try:
        text = (folder / LOCK).read_text(errors="replace")
    except OSError:
        text = ""
    match = re.match(r"process (\d+) on (.*)", text)
    if match is None or match[2] != socket.gethostname() or not runs_here(int(match[1])):
        return _Listed(folder, known)
    return _Listed(folder, known, int(match[1]), match[2])
