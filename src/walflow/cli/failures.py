"""Errors as the user sees them: the cause, what to do, and an exit code."""

from __future__ import annotations

import traceback

import click

from walflow.errors import WalflowError
from walflow.redaction import redacted

__all__ = ["UNEXPECTED", "report"]

UNEXPECTED = 99
"""The exit code of an unexpected error."""


def report(error: Exception, *, debug: bool) -> int:
    """Print the error on stderr, without secrets; gives the exit code.

    The stack trace is printed only with ``debug``.
    """
    if debug:
        click.echo(redacted(_stack(error)), err=True, nl=False)
    if isinstance(error, WalflowError):
        # docs/reference/errors.md has a section for each code.
        click.echo(
            f"{click.style('Error:', fg='red', bold=True)} {redacted(error.sentence)}"
            f" {click.style(f'[{error.code}]', dim=True)}",
            err=True,
        )
        if error.hint:
            click.echo(f"{click.style('What to do:', bold=True)} {redacted(error.hint)}", err=True)
        return error.exit_code
    cause = " ".join(_words(error).split()) or "no message"
    click.echo(
        f"{click.style('Unexpected error:', fg='red', bold=True)}"
        f" {type(error).__name__}: {redacted(cause)[:500]}",
        err=True,
    )
    if not debug:
        click.echo("Run again with --debug to see where it happened.", err=True)
    return UNEXPECTED


def _words(error: Exception) -> str:
    """The message; of Spark's long errors, only the cause."""
    if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
        return str(error)
    from walflow.spark.causes import cause_of

    return cause_of(error).message


def _stack(error: Exception) -> str:
    told = traceback.TracebackException.from_exception(error)
    if isinstance(error, WalflowError):
        # The hint is printed below.
        told.__notes__ = None
    return "".join(told.format())
