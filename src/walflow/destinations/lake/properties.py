"""What tables say of themselves, cached for as long as they have the same version."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import structlog

from walflow.destinations.lake.format import LakeFormat, Stored
from walflow.destinations.lake.owner import Owner, check_owner, is_owned
from walflow.model import TableName
from walflow.spark.causes import cause_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TableCache", "is_table_owned", "properties_of"]

_logger = structlog.get_logger(__name__)


def properties_of(spark: SparkSession, identifier: str) -> dict[str, str]:
    rows = spark.sql(f"SHOW TBLPROPERTIES {identifier}").collect()
    return {row["key"]: row["value"] for row in rows}


def is_table_owned(spark: SparkSession, identifier: str, owner: Owner) -> bool:
    """Also False if it is not known."""
    try:
        properties = properties_of(spark, identifier)
    except Exception as error:
        # Somebody's table that is damaged must not stand in the way.
        _logger.warning(
            "the owner of a table could not be read",
            table=identifier,
            error=cause_of(error).message,
        )
        return False
    return is_owned(owner, properties)


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
