"""How many connections to the source may copy at once, shared by the tables that want some."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from walflow.errors import Stopped

__all__ = ["Connections"]

_LOOK_SECONDS = 0.2


class Connections:
    """A budget. First come, first served, with a fair part of it.

    A table asks anew for each piece of its work: so one that is alone soon has them all, and one
    that comes later waits for no more than a piece of another's work.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._holders = 0
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def limit(self) -> int:
        """How many there are. Fewer than are in use just now: as these come back."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._changed:
            self._limit = limit
            self._changed.notify_all()

    @contextmanager
    def share(self, most: int, stop: threading.Event) -> Iterator[int]:
        """Use at least one connection and at most ``most``; gives how many.

        Raises Stopped if that is asked for while it waits.
        """
        granted = self._take(most, stop)
        try:
            yield granted
        finally:
            with self._changed:
                self._used -= granted
                self._holders -= 1
                self._changed.notify_all()

    def _take(self, most: int, stop: threading.Event) -> int:
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                while not (self._waiting[0] is ticket and self._used < self._limit):
                    if stop.is_set():
                        raise Stopped("the copy was told to stop")
                    self._changed.wait(_LOOK_SECONDS)
                fair = self._limit // (self._holders + len(self._waiting))
                granted = min(most, max(1, fair), self._limit - self._used)
                self._used += granted
                self._holders += 1
                return granted
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
