"""What an operator is told of a table that was set aside."""

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
    """To paste."""


def advise(table: TableName, error: TableError, now: float, again: str = "") -> Advice:
    """``again``: the options that find the pipeline, for the commands."""
    verb = "resync" if error.retry.kind is RetryKind.NONE else "retry"
    return Advice(
        f"{error.code}: {redacted(error.reason)}",
        with_options(redacted(error.hint), again),
        _next(error, now),
        command_for(verb, table, again),
    )


def _next(error: TableError, now: float) -> str:
    retry = error.retry
    if retry.kind is RetryKind.NONE:
        return "Trying again cannot help. To copy the table again:"
    if retry.kind is RetryKind.MANUAL or retry.at is None:
        return "It waits for you. When the cause is gone:"
    if retry.at <= now:
        return "The next attempt is due now. To ask for it:"
    at = iso_time(retry.at, "seconds")
    return f"The next attempt comes by itself in {human_age(retry.at - now)} ({at}). At once:"
