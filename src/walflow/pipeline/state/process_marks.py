"""Whether the process that holds a lease is still alive, where that can be seen.

Host names and process numbers are not enough: containers share host names and repeat process
numbers. So a holder's id also has a mark of its process namespace and of when the process was
started.
"""

from __future__ import annotations

import os
import socket
import uuid
from functools import cache
from pathlib import Path

from walflow.stores.base import Holder, Lease

__all__ = ["has_died", "is_alive", "is_held", "new_id", "runs_here"]


def new_id() -> str:
    """An id for this process as a holder."""
    return "/".join((str(uuid.uuid4()), _here(), _start_of(os.getpid()) or ""))


def is_alive(holder: Holder) -> bool:
    """Whether it certainly is alive."""
    mark = _mark_of(holder)
    return mark is not None and _start_of(holder.pid) == mark


def has_died(holder: Holder) -> bool:
    """Whether it certainly has ended."""
    mark = _mark_of(holder)
    return mark is not None and _start_of(holder.pid) != mark


def is_held(lease: Lease | None) -> bool:
    """Whether a process runs the pipeline, as far as this machine can see."""
    return lease is not None and lease.seconds_left > 0 and not has_died(lease.holder)


def runs_here(pid: int) -> bool:
    """Whether this machine can see a process of that number."""
    return _start_of(pid) is not None


def _mark_of(holder: Holder) -> str | None:
    """When the process was started; None if this machine cannot see it."""
    match holder.id.split("/"):
        case [_, place, mark] if place == _here() and holder.host == socket.gethostname():
            return mark
    return None


@cache
def _here() -> str:
    """A text that is the same for all processes that see one another's numbers, and different for
    others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""  # no Linux: the host's name has to do


def _start_of(pid: int) -> str | None:
    """When the process was started, as a mark; None if there is no process of that number."""
    try:
        # The name, in parentheses, may have anything in it.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return "" if not Path("/proc/self/stat").exists() and _answers(pid) else None
    state, start = fields[0], fields[19]
    return None if state in "ZX" else start


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
