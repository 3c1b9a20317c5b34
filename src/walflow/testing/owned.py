"""Processes that do not outlive the one that started them, on Linux not even when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

__all__ = ["end_owned", "start_owned"]

# Runs between fork and exec, as a program of its own because Python code in a forked child of a
# threaded process may deadlock.
_LAUNCHER = """
import ctypes, os, signal, sys
owner, program = int(sys.argv[1]), sys.argv[2]
if sys.platform == 'linux':
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != owner:
        sys.exit(1)
os.execv(program, sys.argv[2:])
"""


def start_owned(
    command: Sequence[str | Path], *, folder: Path, log: Path
) -> subprocess.Popen[bytes]:
    """Start the program (an absolute path, then its arguments) in the folder, its output appended
    to the log. It is killed when this process dies."""
    launched = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *map(str, command)]
    started = threading.Event()
    result: list[subprocess.Popen[bytes] | BaseException] = []

    # The parent-death signal comes when the *thread* that started the process ends, so a thread
    # of its own starts it, and lives as long as it.
    def own() -> None:
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    launched,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except BaseException as error:
            result.append(error)
            started.set()
            return
        result.append(process)
        started.set()
        process.wait()

    threading.Thread(target=own, name=f"owner-of-{command[0]}", daemon=True).start()
    started.wait()
    if isinstance(result[0], BaseException):
        raise result[0]
    return result[0]


def end_owned(process: subprocess.Popen[bytes], number: signal.Signals, seconds: float) -> None:
    """Send the signal; what has not ended after these seconds is killed."""
    if process.poll() is not None:
        return
    process.send_signal(number)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
