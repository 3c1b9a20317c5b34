"""What tables say of themselves, kept for as long as they are still the same version."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from walflow.destinations.lake.format import LakeFormat, Stored
from walflow.destinations.lake.owner import Owner, check_owner
from walflow.model import TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TableCache"]


class TableCache:
    """All calls may come from several threads."""

    def __init__(self, format: LakeFormat, owner: Owner) -> None:
        self._format = format
        self._owner = owner
        self._lock = threading.Lock()
        self._stored: dict[TableName, Stored] = {}

    def current(self, spark: SparkSession, name: TableName) -> Stored | None:
        """The table as it is now. It is loaded again only if it has another version."""
        with self._lock:
            cached = self._stored.get(name)
        if cached is not None and self._format.version(spark, name) == cached.version:
            return cached
        return self.reload(spark, name)

    def reload(self, spark: SparkSession, name: TableName) -> Stored | None:
        """The same, always loaded."""
        stored = self.look(spark, name)
        with self._lock:
            if stored is None:
                self._stored.pop(name, None)
            else:
                self._stored[name] = stored
        return stored

    def look(self, spark: SparkSession, name: TableName) -> Stored | None:
        """The table, not cached; None if there is none. DestinationForeign if it is not ours."""
        stored = self._format.look(spark, name)
        if stored is not None:
            check_owner(self._format.identifier(name), self._owner, stored.properties)
        return stored

    def forget(self, name: TableName) -> None:
        with self._lock:
            self._stored.pop(name, None)
