"""What is known when a check begins, and what checks before it have found out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from walflow.config import Settings
from walflow.source.catalog.published_tables import PublishedTable
from walflow.source.catalog.server import Server
from walflow.source.connection import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Facts"]


@dataclass(slots=True)
class Facts:
    settings: Settings
    quick: bool = False
    """Spark is not to be started."""
    debug: bool = False
    spark: SparkSession | None = None
    """One to use instead of our own."""
    stopped: Callable[[], bool] = field(default=lambda: False)
    """Whether checking is to end soon."""
    patience: float = 10.0
    """For how many seconds open transactions may keep a slot from being made."""
    doing: Callable[[str], None] = field(default=lambda _: None)
    """Told what takes long, in words."""
    session: Session | None = None
    """On the source, if it can be reached."""
    server: Server | None = None
    tables: tuple[PublishedTable, ...] = ()
    """Those that are, or would be, followed."""
    spark_can_start: bool = True

    @property
    def uri(self) -> str:
        return self.settings.source.uri.get_secret_value()

    @property
    def application(self) -> str:
        return f"walflow {self.settings.name} check"

    @property
    def source_id(self) -> str:
        """By which destinations tell sources apart."""
        server = self.server
        return "unknown" if server is None else f"{server.system_identifier}/{server.database}"
