"""The exit codes that ``walflow --help`` lists, taken from the error classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from walflow import errors
from walflow.cli.failures import UNEXPECTED
from walflow.errors import ErrorKind, TablesSetAside, WalflowError

__all__ = ["exit_codes"]

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
