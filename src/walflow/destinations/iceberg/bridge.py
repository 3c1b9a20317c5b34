"""Iceberg's own API, through the bridge to the JVM: what takes SQL several queries, in one call.

There is no bridge through Spark Connect; what is here can be done by SQL too, only slower.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pyspark.sql.types import StructType

from walflow.destinations.iceberg.tables import CATALOG, all_properties, folder_names
from walflow.destinations.lake.format import Constant, Stored
from walflow.destinations.lake.forms import EXACT, StoredForm
from walflow.destinations.lake.owner import POSITION, Stamp
from walflow.destinations.lake.sessions import lake_session
from walflow.model import Lsn, TableName
from walflow.spark.connect import is_remote_session
from walflow.spark.net import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Bridge", "open_bridge"]

_FOOTER_READERS = 4


def open_bridge(spark: SparkSession, conf: Mapping[str, str]) -> Bridge | None:
    """The bridge to the catalog that the conf describes; None where there is none."""
    return None if is_remote_session(spark) else Bridge(lake_session(spark, conf))


class Bridge:
    """The catalog as an object of Iceberg's. Calls may come from several threads."""

    def __init__(self, spark: SparkSession) -> None:
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
        self._mapper = jvm.com.fasterxml.jackson.databind.ObjectMapper()
        self._literals = iceberg.expressions.Expressions

    def look(self, name: TableName) -> Stored | None:
        """See LakeFormat.look."""
        table = self._load(name)
        if table is None:
            return None
        # As JSON: each value that is asked for by itself is a call to the JVM.
        form = StructType.fromJson(json.loads(self._schemas.convert(table.schema()).json()))
        columns = {field.name: field.dataType.simpleString() for field in form.fields}
        properties = json.loads(self._mapper.writeValueAsString(table.properties()))
        return Stored(_position(table), columns, properties)

    def adopt(
        self,
        form: StoredForm,
        files: Sequence[Path],
        constants: Mapping[str, Constant],
        stamp: Stamp,
    ) -> bool:
        """See LakeFormat.adopt.

        The files get a second name (a hard link) in the table's folder, with what they hold as it
        is; False if they cannot. What the former snapshots consist of stays for their readers,
        until the snapshots expire.
        """
        former = self._load(form.name)
        # Our columns are not in the files: they come later, with what they are to be read as.
        ours = {column.name: column.spark_type for column in form.ours}
        in_files = ", ".join(
            f"{quoted(c.name)} {c.spark_type}{'' if c.nullable else ' NOT NULL'}"
            for c in form.columns
            if c.name not in ours
        )
        schema = self._schemas.convert(self._struct_type.fromDDL(in_files))
        builder = self._catalog.buildTable(self._identifier(form.name), schema)
        builder = builder.withProperties(self._java_map(all_properties(form, stamp.owner)))
        if former is None:
            transaction = builder.createTransaction()
        else:
            transaction = builder.replaceTransaction()
        folder = None
        if files and (folder := _link(files, transaction.table().location())) is None:
            return False
        try:
            if ours:
                self._add_columns(transaction, ours, constants)
            data = [] if folder is None else self._data_files(folder, transaction, former)
            append = transaction.newAppend()
            for file in data:
                append.appendFile(file)
            for key, value in stamp.properties.items():
                append.set(key, value)
            append.commit()
        except BaseException:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        # If this fails nobody knows whether it has happened: the links stay where they are.
        transaction.commitTransaction()
        return True

    def _add_columns(
        self, transaction: Any, columns: Mapping[str, str], values: Mapping[str, Constant]
    ) -> None:
        """Columns that rows of files which lack them have these values in."""
        update = transaction.updateSchema()
        for name, spark_type in columns.items():
            ddl = f"{quoted(name)} {spark_type}"
            kind = self._schemas.convert(self._struct_type.fromDDL(ddl)).columns()[0].type()
            value = values.get(name)
            if value is None:
                update = update.addColumn(name, kind)
            else:
                update = update.addColumn(name, kind, self._literal(value).to(kind))
        update.commit()

    def _literal(self, value: Constant) -> Any:
        if isinstance(value, datetime):
            return self._literals.lit(value.isoformat(timespec="microseconds"))
        if isinstance(value, int) and not isinstance(value, bool):
            return self._literals.lit(self._jvm.java.lang.Long.valueOf(value))
        return self._literals.lit(value)

    def _java_map(self, entries: Mapping[str, str]) -> Any:
        made = self._jvm.java.util.HashMap()
        for name, value in entries.items():
            made.put(name, value)
        return made

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
