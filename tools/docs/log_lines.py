"""The page of log lines: every fixed message in the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import walflow
from tools.docs.markdown import code, table

__all__ = ["log_lines_page"]

_INTRODUCTION = """\
# Log lines

Without a terminal, `walflow run` writes log lines; with `--json` each is a JSON object with `time`,
`level`, `event` and the fields below. Lines with `error` also have `error_code` (see
[errors](errors.md)) and `hint`. Secrets are masked. `--debug` adds lines of level `debug`, and
`--quiet` leaves out `info`.
"""

_LOGGERS = {"_logger", "_log"}
_LEVELS = ("error", "warning", "info", "debug")


@dataclass(frozen=True, slots=True, order=True)
class _Line:
    level: int
    event: str
    fields: tuple[str, ...]


def log_lines_page() -> str:
    home = Path(str(walflow.__file__)).parent
    found = {line for file in home.rglob("*.py") for line in _lines(file)}
    lines = [_INTRODUCTION]
    for level, name in enumerate(_LEVELS):
        here = [line for line in sorted(found) if line.level == level]
        if here:
            lines += [f"## {name}", ""]
            lines += table(
                ["Event", "Fields"],
                ([line.event, ", ".join(map(code, line.fields))] for line in here),
            )
    return "\n".join(lines)


def _lines(file: Path) -> Iterator[_Line]:
    for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match call:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=logger), attr=level),
                args=[ast.Constant(value=str(event)), *_],
                keywords=keywords,
            ) if logger in _LOGGERS and level in _LEVELS:
                fields = tuple(one.arg or "…" for one in keywords)
                yield _Line(_LEVELS.index(level), event, fields)
