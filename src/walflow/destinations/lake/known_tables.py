"""What is known of tables: asked anew if they are not as they were when they were looked at."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from walflow.destinations.lake.format import LakeFormat, Stored
from walflow.destinations.lake.freshness import Parts, ViewedTables, version_of_parts
from walflow.destinations.lake.owner import Owner, check_owner
from walflow.model import TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KnownTables"]


class KnownTables:
    """All calls may come from several threads."""

    def __init__(self, format: LakeFormat, owner: Owner, viewed: ViewedTables) -> None:
        self._format = format
        self._owner = owner
        self._viewed = viewed
        self._lock = threading.Lock()
        self._stored: dict[TableName, Stored] = {}
        self._opened: set[TableName] = set()

    def known(self, spark: SparkSession, name: TableName) -> Stored | None:
        """How the table is now, for who writes it."""
        with self._lock:
            known = self._stored.get(name)
        if known is not None and self._version(spark, name, known) == known.version:
            return known
        return self.look_anew(spark, name)

    def look_anew(self, spark: SparkSession, name: TableName) -> Stored | None:
        """So too, without relying on what was known."""
        stored = self.look(spark, name)
        with self._lock:
            is_new = name not in self._opened
            self._opened.add(name)
            self._stored.pop(name, None)
        if stored is None:
            return None
        if is_new and (parts := Parts.of(name, stored)) is not None:
            self._viewed.opened(spark, parts)
        with self._lock:
            self._stored[name] = stored
        return stored

    def seen(self, spark: SparkSession, name: TableName) -> Stored | None:
        """How the table was a moment ago, for who does not write it. What they find is not kept:
        while somebody else writes, it may be old by then."""
        with self._lock:
            known = self._stored.get(name)
        return known or self.look(spark, name)

    def look(self, spark: SparkSession, name: TableName) -> Stored | None:
        """How the table is; None when there is none. DestinationForeign when it is not ours."""
        stored = self._format.look(spark, name)
        if stored is None:
            return self._viewed.look(spark, name)
        check_owner(self._format.identifier(name), self._owner, stored.properties)
        return self._viewed.without_parts(name, stored)

    def forget(self, name: TableName) -> None:
        with self._lock:
            self._stored.pop(name, None)
            self._opened.discard(name)

    def _version(self, spark: SparkSession, name: TableName, known: Stored) -> str | None:
        if (parts := Parts.of(name, known)) is None:
            return self._format.version(spark, name)
        base, changes = (self._format.version(spark, part) for part in (parts.base, parts.changes))
        return version_of_parts(base, changes)
