"""What a check has found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import psycopg

from walflow.errors import CheckFailed, WalflowError
from walflow.source.connection import source_error

__all__ = ["Area", "Finding", "Verdict", "attempted", "error", "ok", "skipped", "warning"]


class Area(StrEnum):
    """The subjects of checks, in their order."""

    SOURCE = "source"
    TABLES = "tables"
    STORE = "store"
    LOG = "change log"
    SPARK = "Spark"
    DESTINATION = "destination"


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It works, but maybe not as expected."""
    ERROR = "error"
    """A pipeline would not start, or not follow all tables."""
    SKIPPED = "not tried"


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    area: Area
    check: str
    """The name of the check, for programs. It does not change."""
    message: str
    hint: str = ""
    """What to do, with text to paste; may be empty."""
    code: str | None = None
    """The class of an error."""
    exit_code: int = 0
    detail: bool = False
    """Shown only with --verbose."""


def ok(area: Area, check: str, message: str, *, detail: bool = False) -> Finding:
    return Finding(Verdict.OK, area, check, message, detail=detail)


def warning(area: Area, check: str, message: str, hint: str = "") -> Finding:
    return Finding(Verdict.WARNING, area, check, message, hint)


def skipped(area: Area, check: str, message: str) -> Finding:
    return Finding(Verdict.SKIPPED, area, check, message)


def error(area: Area, check: str, raised: WalflowError) -> Finding:
    return Finding(
        Verdict.ERROR, area, check, raised.sentence, raised.hint, raised.code, raised.exit_code
    )


def attempted(area: Area, check: str, looks: Iterator[Finding]) -> Iterator[Finding]:
    """All findings. A raised error becomes the last one, and does not stop other checks."""
    try:
        yield from looks
    except WalflowError as raised:
        yield error(area, check, raised)
    except psycopg.Error as raised:
        yield error(area, check, source_error(str(raised), raised.sqlstate, f"check: {check}"))
    except Exception as raised:
        cause = " ".join(str(raised).split())[:500]
        yield Finding(
            Verdict.ERROR,
            area,
            check,
            f"The check failed: {type(raised).__name__}: {cause}",
            "Run again with --debug to see where it happened.",
            type(raised).__name__,
            CheckFailed.exit_code,
        )
