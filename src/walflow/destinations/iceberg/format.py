"""Iceberg, as a format of a lake."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from pyspark.sql import functions as sf

from walflow.destinations.iceberg.bridge import Bridge, open_bridge
from walflow.destinations.iceberg.columnar import ColumnarTables
from walflow.destinations.iceberg.maintenance import (
    compact,
    expire,
    read_versions,
    remove_orphans,
    version_at,
)
from walflow.destinations.iceberg.tables import (
    FORMAT_VERSION,
    WITH_VECTORS,
    all_properties,
    alter_table,
    catalog_conf,
    count_rows,
    create_table,
    drop_namespace,
    drop_table,
    has_namespace,
    look_at_table,
    make_namespace,
    owned_tables,
    rename_table,
    stamped,
    table_identifier,
    version_of_table,
)
from walflow.destinations.lake.format import (
    ColumnChanges,
    Compaction,
    Constant,
    RowPlaces,
    Stored,
    Version,
)
from walflow.destinations.lake.owner import Owner, Stamp
from walflow.destinations.lake.table_schema import LakeTableSchema
from walflow.model import Lsn, TableName
from walflow.spark.names import TARGET, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["IcebergFormat"]


_logger = structlog.get_logger(__name__)

_READING = {
    # Iceberg's vectorized reader makes an allocator of Arrow for each file, and never closes it: in
    # the end a JVM that reads for weeks has no memory left.
    "spark.sql.iceberg.vectorization.enabled": "false",
}


class IcebergFormat:
    """Tables ``lake.<schema>.<table>`` of a catalog; see LakeFormat.

    The quick ways go through a bridge to the JVM. Where there is none (Spark Connect), SQL does
    the same.
    """

    name = "iceberg"
    expires_beside = True
    places = RowPlaces(f"{TARGET}._file", f"{TARGET}._pos")

    def __init__(
        self,
        warehouse: str,
        options: Mapping[str, str] | None = None,
        *,
        version: int = WITH_VECTORS,
    ) -> None:
        """``options`` name another kind of catalog than folders, or its details; ``version``: of
        Iceberg's format, for tables that are made."""
        self._version = version
        self._warned: set[TableName] = set()
        self.session_conf = {**catalog_conf(warehouse, options or {}), **_READING}
        self._opening = threading.Lock()
        self._bridges: list[Bridge | None] = []
        self._failure: Exception | None = None

    def opened(self, spark: SparkSession) -> None:
        self._bridge(spark)

    def warm_copy(self, folder: str) -> IcebergFormat:
        return IcebergFormat(folder, version=self._version)

    def identifier(self, name: TableName) -> str:
        return table_identifier(name)

    def make_namespace(self, spark: SparkSession, name: TableName) -> None:
        make_namespace(spark, name)

    def has_namespace(self, spark: SparkSession, name: TableName) -> bool:
        return has_namespace(spark, name)

    def drop_namespace(self, spark: SparkSession, name: TableName) -> None:
        drop_namespace(spark, name)

    def look(self, spark: SparkSession, name: TableName) -> Stored | None:
        bridge = self._bridge(spark)
        stored = look_at_table(spark, name) if bridge is None else bridge.look(name)
        if stored is not None and (version := _version_of(stored)) > self._version:
            self._tell_of_version(name, version)
        return stored

    def version(self, spark: SparkSession, name: TableName) -> str | None:
        bridge = self._bridge(spark)
        return version_of_table(spark, name) if bridge is None else bridge.version(name)

    def check_names(self, name: TableName, columns: Collection[str]) -> None:
        """Any names will do."""

    def create(self, spark: SparkSession, lake_schema: LakeTableSchema, owner: Owner) -> None:
        create_table(spark, lake_schema, owner, self._version)

    def replace(self, rows: DataFrame, lake_schema: LakeTableSchema, stamp: Stamp) -> None:
        """(No column is NOT NULL then: Spark cannot know that of rows that it has read.)"""
        stored = self.look(rows.sparkSession, lake_schema.name)
        # Iceberg leads no table back to an older version of its format.
        version = max(self._version, 0 if stored is None else _version_of(stored))
        writer = rows.writeTo(table_identifier(lake_schema.name))
        for name, value in all_properties(lake_schema, stamp.owner, version).items():
            writer = writer.tableProperty(name, value)
        with stamped(rows.sparkSession, stamp):
            writer.using("iceberg").createOrReplace()

    def adopt(
        self,
        spark: SparkSession,
        lake_schema: LakeTableSchema,
        files: Sequence[Path],
        constants: Mapping[str, Constant],
        stamp: Stamp,
    ) -> bool:
        bridge = self._bridge(spark)
        return bridge is not None and bridge.adopt(lake_schema, files, constants, stamp)

    def stamped(self, spark: SparkSession, stamp: Stamp) -> AbstractContextManager[None]:
        return stamped(spark, stamp)

    def append(self, rows: DataFrame, name: TableName) -> None:
        rows.writeTo(table_identifier(name)).append()

    def columnar(self, spark: SparkSession) -> ColumnarTables | None:
        bridge = self._bridge(spark)
        return None if bridge is None else bridge.columnar

    def overwrite(self, rows: DataFrame, name: TableName) -> None:
        rows.writeTo(table_identifier(name)).overwrite(sf.lit(True))

    def touch(self, spark: SparkSession, name: TableName) -> None:
        identifier = table_identifier(name)
        spark.sql(f"INSERT INTO {identifier} SELECT * FROM {identifier} WHERE false")

    def add_column(self, spark: SparkSession, name: TableName, column: str, type: str) -> None:
        spark.sql(f"ALTER TABLE {table_identifier(name)} ADD COLUMN {quoted(column)} {type}")

    def change_columns(self, spark: SparkSession, name: TableName, changes: ColumnChanges) -> bool:
        bridge = self._bridge(spark)
        if bridge is None:
            return False
        bridge.change_columns(name, changes)
        return True

    def alter(self, spark: SparkSession, name: TableName, *clauses: str) -> None:
        """(With each column that is added or renamed, Iceberg changes by which names columns are
        found in files that were adopted, and would find others.)"""
        alter_table(spark, name, clauses)

    def rename(self, spark: SparkSession, name: TableName, new: TableName) -> bool:
        done = rename_table(spark, name, new)
        if done and (bridge := self._bridge(spark)) is not None:
            bridge.forget(name)
        return done

    def rows(self, spark: SparkSession, name: TableName) -> int:
        return count_rows(spark, name)

    def drop(self, spark: SparkSession, name: TableName) -> None:
        drop_table(spark, name)
        if (bridge := self._bridge(spark)) is not None:
            bridge.forget(name)

    def owned_tables(self, spark: SparkSession, owner: Owner) -> list[TableName]:
        return owned_tables(spark, owner)

    def as_of(self, name: TableName, version: int) -> str:
        return f"{table_identifier(name)} VERSION AS OF {version}"

    def versions(self, spark: SparkSession, name: TableName) -> list[Version]:
        bridge = self._bridge(spark)
        return read_versions(spark, name) if bridge is None else bridge.versions(name)

    def versions_at(
        self, spark: SparkSession, positions: Mapping[TableName, Lsn]
    ) -> dict[TableName, int]:
        bridge = self._bridge(spark)
        found = {
            name: version_at(read_versions(spark, name), position)
            if bridge is None
            else bridge.version_at(name, position)
            for name, position in positions.items()
        }
        return {name: version for name, version in found.items() if version is not None}

    def compact(self, spark: SparkSession, name: TableName, policy: Compaction) -> bool:
        return compact(spark, name, policy)

    def expire(
        self, spark: SparkSession, name: TableName, versions: Sequence[int], before: datetime
    ) -> None:
        bridge = self._bridge(spark)
        if bridge is None:
            expire(spark, name, versions)
        else:
            bridge.expire(name, versions)

    def remove_orphans(self, spark: SparkSession, name: TableName, before: datetime) -> None:
        remove_orphans(spark, name, before)

    def _tell_of_version(self, name: TableName, version: int) -> None:
        """Once for each table."""
        if name not in self._warned:
            self._warned.add(name)
            _logger.warning(
                "table stays in its format version",
                table=str(name),
                version=version,
                wanted=self._version,
                hint="Iceberg cannot downgrade a table. Stop walflow, drop the table with its "
                "files (DROP TABLE … PURGE), and start again: it is copied again.",
            )

    def _bridge(self, spark: SparkSession) -> Bridge | None:
        """Opened when first asked for: that starts the catalog, which may take long, or fail. Who
        has waited for an attempt that fails need not wait for another one."""
        before = self._failure
        with self._opening:
            if not self._bridges:
                if self._failure is not None and self._failure is not before:
                    raise self._failure
                try:
                    bridge = open_bridge(spark, self.session_conf, self._version)
                except Exception as error:
                    self._failure = error
                    raise
                self._bridges.append(bridge)
            return self._bridges[0]


def _version_of(stored: Stored) -> int:
    return int(stored.properties.get(FORMAT_VERSION, WITH_VECTORS))
