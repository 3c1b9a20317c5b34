"""log.json, which says whose log a folder holds; the lock that keeps others out; removing a log."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from walflow.changelog.durable import TEMPORARY, disk_errors, sealed, unsealed, write_atomically
from walflow.changelog.journal import DAMAGE_HINT
from walflow.changelog.records import LogIdentity
from walflow.config.settings import CUTS_FILE, LEASE_FILE
from walflow.errors import LogDamaged, LogForeign, LogInUse
from walflow.model import Lsn
from walflow.serialization import from_dict, to_dict

__all__ = [
    "BESIDE",
    "FOLDERS",
    "HEAD",
    "LOCK",
    "NOTES",
    "Head",
    "check_ours",
    "lock",
    "own_log",
    "remove_log",
]

FORMAT = 2
FOLDERS = ("copy", "data", "journal", "schemas")
# The pipeline's store may be here before the log is.
_STORE = ("state.db", "state.db-journal", "state.db-wal", "state.db-shm", LEASE_FILE)
NOTES = "pipeline.json"
"""The file of notes about the pipeline; see walflow.pipeline.state.pipeline_notes."""
BESIDE = (NOTES, NOTES + TEMPORARY, CUTS_FILE, CUTS_FILE + "-journal")
"""The other files that the folder may hold: notes about the pipeline, for commands."""
HEAD = "log.json"
LOCK = "lock"

_ELSEWHERE = "Name another folder for this pipeline's log: --log FOLDER."


@dataclass(frozen=True, slots=True)
class Head:
    """The content of log.json."""

    identity: LogIdentity
    start: Lsn
    """The log is complete from here on."""
    epoch: int = 0
    """The epoch of the log's journal. A restart begins another journal, and changing this number
    switches to it in one step."""
    first: int = 0
    """Segments with a smaller sequence number are retired."""
    retired: dict[int, Lsn] = field(default_factory=dict)
    """The end of the last retired segment that had changes of the table (by oid)."""
    timeline: int | None = None
    """The source's timeline that the end of the log is on; None if it is not known yet."""

    def store(self, folder: Path) -> None:
        content = {"format": FORMAT, **to_dict(self)}
        write_atomically(folder / HEAD, sealed(content, 2) + b"\n")

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """None if the folder holds no log yet."""
        path = folder / HEAD
        try:
            raw = unsealed(path.read_bytes())
            found = raw.pop("format", None)
            if found != FORMAT:
                raise LogForeign(
                    f"the change log {folder} has format {found}, "
                    f"and this version of walflow writes format {FORMAT}",
                    hint=f"Use the version of walflow that wrote it. {_ELSEWHERE}",
                )
            return from_dict(cls, raw)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise LogDamaged(f"{path} is damaged: {error}", hint=DAMAGE_HINT) from error


def check_ours(folder: Path, identity: LogIdentity) -> None:
    """Raise if the folder belongs to another pipeline, or is not a log. Changes nothing."""
    head = Head.load(folder)
    if head is not None and head.identity != identity:
        raise LogForeign(
            f"the change log {folder} belongs to {head.identity}, not to {identity}",
            hint=f"{_ELSEWHERE} If that log is no longer needed, remove its folder.",
        )
    if head is None and folder.is_dir():
        ours = {HEAD + TEMPORARY, LOCK, *FOLDERS, *_STORE, *BESIDE}
        strangers = sorted(entry.name for entry in folder.iterdir() if entry.name not in ours)
        if strangers:
            raise LogForeign(
                f"the folder {folder} is not a change log: it has {', '.join(strangers[:3])} in it",
                hint=f"{_ELSEWHERE} It may be empty or not exist yet.",
            )


def lock(folder: Path) -> int:
    """Lock the folder for this process. Returns the descriptor that holds the lock."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # For people to read: on a full disk the lock holds without it.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    except BlockingIOError:
        holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
        os.close(descriptor)
        raise LogInUse(
            f"the change log {folder} is being written by {holder}",
            hint=f"Stop that process first: one pipeline runs once. {_ELSEWHERE}",
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def own_log(folder: Path, pipeline: str) -> LogIdentity | None:
    """The identity of the log in the folder; None if there is none. Raises LogForeign if it is
    another pipeline's."""
    with disk_errors(folder):
        head = Head.load(folder)
    if head is None:
        return None
    if head.identity.pipeline != pipeline:
        raise LogForeign(
            f"the change log {folder} belongs to {head.identity}, not to {pipeline!r}",
            hint="Say where this pipeline's log is: --log FOLDER.",
        )
    return head.identity


def remove_log(folder: Path, pipeline: str) -> bool:
    """Remove the pipeline's log from the folder, and no other file. A log that was only half made
    or half removed is removed too. Returns False if there is none. Raises LogForeign, or LogInUse
    while a process writes it. Repeats safely."""
    with disk_errors(folder):
        # The lock is made first and removed last.
        if own_log(folder, pipeline) is None and not (folder / LOCK).exists():
            return False
        descriptor = lock(folder)
        try:
            for name in FOLDERS:
                if (folder / name).exists():
                    shutil.rmtree(folder / name)
            for name in (HEAD + TEMPORARY, HEAD, LOCK):
                (folder / name).unlink(missing_ok=True)
        finally:
            os.close(descriptor)
    return True
