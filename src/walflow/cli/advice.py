"""What an operator is told of a table that failed."""

from __future__ import annotations

from dataclasses import dataclass

from walflow.model import TableName
from walflow.pasting import command_for, with_options
from walflow.redaction import redacted
from walflow.states import RetryKind, TableError
from walflow.units import human_age, iso_time

__all__ = ["Advice", "advise"]


@dataclass(frozen=True, slots=True)
class Advice:
    reason: str
    hint: str
    """May be empty."""
    next: str
    """What becomes of the table now."""
    command: str
    """To paste; empty while there is nothing to do."""


def advise(
    table: TableName, error: TableError, now: float, again: str = "", *, set_aside: bool = True
) -> Advice:
    """``again``: the options that find the pipeline, for the commands. ``set_aside``: whether the
    table still is, or is being tried again."""
    if not set_aside:
        next, command = "It is being tried again now.", ""
    else:
        next = _next(error, now)
        verb = "resync" if error.retry.kind is RetryKind.NONE else "retry"
        command = command_for(verb, table, again)
    return Advice(
        f"{error.code}: {redacted(error.reason)}",
        with_options(redacted(error.hint), again),
        next,
        command,
    )


def _next(error: TableError, now: float) -> str:
    retry = error.retry
    if error.passing:
        return (
            "It is looked at again every few seconds, and goes on when the cause is gone. At once:"
        )
    if retry.kind is RetryKind.NONE:
        return "Trying again cannot help. To copy the table again:"
    if retry.kind is RetryKind.MANUAL or retry.at is None:
        return "It waits for you. When the cause is gone:"
    if retry.at <= now:
        return "The next attempt is due now. To ask for it:"
    at = iso_time(retry.at, "seconds")
    return f"The next attempt comes by itself in {human_age(retry.at - now)} ({at}). At once:"
