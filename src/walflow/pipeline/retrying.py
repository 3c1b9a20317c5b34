"""Calls something again after an error that may pass. (When a failed table is tried again is
decided in ``walflow.pipeline.state.retries``.)"""

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
    """Call ``work`` until it succeeds, and return its result. Raises its last error: when
    ``can_retry`` says no, after the last attempt, or when ``stop`` is set, which also ends the
    waiting. ``tell`` gets each error that is followed by another attempt, the attempt's number, and
    the seconds until then."""
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
