"""Places where a test can make a process die, fail or wait.

``WALFLOW_FAILPOINTS="moved.data_sync=kill; apply.written[public.t]@3=raise; copy.range=sleep:2"``
acts at the named places: at every hit, at the third hit only (``@3``), of one table only
(``[public.t]``). ``kill`` ends the process as ``kill -9`` does, ``raise`` raises
``FailpointReached``, ``sleep:s`` waits. Without the variable a place costs one dictionary look-up.

``hold`` waits until the test lets go: until ``set_failpoints`` replaces the failpoints, or, in a
process that only the environment reaches, until the file is there that ``WALFLOW_FAILPOINTS_END``
names. After ten minutes (``hold:s``: so many seconds) it raises ``FailpointReached``: what is held
is then not what the test meant.

The places: ``move.<phase>`` and ``moved.<phase>`` (before and after a phase is stored),
``slot.made``, ``copy.range``, ``copy.updated``, ``sync.data_sync``, ``sync.finished_copy``,
``apply.write``, ``apply.written``, ``evolve.change``, ``evolve.changed``,
``maintain.compacted``, ``maintain.expire``, ``compact.rewritten``, ``drop.slot``,
``drop.store``, ``drop.table``.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from walflow.errors import ConfigError, FailpointReached

__all__ = ["ScriptedFault", "failpoint", "parse_faults", "set_failpoints"]

VARIABLE = "WALFLOW_FAILPOINTS"
END_VARIABLE = "WALFLOW_FAILPOINTS_END"
_HOLD_SECONDS = 600.0
_LOOK_SECONDS = 0.05
_ENTRY = re.compile(
    r"(?P<name>[a-z_.]+)(?:\[(?P<subject>[^]]*)])?(?:@(?P<hit>\d+))?"
    r"=(?P<action>[a-z]+):?(?P<seconds>[\d.]+)?"
)


@dataclass(slots=True)
class ScriptedFault:
    """An entry of a script: what is to happen at which hit of a place."""

    name: str
    subject: str | None
    hit: int | None
    action: str
    seconds: float
    count: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def strikes(self, *subjects: str) -> bool:
        """Whether it is time. Asked once each time that the place is reached with the subjects."""
        if self.subject is not None and self.subject not in subjects:
            return False
        with self.lock:
            self.count += 1
            return self.hit is None or self.count == self.hit


def parse_faults(text: str, what: str, actions: Sequence[str]) -> list[ScriptedFault]:
    """Read a script: entries with semicolons between. ``what`` has it, if it is wrong."""
    found = []
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        match = _ENTRY.fullmatch(entry)
        if match is None or match["action"] not in actions:
            raise ConfigError(
                f"{what} has {entry!r}, which is not name[table]@hit={'|'.join(actions)} "
                "(sleep:seconds)"
            )
        hit = None if match["hit"] is None else int(match["hit"])
        seconds = float(match["seconds"] or 0)
        found.append(ScriptedFault(match["name"], match["subject"], hit, match["action"], seconds))
    return found


@dataclass(frozen=True, slots=True)
class _Script:
    points: dict[str, list[ScriptedFault]]
    replaced: threading.Event = field(default_factory=threading.Event)


def _parse(text: str) -> _Script:
    points: dict[str, list[ScriptedFault]] = {}
    for point in parse_faults(text, VARIABLE, ("kill", "raise", "sleep", "hold")):
        points.setdefault(point.name, []).append(point)
    return _Script(points)


_script = _parse(os.environ.get(VARIABLE, ""))


def set_failpoints(text: str) -> None:
    """Replace this process's failpoints; an empty text ends them. What is held goes on."""
    global _script
    before, _script = _script, _parse(text)
    before.replaced.set()


def failpoint(name: str, subject: object = "") -> None:
    """Act if a test has asked for it at this place."""
    script = _script
    for point in script.points.get(name, ()):
        if not point.strikes(str(subject)):
            continue
        if point.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif point.action == "sleep":
            time.sleep(point.seconds)
        elif point.action == "hold":
            _hold(script, point, subject)
        else:
            raise FailpointReached(f"the failpoint {name} was reached ({subject})")


def _hold(script: _Script, point: ScriptedFault, subject: object) -> None:
    seconds = point.seconds or _HOLD_SECONDS
    deadline = time.monotonic() + seconds
    end = os.environ.get(END_VARIABLE)
    while not script.replaced.wait(_LOOK_SECONDS):
        if end is not None and Path(end).exists():
            return
        if time.monotonic() > deadline:
            raise FailpointReached(
                f"the failpoint {point.name} ({subject}) was held for {seconds:g} s"
            )
