"""Servers that end with the process that started them; on Linux even if it is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

__all__ = ["OwnedServer"]

# Runs between fork and exec, as a program of its own because Python code in a forked child of a
# threaded process may deadlock. The order matters: a change of user clears the parent-death signal.
_LAUNCHER = """
import ctypes, os, sys
owner, number, uid, gid = map(int, sys.argv[1:5])
if uid >= 0:
    os.setgroups([]); os.setgid(gid); os.setuid(uid)
if sys.platform == 'linux':
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != owner:
        sys.exit(1)
os.execv(sys.argv[5], sys.argv[5:])
"""


class OwnedServer(ABC):
    """A server on a port of 127.0.0.1, with a folder of its own. It ends with the ``with`` block,
    and when the owning process dies. Later starts use its data and its port again."""

    _port_taken: ClassVar[str]
    """The text in its log if something else uses the port."""
    _orderly: ClassVar[Sequence[signal.Signals]]
    """The signals that end it, each sent if the one before has not worked after a while."""
    _at_once: ClassVar[signal.Signals]
    """The signal that ends it like a crash."""
    _stop_seconds: ClassVar[float]

    def __init__(self) -> None:
        self.port = 0
        self.folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def start(self) -> None:
        """Start the server and wait until it answers. Does nothing if it runs."""
        if self.running:
            return
        fresh = self.port == 0
        try:
            if self.folder is None:
                self._make_folder()
            for attempt in range(3):
                if fresh:
                    self.port = _free_port()
                if self._launch():
                    return
                # Somebody took the port between our look and the server's.
                if not fresh or self._port_taken not in self.log_tail() or attempt == 2:
                    break
        except BaseException:
            self.crash()
            raise
        tail = self.log_tail()
        self.crash()
        raise self._not_started(tail)

    def stop(self) -> None:
        """Stop the server in order. Its data stay for another ``start()``."""
        self._end(*self._orderly)

    def crash(self) -> None:
        """End the server at once, like a power cut. ``start()`` recovers its data."""
        self._end(self._at_once)

    def restart(self) -> None:
        """Stop and start on the same port."""
        self.stop()
        self.start()

    def remove(self) -> None:
        """End the server, and delete its data."""
        try:
            # What is deleted next need not be in order.
            self.crash()
        finally:
            if self.folder is not None:
                shutil.rmtree(self.folder)
                self.folder = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.running else None

    def log_tail(self, lines: int = 20) -> str:
        if self.folder is None or not self._log.exists():
            return "(no log)"
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    @abstractmethod
    def _make_folder(self) -> None:
        """Create the folder with the files that the server needs."""

    @abstractmethod
    def _launch(self) -> bool:
        """Start the server with ``_run`` on its port. Returns whether it answered in time."""

    @abstractmethod
    def _not_started(self, log_tail: str) -> Exception: ...

    @property
    def _folder(self) -> Path:
        assert self.folder is not None, "the server has not been started"
        return self.folder

    @property
    def _log(self) -> Path:
        return self._folder / "server.log"

    def _run(self, command: Sequence[str | Path], account: tuple[int, int] = (-1, -1)) -> None:
        """Start the program (an absolute path, then its arguments) in the folder, as the user and
        group if some are given, its output appended to the log."""
        launched = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        launched += [*map(str, (int(self._at_once), *account)), *map(str, command)]
        started = threading.Event()
        failure: list[BaseException] = []

        # The parent-death signal comes when the *thread* that started the process ends, so a
        # thread of its own starts it, and lives as long as it.
        def own() -> None:
            try:
                with self._log.open("ab") as output:
                    process = subprocess.Popen(
                        launched,
                        cwd=self._folder,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
            except BaseException as error:
                failure.append(error)
                started.set()
                return
            self._process = process
            started.set()
            process.wait()

        threading.Thread(target=own, name=f"owner-of-{command[0]}", daemon=True).start()
        started.wait()
        if failure:
            raise failure[0]

    def _end(self, *numbers: signal.Signals) -> None:
        """Send one signal after the other until it has ended; at last, kill it."""
        process = self._process
        for number in (*numbers, signal.SIGKILL):
            if process is None or process.poll() is not None:
                break
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._stop_seconds)
        self._process = None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
