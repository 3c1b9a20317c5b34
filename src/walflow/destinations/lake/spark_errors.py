"""What Spark, or Java below it, complains of, as an error of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from walflow.errors import DestinationError, WalflowError
from walflow.evolution import NotFollowed
from walflow.spark.causes import Cause, cause_of

__all__ = ["as_our_errors"]

_KEPT = "The change log keeps what is not applied."


@contextmanager
def as_our_errors(subject: str) -> Iterator[None]:
    """What is raised inside becomes a DestinationError about the subject.

    Only what may pass by itself is worth another attempt: not a missing right, nor a setting that
    is wrong.
    """
    try:
        yield
    except (WalflowError, NotFollowed):
        raise
    except Exception as error:
        cause = cause_of(error)
        raise DestinationError(
            f"{subject}: {cause.message}", hint=_hint(cause), retry=cause.may_pass
        ) from error


def _hint(cause: Cause) -> str:
    if cause.mistaken:
        return (
            "Check destination.options, which the catalog is given, and the jars that it needs "
            f"(spark.conf's spark.jars). {_KEPT}"
        )
    if cause.not_allowed:
        return (
            "Give this user (or the one that the catalog knows, see destination.options) the right "
            "to write there, or name another place (destination.uri). Then run `walflow retry`. "
            f"{_KEPT}"
        )
    if cause.unknown_user:
        return (
            "Check the token or the credential in destination.options. It is tried again by itself "
            f"for a while. {_KEPT}"
        )
    if cause.away:
        return (
            "Check the address in destination.options, and that the server runs and can be reached "
            f"from here. It is tried again by itself. {_KEPT}"
        )
    return f"See the cause with --debug. {_KEPT}"
