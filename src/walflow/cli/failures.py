"""Errors as the user sees them: the cause, what to do, and exit codes."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator

import click

from walflow import errors
from walflow.errors import ErrorKind, TablesSetAside, WalflowError
from walflow.redaction import redacted

__all__ = ["UNEXPECTED", "exit_codes", "report"]

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
    trace = traceback.TracebackException.from_exception(error)
    if isinstance(error, WalflowError):
        # The hint is printed below.
        trace.__notes__ = None
    return "".join(trace.format())


_KINDS = {
    ErrorKind.CONFIG: "the command line or the settings",
    ErrorKind.SOURCE: "the source",
    ErrorKind.LOG: "the change log",
    ErrorKind.SPARK: "Spark",
    ErrorKind.DESTINATION: f"the destination ({TablesSetAside.exit_code}: tables are set aside)",
    ErrorKind.STORE: "the store",
}
_OTHERS = {
    "0": "done",
    str(UNEXPECTED): "an unexpected error: please report it",
    "130, 143": "ended by Ctrl-C or SIGTERM before the work was done",
}


def exit_codes() -> str:
    """One line for each kind of error, and one for each result."""
    lines = dict(_OTHERS)
    for kind, words in _KINDS.items():
        lines[_ranges(error.exit_code for error in _errors() if error.kind is kind)] = words
    for error in _errors():
        if error.kind is ErrorKind.RESULT:
            lines[str(error.exit_code)] = _first_line(error)
    width = max(map(len, lines))
    ordered = sorted(lines.items(), key=lambda line: int(line[0].replace(",", "-").split("-")[0]))
    return "Exit codes:\n" + "\n".join(f"  {codes:{width}}  {words}" for codes, words in ordered)


def _errors() -> Iterator[type[WalflowError]]:
    for name in errors.__all__:
        found = getattr(errors, name)
        if issubclass(found, WalflowError) and found is not WalflowError:
            yield found


def _ranges(codes: Iterable[int]) -> str:
    """Such as 2-4, 75."""
    runs: list[list[int]] = []
    for code in sorted(set(codes)):
        if runs and code == runs[-1][-1] + 1:
            runs[-1].append(code)
        else:
            runs.append([code])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _first_line(error: type[WalflowError]) -> str:
    text = (error.__doc__ or error.__name__).partition("\n")[0].rstrip(".")
    return text[:1].lower() + text[1:]
