"""What is known when a check begins: the settings, and what earlier checks have found."""

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
