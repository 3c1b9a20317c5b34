"""Calling again: what may pass is tried again, as often as it may be, until told to stop."""

from __future__ import annotations

import threading

import pytest
import tenacity

from tests.pipeline.running import WAIT
from walflow.errors import DestinationForeign, StoreError
from walflow.pipeline.retrying import call_again
from walflow.pipeline.state.retries import is_worth_retrying


class Work:
    """Raises these errors, one a call, and then returns how often it was called."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0
        self.told: list[tuple[str, int, float]] = []

    def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.calls

    def call(self, stop: threading.Event, *, wait: float = 0, attempts: int | None = None) -> int:
        return call_again(
            self,
            stop=stop,
            can_retry=is_worth_retrying,
            wait=tenacity.wait_fixed(wait),
            tell=lambda error, attempt, seconds: self.told.append((str(error), attempt, seconds)),
            attempts=attempts,
        )


def test_what_may_pass_is_tried_again_and_told() -> None:
    work = Work(StoreError("away"), ValueError("odd"))
    assert work.call(threading.Event()) == 3
    assert work.told == [("away", 2, 0), ("odd", 3, 0)]


def test_what_cannot_pass_is_raised_at_once() -> None:
    work = Work(StoreError("away"), DestinationForeign("not ours"))
    with pytest.raises(DestinationForeign, match="not ours"):
        work.call(threading.Event())
    assert work.calls == 2


def test_the_last_error_is_raised_when_the_attempts_end() -> None:
    work = Work(StoreError("first"), StoreError("second"))
    with pytest.raises(StoreError, match="second"):
        work.call(threading.Event(), attempts=2)
    assert work.calls == 2


def test_who_is_told_to_stop_does_not_wait() -> None:
    stop, work = threading.Event(), Work(StoreError("away"))
    raised: list[Exception] = []

    def run() -> None:
        try:
            work.call(stop, wait=10 * WAIT)
        except StoreError as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while not work.told:
        thread.join(0.01)
    stop.set()
    thread.join(WAIT)
    assert [str(error) for error in raised] == ["away"]
    assert work.calls == 1
    # Nor is there another attempt if it was told before.
    late = Work(StoreError("away"))
    with pytest.raises(StoreError):
        late.call(stop)
    assert (late.calls, late.told) == (1, [])
