"""Entries in a catalog for tables that are written by their place.

The folder is what counts; a catalog (a Hive metastore, say, that Spark is told of by
``spark.conf``) only knows the tables by name too. What a crash leaves out is made up for when the
table is looked at next.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from walflow.errors import DestinationError
from walflow.model import TableName
from walflow.spark.names import literal, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Entries"]


class Entries:
    """The entries of one catalog. Calls may come from several threads."""

    def __init__(self, catalog: str) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._entered: set[TableName] = set()

    def check(self, spark: SparkSession) -> None:
        """Fail as Spark does if there is no such catalog."""
        spark.sql(f"SHOW NAMESPACES IN {quoted(self._catalog)}").take(1)

    def enter(self, spark: SparkSession, name: TableName, folder: Path) -> None:
        """Make the table known, unless it is. DestinationError if the catalog allows no such name.

        Adds no commit to the table."""
        with self._lock:
            if name in self._entered:
                return
        identifier = self._identifier(name)
        spark.sql(
            f"CREATE NAMESPACE IF NOT EXISTS {quoted(self._catalog)}.{quoted(name.schema)}"
            f" LOCATION {literal(str(folder.parent))}"
        )
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {identifier} USING delta LOCATION {literal(str(folder))}"
        )
        with self._lock:
            self._entered.add(name)

    def remove(self, spark: SparkSession, name: TableName) -> None:
        """Make the table unknown; its files stay. Repeats safely."""
        with self._lock:
            self._entered.discard(name)
        if _is_allowed(name):
            spark.sql(f"DROP TABLE IF EXISTS {self._identifier(name)}")

    def _identifier(self, name: TableName) -> str:
        if not _is_allowed(name):
            raise DestinationError(
                f"the catalog {self._catalog} cannot have a table called {name}: letters, digits "
                "and underscores only",
                hint="Give it another name in mapping.tables, or leave destination.options.catalog "
                "out: by their place, tables can have any name.",
                retry=False,
            )
        return f"{quoted(self._catalog)}.{quoted(name.schema)}.{quoted(name.name)}"


def _is_allowed(name: TableName) -> bool:
    return all(re.fullmatch(r"[A-Za-z0-9_]+", part) for part in (name.schema, name.name))
