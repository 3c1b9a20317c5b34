"""What is known of tables without asking: as far as this process has brought them itself."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from walflow.destinations.lake.format import LakeFormat, Stored
from walflow.destinations.lake.forms import StoredForm, table_properties
from walflow.destinations.lake.freshness import Parts, ViewedTables
from walflow.destinations.lake.owner import Owner, check_owner
from walflow.model import Lsn, TableName

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

    def known(self, spark: SparkSession, name: TableName) -> Stored | None:
        """How the table is, for who writes it; asked for only if it is not known."""
        with self._lock:
            known = self._stored.get(name)
        if known is None and (known := self.look(spark, name)) is not None:
            if (parts := Parts.of(name, known)) is not None:
                self._viewed.opened(spark, parts)
            with self._lock:
                self._stored[name] = known
        return known

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

    def remember(self, form: StoredForm, position: Lsn, before: Stored | None = None) -> None:
        """``before``: the table that was brought there; it may have columns that are kept."""
        known = {} if before is None else before.columns
        columns = {**known, **{column.name: column.spark_type for column in form.columns}}
        properties = {**self._owner.properties, **table_properties(form)}
        with self._lock:
            self._stored[form.name] = Stored(position, columns, properties)

    def forget(self, name: TableName) -> None:
        with self._lock:
            self._stored.pop(name, None)
