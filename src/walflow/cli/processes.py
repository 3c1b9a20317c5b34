"""Signals to this process, and the processes that it has started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self

__all__ = [
    "Signals",
    "Work",
    "descendants",
    "end_descendants",
    "leave_at_once",
    "own_temporary_folder",
]


class Work(threading.Thread):
    """Runs the function; ``result`` raises what it raised."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="walflow-work", daemon=True)
        self._function = work
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._function()
        except BaseException as error:  # raised again by result()
            self._error = error

    def result(self) -> None:
        self.join()
        if self._error is not None:
            raise self._error


class Signals:
    """Counts SIGINT and SIGTERM while the block runs, and does not end the process by them."""

    def __init__(self) -> None:
        self.count = 0
        self.exit_code = 0
        """The code that a shell expects if the first signal ended the process."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.exit_code = self.exit_code or 128 + number


_PATIENCE_SECONDS = 4.0


def descendants() -> list[int]:
    """Children of this process, their children and so on."""
    parents = _parents()
    found: list[int] = []
    generation = {os.getpid()}
    while generation := {pid for pid, parent in parents.items() if parent in generation}:
        found += generation
    return found


def _parents() -> dict[int, int]:
    """Of all live processes."""
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
        )
        return {int(pid): int(parent) for pid, parent in map(str.split, listed.stdout.splitlines())}
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        # It may have ended since.
        with contextlib.suppress(OSError):
            # pid (name) state parent …; a name may contain anything, brackets too.
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(folder.name)] = int(parent)
    return parents


def end_descendants() -> None:
    """Send SIGTERM, then SIGKILL; returns when they are gone. Repeats safely."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not (alive := descendants()):
            return
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while descendants() and time.monotonic() < deadline:
            time.sleep(0.05)


@contextmanager
def own_temporary_folder(folder: Path | None = None) -> Iterator[Path]:
    """All temporary files of this process go into one folder, which is removed after the block."""
    made = Path(tempfile.mkdtemp(prefix="walflow-tmp-")) if folder is None else folder
    made.mkdir(exist_ok=True)
    # Another account may need its content: an embedded Postgres that root started.
    made.chmod(0o711)
    before, tempfile.tempdir = tempfile.tempdir, str(made)
    try:
        yield made
    finally:
        tempfile.tempdir = before
        shutil.rmtree(made, ignore_errors=True)


def leave_at_once(code: int, *folders: Path) -> NoReturn:
    """End every started process, remove the folders, and exit silently without waiting for
    threads."""
    # Threads fail now; their messages are of no use.
    with Path(os.devnull).open("w") as nowhere:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
                os.dup2(nowhere.fileno(), stream.fileno())
    end_descendants()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    # Our threads may still be writing into them.
    while any(folder.exists() for folder in folders) and time.monotonic() < deadline:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    os._exit(code)
