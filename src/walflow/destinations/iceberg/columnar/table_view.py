"""A table as this process has left it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from walflow.destinations.iceberg.columnar.commits import IcebergTable
from walflow.destinations.iceberg.columnar.file_changes import TableFiles
from walflow.destinations.iceberg.columnar.key_index import KeyedFile
from walflow.destinations.iceberg.columnar.reading import NameMapping

__all__ = ["TableView"]


@dataclass(slots=True)
class TableView:
    table: IcebergTable
    version: str
    fields: list[dict[str, Any]]
    names: NameMapping
    files: TableFiles

    def copy(self) -> TableView:
        """As it is now, whatever is committed later."""
        return replace(self, files=self.files.copy())

    @property
    def keyed_files(self) -> list[KeyedFile]:
        return [file.file for file in self.files.files.values()]
