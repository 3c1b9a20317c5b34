"""Work in a thread, while the main thread handles signals and shows progress."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

__all__ = ["Signals", "Work"]


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
