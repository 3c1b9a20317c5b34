"""Iceberg's own API, through the bridge to the JVM: what takes SQL several queries, in one call.

There is no bridge through Spark Connect; what is here can be done by SQL too, only slower.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from walflow.destinations.iceberg.sessions import catalog_session
from walflow.destinations.iceberg.tables import (
    CATALOG,
    EXACT,
    POSITION,
    Owner,
    Progress,
    check_owner,
    columns_ddl,
    folder_names,
    summary_of,
    table_properties,
)
from walflow.model import Lsn, TableName, TableSchema
from walflow.spark.connect import is_remote_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Bridge", "open_bridge"]

_FOOTER_READERS = 4


def open_bridge(spark: SparkSession, conf: Mapping[str, str], owner: Owner) -> Bridge | None:
    """The bridge to the catalog that the conf describes; None where there is none."""
    return None if is_remote_session(spark) else Bridge(catalog_session(spark, conf), owner)


class Bridge:
    """The catalog as an object of Iceberg's. Calls may come from several threads."""

    def __init__(self, spark: SparkSession, owner: Owner) -> None:
        self._owner = owner
        self._session: Any = spark
        # Makes the session load the catalog; asked by the API, it would look in another's conf.
        spark.sql(f"USE {CATALOG}")
        jvm: Any = self._session._jvm
        iceberg = jvm.org.apache.iceberg
        self._catalog = iceberg.spark.Spark3Util.loadIcebergCatalog(
            self._session._jsparkSession, CATALOG
        )
        # Names of Java are looked up in the JVM each time: once will do.
        self._jvm: Any = jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._string = jvm.java.lang.String
        self._identifiers = iceberg.catalog.TableIdentifier
        self._struct_type = jvm.org.apache.spark.sql.types.StructType
        self._schemas = iceberg.spark.SparkSchemaUtil
        self._properties = jvm.java.util.HashMap()
        for name, value in table_properties(owner).items():
            self._properties.put(name, value)

    def read_progress(self, name: TableName) -> Progress | None:
        """See tables.read_progress."""
        table = self._load(name)
        if table is None:
            return None
        check_owner(name, self._owner, table.properties())
        return Progress(_position(table), table.schema().findField(EXACT) is not None)

    def replace_table(
        self, table: TableSchema, files: Sequence[Path], position: Lsn, exact: bool
    ) -> bool:
        """Make the table of the files, whatever it was before, in one commit with the position.

        The files get a second name (a hard link) in the table's folder, with what they hold as it
        is; False if they cannot, and then nothing has happened. What the former snapshots consist
        of stays for their readers, until the snapshots expire.
        """
        former = self._load(table.name)
        if former is not None:
            check_owner(table.name, self._owner, former.properties())
        schema = self._schemas.convert(self._struct_type.fromDDL(columns_ddl(table, exact)))
        builder = self._catalog.buildTable(self._identifier(table.name), schema)
        builder = builder.withProperties(self._properties)
        if former is None:
            transaction = builder.createTransaction()
        else:
            transaction = builder.replaceTransaction()
        folder = None
        if files and (folder := _link(files, transaction.table().location())) is None:
            return False
        try:
            data = [] if folder is None else self._data_files(folder, transaction, former)
            append = transaction.newAppend()
            for file in data:
                append.appendFile(file)
            for key, value in summary_of(self._owner, position).items():
                append.set(key, value)
            append.commit()
        except BaseException:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        # If this fails nobody knows whether it has happened: the links stay where they are.
        transaction.commitTransaction()
        return True

    def _data_files(self, folder: Path, transaction: Any, former: Any) -> Any:
        """The folder's Parquet files as Iceberg knows them, with the bounds of their columns."""
        iceberg = self._jvm.org.apache.iceberg
        table = transaction.table()
        named = iceberg.TableProperties.DEFAULT_NAME_MAPPING
        before = None if former is None else former.properties().get(named)
        mapping = _name_mapping(iceberg.mapping, table.schema(), before)
        transaction.updateProperties().set(named, mapping).commit()
        return iceberg.data.TableMigrationUtil.listPartition(
            self._jvm.java.util.HashMap(),
            str(folder),
            "parquet",
            table.spec(),
            self._session._jsparkSession.sessionState().newHadoopConf(),
            iceberg.MetricsConfig.forTable(table),
            iceberg.mapping.NameMappingParser.fromJson(mapping),
            _FOOTER_READERS,
        )

    def _load(self, name: TableName) -> Any:
        """The table; None when there is none."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        try:
            return self._catalog.loadTable(self._identifier(name))
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() == "NoSuchTableException":
                return None
            raise

    def _identifier(self, name: TableName) -> Any:
        parts = self._gateway.new_array(self._string, 2)
        parts[0], parts[1] = folder_names(name)
        return self._identifiers.of(parts)


def _position(table: Any) -> Lsn | None:
    """Of the newest ancestor of main that has one: maintenance commits without it."""
    snapshot = table.currentSnapshot()
    while snapshot is not None:
        if (lsn := snapshot.summary().get(POSITION)) is not None:
            return Lsn.parse(lsn)
        parent = snapshot.parentId()
        snapshot = None if parent is None else table.snapshot(parent)
    return None


def _name_mapping(mappings: Any, schema: Any, before: str | None) -> str:
    """By which names the files' columns are found, as JSON: the files have no field ids.

    They have the table's names, but for the exact texts, which they call ``_exact``. Columns that
    the table had before are still wanted by readers of former snapshots.
    """
    fields = json.loads(mappings.NameMappingParser.toJson(mappings.MappingUtil.create(schema)))
    for field in fields:
        if field["names"] == [EXACT]:
            field["names"].append("_exact")
    taken = {name for field in fields for name in field["names"]}
    for field in json.loads(before or "[]"):
        if taken.isdisjoint(field["names"]):
            fields.append(field)
    return json.dumps(fields)


def _link(files: Sequence[Path], location: str) -> Path | None:
    """Put the files into the table's folder too, and say where; None if that cannot be."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file") or parts.netloc:
        return None
    path = Path(unquote(parts.path) if parts.scheme else location)
    # A folder of its own: whatever else lies there is not the copy's.
    folder = path / "data" / f"copy-{uuid.uuid4()}"
    try:
        folder.mkdir(parents=True)
        for file in files:
            os.link(file, folder / file.name)
    except OSError:
        # Another file system, or one without links.
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return folder
