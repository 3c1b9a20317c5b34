"""The ``walflow`` command as a user runs it: a process of its own, watched from outside."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

WALFLOW = Path(sys.executable).parent / "walflow"


class Room:
    """A temporary folder for all that a command makes; its path marks the command's processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failpoints = ""
        """Where commands are to fail; see walflow.failpoints."""
        self.go_on = path / "go-on"
        """Commands are held by failpoints until this file is there."""
        self.home: Path | None = None
        """Of whoever runs them, if not of whoever runs the tests."""

    def with_home(self) -> Path:
        """Run commands as somebody new: with an empty home (but with the jars that are here)."""
        self.home = self.path / "home"
        self.home.mkdir()
        return self.home

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("WALFLOW_")
        }
        for name in ("WALFLOW_CACHE", "WALFLOW_POSTGRES"):
            if name in os.environ:
                kept[name] = os.environ[name]
        ours = {
            "TMPDIR": str(self.path),
            "COLUMNS": "80",
            "WALFLOW_FAILPOINTS": self.failpoints,
            "WALFLOW_FAILPOINTS_END": str(self.go_on),
        }
        if self.home is not None:
            cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
            ours |= {"HOME": str(self.home), "XDG_CACHE_HOME": cache}
        return kept | ours

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """As the leader of a process group of its own, as a shell would."""
        return subprocess.Popen(
            [WALFLOW, *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str | Path, seconds: float = 240) -> subprocess.CompletedProcess[str]:
        with ended(self.start(*arguments)) as process:
            out, err = process.communicate(timeout=seconds)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def processes(self) -> list[str]:
        """What runs on behalf of commands of this room."""
        mark = str(self.path)
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                command = " ".join(process.cmdline())
                if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                    continue
                if mark in command or process.environ().get("TMPDIR") == mark:
                    found.append(f"{process.pid}: {command[:150]}")
        return found

    def processes_after(self, seconds: float) -> list[str]:
        """What still runs; waits for the end of all for so long."""
        deadline = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def leftovers(self) -> list[str]:
        """Files of the room, but for what Java itself leaves."""
        return sorted(
            entry.name for entry in self.path.iterdir() if not entry.name.startswith("hsperfdata")
        )


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Whatever the test finds, the process does not outlive it."""
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(120)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@contextmanager
def new_room() -> Iterator[Room]:
    # Not pytest's own folder: an embedded Postgres may run as another user.
    path = Path(tempfile.mkdtemp(prefix="walflow-test-"))
    path.chmod(0o711)
    try:
        yield Room(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def wait_for_line(process: subprocess.Popen[str], text: str, seconds: float = 120) -> None:
    """Read the command's log until a line has the text."""
    assert process.stderr is not None
    deadline = time.monotonic() + seconds
    seen = []
    while time.monotonic() < deadline:
        line = process.stderr.readline()
        if not line:
            break
        seen.append(line)
        if text in line:
            return
    raise AssertionError(f"no line with {text!r} among:\n{''.join(seen)}")
