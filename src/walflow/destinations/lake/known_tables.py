"""What is known of tables: asked anew if they are not as they were when they were looked at."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from walflow.destinations.lake.format import LakeFormat, Stored
from walflow.destinations.lake.owner import Owner, check_owner
from walflow.model import TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KnownTables"]


class KnownTables:
    """All calls may come from several threads."""

    def __init__(self, format: LakeFormat, owner: Owner) -> None:
        self._format = format
        self._owner = owner
        self._lock = threading.Lock()
        self._stored: dict[TableName, Stored] = {}

    def known(self, spark: SparkSession, name: TableName) -> Stored | None:
        """How the table is now, for who writes it."""
        with self._lock:
            known = self._stored.get(name)
        if known is not None and self._format.version(spark, name) == known.version:
            return known
        return self.look_anew(spark, name)

    def look_anew(self, spark: SparkSession, name: TableName) -> Stored | None:
        """The same, without relying on what was known."""
        stored = self.look(spark, name)
        with self._lock:
            if stored is None:
                self._stored.pop(name, None)
            else:
                self._stored[name] = stored
        return stored

    def look(self, spark: SparkSession, name: TableName) -> Stored | None:
        """How the table is; None when there is none. DestinationForeign when it is not ours."""
        stored = self._format.look(spark, name)
        if stored is not None:
            check_owner(self._format.identifier(name), self._owner, stored.properties)
        return stored

    def forget(self, name: TableName) -> None:
        with self._lock:
            self._stored.pop(name, None)
