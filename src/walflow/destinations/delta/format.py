"""Delta, as a format of a lake."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from walflow.destinations.delta import maintenance
from walflow.destinations.delta.commits import newest_version
from walflow.destinations.delta.tables import (
    SESSION_CONF,
    Entries,
    all_properties,
    alter_table,
    carrying_on,
    check_names,
    create_table,
    drop_table,
    look_at_table,
    owned_tables,
    rename_table,
    stamped,
    table_folder,
    table_identifier,
)
from walflow.destinations.lake.format import (
    Columnar,
    ColumnChanges,
    Compaction,
    Constant,
    Stored,
    Version,
)
from walflow.destinations.lake.owner import Owner, Stamp
from walflow.destinations.lake.table_schema import LakeTableSchema
from walflow.model import Lsn, TableName
from walflow.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DeltaFormat"]


class DeltaFormat:
    """Tables ``<folder>/<schema>/<table>``; see LakeFormat. All of it is SQL, and so the same on
    Spark Connect; the folder itself is looked through and cleared by this process. A catalog of
    Spark's can know the tables too."""

    name = "delta"
    expires_beside = False
    places = None

    def __init__(self, warehouse: str, catalog: str | None = None) -> None:
        self.session_conf: Mapping[str, str] = SESSION_CONF
        self._warehouse = Path(warehouse)
        self._entries = None if catalog is None else Entries(catalog)

    def opened(self, spark: SparkSession) -> None:
        """There is nothing to open but the catalog that is to know the tables, if there is one."""
        if self._entries is not None:
            self._entries.check(spark)

    def warm_copy(self, folder: str) -> DeltaFormat:
        return DeltaFormat(folder)

    def identifier(self, name: TableName) -> str:
        return table_identifier(self._warehouse, name)

    def make_namespace(self, spark: SparkSession, name: TableName) -> None:
        """It is a folder, which the first table makes."""

    def has_namespace(self, spark: SparkSession, name: TableName) -> bool:
        return self._folder(name).parent.is_dir()

    def drop_namespace(self, spark: SparkSession, name: TableName) -> None:
        # Something else may be in it, or it is gone.
        with contextlib.suppress(OSError):
            self._folder(name).parent.rmdir()

    def look(self, spark: SparkSession, name: TableName) -> Stored | None:
        stored = look_at_table(spark, self._folder(name))
        if stored is not None and stored.position is not None:
            self._enter(spark, name)
        return stored

    def version(self, spark: SparkSession, name: TableName) -> str | None:
        return newest_version(self._folder(name))

    def check_names(self, name: TableName, columns: Collection[str]) -> None:
        check_names(name, columns)

    def create(self, spark: SparkSession, lake_schema: LakeTableSchema, owner: Owner) -> None:
        check_names(lake_schema.name, [column.name for column in lake_schema.columns])
        create_table(spark, self.identifier(lake_schema.name), lake_schema, owner)

    def replace(self, rows: DataFrame, lake_schema: LakeTableSchema, stamp: Stamp) -> None:
        """(No column is NOT NULL then: Spark cannot know that of rows that it has read.)"""
        check_names(lake_schema.name, [column.name for column in lake_schema.columns])
        writer = rows.writeTo(self.identifier(lake_schema.name))
        for name, value in all_properties(lake_schema, stamp.owner).items():
            writer = writer.tableProperty(name, value)
        with stamped(rows.sparkSession, stamp):
            writer.using("delta").createOrReplace()
        self._enter(rows.sparkSession, lake_schema.name)

    def adopt(
        self,
        spark: SparkSession,
        lake_schema: LakeTableSchema,
        files: Sequence[Path],
        constants: Mapping[str, Constant],
        stamp: Stamp,
    ) -> bool:
        """Never: CONVERT TO DELTA makes new tables only, and says no position."""
        return False

    def stamped(self, spark: SparkSession, stamp: Stamp) -> AbstractContextManager[None]:
        return stamped(spark, stamp)

    def append(self, rows: DataFrame, name: TableName) -> None:
        rows.writeTo(self.identifier(name)).append()

    def columnar(self, spark: SparkSession) -> Columnar | None:
        return None

    def overwrite(self, rows: DataFrame, name: TableName) -> None:
        rows.writeTo(self.identifier(name)).overwrite(sf.lit(True))

    def touch(self, spark: SparkSession, name: TableName) -> None:
        identifier = self.identifier(name)
        spark.sql(f"INSERT INTO {identifier} SELECT * FROM {identifier} WHERE false")

    def add_column(self, spark: SparkSession, name: TableName, column: str, type: str) -> None:
        identifier = self.identifier(name)
        check_names(name, [*spark.table(identifier).columns, column])
        with carrying_on(spark, self._folder(name)):
            spark.sql(f"ALTER TABLE {identifier} ADD COLUMN {quoted(column)} {type}")

    def change_columns(self, spark: SparkSession, name: TableName, changes: ColumnChanges) -> bool:
        """Never: by SQL each change is a commit."""
        return False

    def alter(self, spark: SparkSession, name: TableName, *clauses: str) -> None:
        alter_table(spark, self.identifier(name), clauses)

    def rename(self, spark: SparkSession, name: TableName, new: TableName) -> bool:
        self._remove(spark, name)
        return rename_table(self._folder(name), self._folder(new))

    def rows(self, spark: SparkSession, name: TableName) -> int:
        """(Delta counts them in its list of files.)"""
        return spark.table(self.identifier(name)).count()

    def drop(self, spark: SparkSession, name: TableName) -> None:
        self._remove(spark, name)
        drop_table(self._folder(name))

    def owned_tables(self, spark: SparkSession, owner: Owner) -> list[TableName]:
        return owned_tables(spark, self._warehouse, owner)

    def as_of(self, name: TableName, version: int) -> str:
        return f"{self.identifier(name)} VERSION AS OF {version}"

    def versions(self, spark: SparkSession, name: TableName) -> list[Version]:
        return maintenance.versions(self._folder(name))

    def versions_at(
        self, spark: SparkSession, positions: Mapping[TableName, Lsn]
    ) -> dict[TableName, int]:
        found = {
            name: maintenance.version_at(self._folder(name), at) for name, at in positions.items()
        }
        return {name: version for name, version in found.items() if version is not None}

    def compact(self, spark: SparkSession, name: TableName, policy: Compaction) -> bool:
        return maintenance.compact(spark, self._folder(name), policy)

    def expire(
        self, spark: SparkSession, name: TableName, versions: Sequence[int], before: datetime
    ) -> None:
        maintenance.expire(spark, self._folder(name), versions)

    def remove_orphans(self, spark: SparkSession, name: TableName, before: datetime) -> None:
        maintenance.remove_orphans(spark, self._folder(name), before)

    def _enter(self, spark: SparkSession, name: TableName) -> None:
        if self._entries is not None:
            self._entries.enter(spark, name, self._folder(name))

    def _remove(self, spark: SparkSession, name: TableName) -> None:
        if self._entries is not None:
            self._entries.remove(spark, name)

    def _folder(self, name: TableName) -> Path:
        return table_folder(self._warehouse, name)
