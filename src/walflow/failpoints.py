"""Places where a test can make a process die, fail or wait.

``WALFLOW_FAILPOINTS="moved.data_sync=kill; apply.written[public.t]@3=raise; copy.range=sleep:2"``
acts at the named places: at every hit, at the third hit only (``@3``), of one table only
(``[public.t]``). ``kill`` ends the process as ``kill -9`` does, ``raise`` raises
``FailpointReached``, ``sleep:s`` waits. Without the variable a place costs one dictionary look-up.

The places: ``move.<phase>`` and ``moved.<phase>`` (before and after a phase is stored),
``slot.made``, ``copy.range``, ``copy.mended``, ``sync.data_sync``, ``sync.finished_copy``,
``apply.write``, ``apply.written``, ``evolve.change``, ``evolve.changed``, ``view.copied``,
``view.changing``, ``fold.merged``, ``maintain.compacted``, ``maintain.expire``, ``drop.slot``,
``drop.store``, ``drop.table``.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from dataclasses import dataclass, field

from walflow.errors import ConfigError, FailpointReached

__all__ = ["failpoint", "set_failpoints"]

VARIABLE = "WALFLOW_FAILPOINTS"
_ENTRY = re.compile(
    r"(?P<name>[a-z_.]+)(?:\[(?P<subject>[^]]*)])?(?:@(?P<hit>\d+))?"
    r"=(?P<action>kill|raise|sleep):?(?P<seconds>[\d.]+)?"
)


@dataclass(slots=True)
class _Point:
    subject: str | None
    hit: int | None
    action: str
    seconds: float
    count: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reach(self, name: str, subject: str) -> None:
        if self.subject is not None and self.subject != subject:
            return
        with self.lock:
            self.count += 1
            if self.hit is not None and self.count != self.hit:
                return
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.action == "sleep":
            time.sleep(self.seconds)
            return
        raise FailpointReached(f"the failpoint {name} was reached ({subject})")


def _parse(text: str) -> dict[str, list[_Point]]:
    points: dict[str, list[_Point]] = {}
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ConfigError(
                f"{VARIABLE} has {entry!r}, which is not name[table]@hit=kill|raise|sleep:seconds"
            )
        point = _Point(
            match["subject"],
            None if match["hit"] is None else int(match["hit"]),
            match["action"],
            float(match["seconds"] or 0),
        )
        points.setdefault(match["name"], []).append(point)
    return points


_points = _parse(os.environ.get(VARIABLE, ""))


def set_failpoints(text: str) -> None:
    """Replace this process's failpoints; an empty text ends them."""
    global _points
    _points = _parse(text)


def failpoint(name: str, subject: object = "") -> None:
    """Act if a test has asked for it at this place."""
    for point in _points.get(name, ()):
        point.reach(name, str(subject))
