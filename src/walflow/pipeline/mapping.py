"""What the destination calls the source's tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from walflow.config import MappingSettings
from walflow.errors import ConfigError, MappingConflict
from walflow.model import TableName

__all__ = ["TableMapping", "check_apart", "conflict"]


class TableMapping:
    """Names by the settings: explicit ones first, then the template."""

    def __init__(self, settings: MappingSettings) -> None:
        self._template = settings.template
        self._explicit = settings.tables
        self.destination(TableName("schema", "table"))  # a bad template is told at once
        for source, destination in settings.tables.items():
            _parse(destination, f"mapping.tables: {source}")

    def destination(self, source: TableName) -> TableName:
        given = self._explicit.get(str(source))
        if given is not None:
            return _parse(given, f"mapping.tables: {source}")
        namespace, dot, table = self._template.partition(".")
        if not dot or "." in table:
            raise _wrong_template(self._template)
        try:
            # The halves apart: a dot inside a source's name is not one of the template.
            return TableName(
                *(
                    half.format_map({"schema": source.schema, "table": source.name})
                    for half in (namespace, table)
                )
            )
        except (KeyError, ValueError, IndexError, AttributeError):
            raise _wrong_template(self._template) from None


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


def _parse(text: str, where: str) -> TableName:
    namespace, dot, table = text.partition(".")
    if not dot or not namespace or not table:
        raise ConfigError(f"{where}: {text!r} is not of the form namespace.table")
    return TableName(namespace, table)


def _wrong_template(template: str) -> ConfigError:
    return ConfigError(
        f"mapping.template {template!r} is not of the form namespace.table",
        hint="It may use {schema} and {table}, for example lake.{schema}__{table}.",
    )
