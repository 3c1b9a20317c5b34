"""The pipelines on this machine and their states: what ``walflow list`` shows."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from walflow.changelog.identity import LOCK
from walflow.config import Settings, load_settings
from walflow.errors import WalflowError
from walflow.model import Phase
from walflow.pipeline.state.pipeline_notes import PipelineNotes, find_pipelines
from walflow.pipeline.state.process_marks import is_held, runs_here
from walflow.stores import open_store, state_file_is_there
from walflow.units import iso_time

__all__ = ["Listed", "listed"]


@dataclass(frozen=True, slots=True)
class Listed:
    folder: Path
    notes: PipelineNotes
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
        notes = self.notes
        ended = None if self.running else notes.stopped
        return {
            "pipeline": notes.name,
            "running": self.running,
            "pid": self.pid,
            "host": self.host,
            "begun": iso_time(notes.begun),
            "started": iso_time(notes.started),
            "stopped": None if ended is None else iso_time(ended),
            "source": notes.source,
            "destination": notes.destination,
            "publication": notes.publication,
            "slot": notes.slot,
            "log": str(self.folder.absolute()),
            "tables": self.tables,
            "set_aside": self.set_aside,
            "failing": self.failing,
        }


def listed(folders: Iterable[Path]) -> Iterator[Listed]:
    """The pipelines whose logs are these folders, or are in them, ordered by name."""
    found = find_pipelines(folder.expanduser() for folder in folders)
    for folder, notes in sorted(found, key=lambda one: (one[1].name, one[0])):
        yield _with_state(folder, notes) or _by_lock(folder, notes)


def _with_state(folder: Path, notes: PipelineNotes) -> Listed | None:
    """None if the state is not in an existing file."""
    if "store.uri" in notes.left_out:
        return None
    try:
        settings = _settings(folder, notes)
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
    return Listed(
        folder,
        notes,
        None if held is None else held.holder.pid,
        None if held is None else held.holder.host,
        len(states),
        sum(state.phase is Phase.ERRORED for state in states),
        sum(state.error is not None for state in states),
    )


def _settings(folder: Path, notes: PipelineNotes) -> Settings:
    """The settings that find the store."""
    store = notes.settings.get("store", {})
    said = {"name": notes.name, "log.folder": str(folder.absolute()), "store": store}
    return load_settings(None, {**said, "source.uri": "", "destination.uri": ""}, {})


def _by_lock(folder: Path, notes: PipelineNotes) -> Listed:
    """The process that holds the log has written its number into the lock file."""
    try:
        text = (folder / LOCK).read_text(errors="replace")
    except OSError:
        text = ""
    match = re.match(r"process (\d+) on (.*)", text)
    if match is None or match[2] != socket.gethostname() or not runs_here(int(match[1])):
        return Listed(folder, notes)
    return Listed(folder, notes, int(match[1]), match[2])
