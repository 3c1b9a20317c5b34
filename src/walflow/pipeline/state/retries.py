"""When a table that failed, or whose copy was interrupted, is tried again."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from walflow.errors import ErrorKind, WalflowError
from walflow.model import Phase
from walflow.redaction import redacted
from walflow.spark.causes import cause_of
from walflow.states import RetryKind, RetryPolicy, TableError

__all__ = [
    "Postponed",
    "Retries",
    "first_line",
    "is_of_the_source",
    "is_worth_retrying",
    "next_pause",
]

_LONGEST_SECONDS = 3600.0
_JITTER = 0.2
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_SHORT_PAUSE = 4.0


@dataclass(frozen=True, slots=True)
class Retries:
    """The pipeline's settings for failed tables."""

    delay_seconds: float
    max_attempts: int

    def describe(self, error: Exception, phase: Phase, attempts: int) -> TableError:
        """The error as it is stored. ``attempts`` includes this failure."""
        return TableError(
            code=error.code if isinstance(error, WalflowError) else type(error).__name__,
            reason=_storable(first_line(error)),
            hint=_storable(error.hint) if isinstance(error, WalflowError) else "",
            retry=self._policy(is_worth_retrying(error), attempts),
            phase=phase,
        )

    def _policy(self, worth_retrying: bool, attempts: int) -> RetryPolicy:
        if not worth_retrying or attempts > self.max_attempts:
            return RetryPolicy(RetryKind.MANUAL)
        delay = min(self.delay_seconds * 2 ** (attempts - 1), _LONGEST_SECONDS)
        # Tables that failed together need not come back together.
        delay *= 1 + random.uniform(0, _JITTER)  # noqa: S311 - not for secrets
        return RetryPolicy(RetryKind.TIMED, time.time() + delay)


@dataclass(frozen=True, slots=True)
class Postponed:
    """A copy that waits because the source was in trouble. No table is to blame, so it is tried
    again without a limit."""

    until: float
    pause: float
    rows: int
    """How many rows were read by then."""

    @property
    def soon(self) -> bool:
        """Whether the snapshot should be held until then, although it holds back the source's
        log."""
        return self.pause <= _SHORT_PAUSE


def next_pause(before: Postponed | None, rows: int) -> float:
    """How long an interrupted copy waits, by how many rows it had read."""
    # One that came on in between is interrupted for the first time again.
    if before is None or rows > before.rows:
        return _FIRST_PAUSE
    return min(before.pause * 2, _LONGEST_PAUSE)


def _storable(text: str) -> str:
    """The text without secrets, and without the lone surrogates that a path may have."""
    return redacted(text).encode(errors="backslashreplace").decode()


def first_line(error: BaseException) -> str:
    """The error's message. For Spark's errors, the cause."""
    text = str(error).strip() if isinstance(error, WalflowError) else cause_of(error).message
    return (text or type(error).__name__).partition("\n")[0][:1000]


def is_worth_retrying(error: BaseException) -> bool:
    """Whether another attempt may succeed. For errors that are not ours, it may."""
    if isinstance(error, WalflowError):
        return error.retry
    return isinstance(error, Exception)


def is_of_the_source(error: BaseException) -> bool:
    """Whether the error is the source's and may pass, so that no table is to blame."""
    return isinstance(error, WalflowError) and error.kind is ErrorKind.SOURCE and error.retry
