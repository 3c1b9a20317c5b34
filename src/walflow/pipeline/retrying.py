"""Calling again what may pass by itself. (When a table that failed is tried again is another
question: see ``walflow.pipeline.state.retries``.)"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import tenacity
from tenacity.wait import wait_base

__all__ = ["call_again"]

_Result = TypeVar("_Result")


def call_again(
    work: Callable[[], _Result],
    *,
    stop: threading.Event,
    can_retry: Callable[[BaseException], bool],
    wait: wait_base | Callable[[tenacity.RetryCallState], float],
    tell: Callable[[BaseException, int, float], None],
    attempts: int | None = None,
) -> _Result:
    """What ``work`` returns. Raises what it raised last: once it cannot be tried again, there were
    so many attempts, or ``stop`` is set, which also ends the waiting.

    ``tell`` is given each error that is followed by another attempt, that attempt's number, and the
    seconds until then.
    """
    errors: list[BaseException] = []

    def before_sleep(state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None
        assert state.next_action is not None
        error = state.outcome.exception()
        assert error is not None
        errors[:] = [error]
        tell(error, state.attempt_number + 1, state.next_action.sleep)

    def sleep(seconds: float) -> None:
        if stop.wait(seconds):
            raise errors[0]

    last = tenacity.stop_never if attempts is None else tenacity.stop_after_attempt(attempts)
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(can_retry),
        stop=tenacity.stop_when_event_set(stop) | last,
        wait=wait,
        sleep=sleep,
        before_sleep=before_sleep,
        reraise=True,
    )
    return retrying(work)
