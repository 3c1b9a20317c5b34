"""What a settings file wants of tables in a lake. (No Spark is needed to say it.)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from walflow.errors import ConfigError

if TYPE_CHECKING:
    from walflow.cli.options import Chosen
    from walflow.config import ApplySettings
    from walflow.config.lake import Freshness, Mode
    from walflow.model import TableName

__all__ = ["Wanted", "WantedOfTables", "wanted_of_tables"]

_LAKES = ("iceberg", "delta")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Of one table."""

    mode: Mode
    freshness: Freshness

    @property
    def words(self) -> str:
        return self.mode if self.freshness == "auto" else f"{self.mode}, {self.freshness}"


@dataclass(frozen=True, slots=True)
class WantedOfTables:
    settings: ApplySettings

    def of(self, table: TableName) -> Wanted:
        own = self.settings.tables.get(str(table))
        return Wanted(
            (own and own.mode) or self.settings.mode,
            (own and own.freshness) or self.settings.freshness,
        )


def wanted_of_tables(chosen: Chosen) -> WantedOfTables | None:
    """None if no file is named, or the destination is no lake: the store does not know it, and
    what holds without a file need not be what the pipeline was started with."""
    if chosen.file is None:
        return None
    try:
        settings = chosen.settings({"source.uri": ""})
    except ConfigError:
        # Such as a variable in a URI that is not set here: there is no need of it to look.
        return None
    if urlsplit(settings.destination.uri).scheme not in _LAKES:
        return None
    return WantedOfTables(settings.apply)
