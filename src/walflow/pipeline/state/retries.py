"""When a table that failed is tried again."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from walflow.errors import ErrorKind, WalflowError
from walflow.model import Phase
from walflow.redaction import redacted
from walflow.spark.causes import cause_of
from walflow.states import RetryKind, RetryPolicy, TableError

__all__ = ["Retries", "first_line", "is_of_the_source"]

_LONGEST_SECONDS = 3600.0
_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Retries:
    """How failures of tables are treated: the pipeline's settings."""

    delay_seconds: float
    max_attempts: int

    def describe(self, error: Exception, phase: Phase, attempts: int) -> TableError:
        """What is remembered of the error; ``attempts`` counts it already."""
        known = isinstance(error, WalflowError)
        return TableError(
            code=error.code if isinstance(error, WalflowError) else type(error).__name__,
            reason=redacted(first_line(error)),
            hint=redacted(error.hint) if isinstance(error, WalflowError) else "",
            retry=self._policy(not known or bool(getattr(error, "retry", True)), attempts),
            phase=phase,
        )

    def _policy(self, worth_retrying: bool, attempts: int) -> RetryPolicy:
        if not worth_retrying or attempts > self.max_attempts:
            return RetryPolicy(RetryKind.MANUAL)
        delay = min(self.delay_seconds * 2 ** (attempts - 1), _LONGEST_SECONDS)
        # Tables that failed together need not come back together.
        delay *= 1 + random.uniform(0, _JITTER)  # noqa: S311 - not for secrets
        return RetryPolicy(RetryKind.TIMED, time.time() + delay)


def first_line(error: BaseException) -> str:
    """What is to be told of it; of what Spark raises, the cause."""
    text = str(error).strip() if isinstance(error, WalflowError) else cause_of(error).message
    return (text or type(error).__name__).partition("\n")[0][:1000]


def is_of_the_source(error: BaseException) -> bool:
    """Whether the source as a whole is in trouble that may pass, and no table is to blame."""
    return isinstance(error, WalflowError) and error.kind is ErrorKind.SOURCE and error.retry
