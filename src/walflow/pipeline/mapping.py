"""What the destination calls the source's tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from walflow.config import MappingSettings
from walflow.errors import MappingConflict
from walflow.model import TableName

__all__ = ["TableMapping", "check_apart", "conflict"]


class TableMapping:
    """Names by the settings: explicit ones first, then the template."""

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
        # The halves apart: a dot inside a source's name is not one of the template.
        return TableName(*(half.format_map(names) for half in self._template))

    def unused(self, sources: Iterable[TableName]) -> frozenset[str]:
        """What the settings name explicitly, and is none of these tables."""
        return frozenset(self._explicit) - {str(source) for source in sources}


def conflict(sources: Iterable[TableName], destination: TableName) -> MappingConflict:
    names = " and ".join(str(source) for source in sorted(sources))
    return MappingConflict(
        f"{names} would share the destination's table {destination}",
        hint="Change mapping.template so that it tells them apart (it may use {schema} and "
        "{table}), or name one of them in mapping.tables.",
    )


def check_apart(names: Mapping[TableName, TableName]) -> None:
    """Raise MappingConflict if two sources have one destination."""
    seen: dict[TableName, TableName] = {}
    for source, destination in sorted(names.items()):
        if destination in seen:
            raise conflict((seen[destination], source), destination)
        seen[destination] = source
