"""What Spark, or Java below it, complains of, as an error of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from walflow.errors import DestinationError, WalflowError
from walflow.evolution import NotFollowed

__all__ = ["as_our_errors"]


@contextmanager
def as_our_errors(subject: str) -> Iterator[None]:
    """What is raised inside becomes a DestinationError about the subject."""
    try:
        yield
    except (WalflowError, NotFollowed):
        raise
    except Exception as error:
        raise DestinationError(
            f"{subject}: {_first_line(error)}",
            hint="See the cause with --debug; the change log keeps what is not applied.",
        ) from error


def _first_line(error: Exception) -> str:
    # Of what Java threw, the bridge says first which object was called.
    thrown = getattr(error, "java_exception", None)
    said = str(error) if thrown is None else str(thrown.toString())
    return said.strip().partition("\n")[0][:500]
