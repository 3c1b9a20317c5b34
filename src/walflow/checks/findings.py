"""What checks know when they begin, and what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import psycopg

from walflow.config import Settings
from walflow.errors import CheckFailed, WalflowError
from walflow.source.catalog.published_tables import PublishedTable
from walflow.source.catalog.server import Server
from walflow.source.connection import Session, source_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Area", "Facts", "Finding", "Verdict", "attempted", "error", "ok", "skipped", "warning"]


@dataclass(slots=True)
class Facts:
    settings: Settings
    quick: bool = False
    """Do not start Spark."""
    debug: bool = False
    spark: SparkSession | None = None
    """A session to use instead of our own."""
    stopped: Callable[[], bool] = field(default=lambda: False)
    """Whether the checks should end soon."""
    patience: float = 10.0
    """How many seconds to wait for open transactions when a slot is created."""
    doing: Callable[[str], None] = field(default=lambda _: None)
    """Called with the name of each slow step."""
    session: Session | None = None
    """A session on the source, if it can be reached."""
    server: Server | None = None
    tables: tuple[PublishedTable, ...] = ()
    """The tables that are, or would be, followed."""
    spark_can_start: bool = True

    @property
    def uri(self) -> str:
        return self.settings.source.uri.get_secret_value()

    @property
    def application(self) -> str:
        return f"walflow {self.settings.name} check"

    @property
    def source_id(self) -> str:
        """How destinations identify the source."""
        server = self.server
        return "unknown" if server is None else f"{server.system_identifier}/{server.database}"


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
