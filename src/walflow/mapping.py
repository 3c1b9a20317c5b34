"""The names of the source's tables in the destination."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

import structlog

from walflow.config import MappingSettings
from walflow.errors import MappingConflict
from walflow.model import TableName

__all__ = ["NamedTables", "TableMapping", "check_distinct", "conflict"]

_logger = structlog.get_logger(__name__)


class TableMapping:
    """Names from the settings: explicit ones first, then the template."""

    def __init__(self, settings: MappingSettings) -> None:
        self._template = settings.template.split(".")
        self._explicit = {
            source: TableName(*destination.split("."))
            for source, destination in settings.tables.items()
        }

    def destination(self, source: TableName) -> TableName:
        given = self._explicit.get(str(source))
        if given is not None:
            return given
        names = {"schema": source.schema, "table": source.name}
        # Each half by itself: a dot in a source's name is not the template's dot.
        return TableName(*(half.format_map(names) for half in self._template))


class NamedTables:
    """Tables of the source that a setting names."""

    def __init__(self, setting: str, names: Iterable[str]) -> None:
        self._setting = setting
        self._names = frozenset(names)
        self._warned: frozenset[str] = frozenset()

    def warn_of_unused(self, published: Iterable[TableName]) -> None:
        """Warn once about names in the setting that none of these tables has. For one thread."""
        names = [str(table) for table in published]
        unused = self._names.difference(names)
        for name in sorted(unused - self._warned):
            meant = get_close_matches(name, names, n=1)
            _logger.warning(
                f"{self._setting} names a table that is not followed",
                table=name,
                hint=(f"Did you mean {meant[0]}? " if meant else "") + "The names are those of: "
                "SELECT schemaname, tablename FROM pg_publication_tables;",
            )
        self._warned = unused


def conflict(sources: Iterable[TableName], destination: TableName) -> MappingConflict:
    names = " and ".join(str(source) for source in sorted(sources))
    return MappingConflict(
        f"{names} would share the destination's table {destination}",
        hint="Change mapping.template so that the names differ (it can use {schema} and {table}), "
        "or name one of the tables in mapping.tables.",
    )


def check_distinct(names: Mapping[TableName, TableName]) -> None:
    """Raise MappingConflict if two sources have one destination."""
    seen: dict[TableName, TableName] = {}
    for source, destination in sorted(names.items()):
        if destination in seen:
            raise conflict((seen[destination], source), destination)
        seen[destination] = source
