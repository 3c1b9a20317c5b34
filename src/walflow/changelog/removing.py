"""The end of a change log."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from walflow.changelog.durable import TEMPORARY, disk_errors
from walflow.changelog.identity import FOLDERS, HEAD, LOCK, Head, lock
from walflow.changelog.records import LogIdentity
from walflow.errors import LogForeign

__all__ = ["own_log", "remove_log"]


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
    """Remove the pipeline's log from the folder, also one whose making or removal was broken off,
    and nothing else that is there; False if there is none. Raises LogForeign, or LogInUse while
    it is being written. Repeats safely.
    """
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
