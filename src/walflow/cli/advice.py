"""What the operator is advised to do about a table that failed."""

from __future__ import annotations

from dataclasses import dataclass

from walflow.model import TableName
from walflow.pasting import command_for, with_options
from walflow.redaction import redacted
from walflow.states import RetryKind, TableError
from walflow.units import human_age, iso_time

__all__ = ["Advice", "advise"]

_WHEN_IT_RUNS = "is tried again when the pipeline runs"


@dataclass(frozen=True, slots=True)
class Advice:
    reason: str
    hint: str
    """May be empty."""
    next: str
    """What happens to the table next."""
    command: str
    """To paste; empty if there is nothing to do."""


def advise(
    table: TableName,
    error: TableError,
    now: float,
    again: str = "",
    *,
    set_aside: bool = True,
    running: bool = True,
) -> Advice:
    """``again``: the options that find the pipeline, for the commands. ``set_aside``: the table
    waits for its next attempt, and is not being tried now. ``running``: a process runs the
    pipeline; otherwise there are no attempts."""
    if not set_aside:
        next = "It is being tried again now." if running else f"It {_WHEN_IT_RUNS}."
        command = ""
    else:
        next = _next(error, now, running=running)
        verb = "resync" if error.retry.kind is RetryKind.NONE else "retry"
        command = command_for(verb, table, again)
    return Advice(
        f"{error.code}: {redacted(error.reason)}",
        with_options(redacted(error.hint), again),
        next,
        command,
    )


def _next(error: TableError, now: float, *, running: bool) -> str:
    retry = error.retry
    if error.passing:
        often = "every few seconds" if running else "when the pipeline runs"
        return f"walflow checks it {often}, and resumes it when the cause is gone. At once:"
    if retry.kind is RetryKind.NONE:
        return "Trying again cannot help. To copy the table again:"
    if retry.kind is RetryKind.MANUAL or retry.at is None:
        return "It is not tried again until you ask. When the cause is gone:"
    at = iso_time(retry.at, "seconds")
    if not running:
        earliest = "" if retry.at <= now else f", but not before {at}"
        return f"It {_WHEN_IT_RUNS}{earliest}. To try it as soon as it runs:"
    if retry.at <= now:
        return "The next attempt is due now. To request it:"
    return f"The next attempt is in {human_age(retry.at - now)} ({at}). To try it at once:"
