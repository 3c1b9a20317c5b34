"""Iceberg's own API, through the bridge to the JVM: what takes SQL several queries, in one call.

There is no bridge through Spark Connect; what is here can be done by SQL too, only slower.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from walflow.destinations.iceberg.columnar import (
    ColumnarTables,
    IcebergTable,
    copied_rows,
    newest_position,
)
from walflow.destinations.iceberg.columnar.file_changes import path_here
from walflow.destinations.iceberg.locations import local_path
from walflow.destinations.iceberg.tables import (
    ADOPTED_NAMES,
    CATALOG,
    FORMAT_VERSION,
    NAME_MAPPING,
    WITH_VECTORS,
    all_properties,
)
from walflow.destinations.lake.format import ColumnChanges, Constant, NewColumn, Stored, Version
from walflow.destinations.lake.names import folder_names
from walflow.destinations.lake.owner import POSITION, Stamp
from walflow.destinations.lake.sessions import lake_session
from walflow.destinations.lake.table_schema import EXACT, LakeTableSchema
from walflow.destinations.lake.written_back import is_undone
from walflow.model import Lsn, TableName
from walflow.spark.connect import is_remote_session
from walflow.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Bridge", "open_bridge"]

_Field = dict[str, Any]
"""Of a name mapping: ``field-id``, ``names``, and inner ``fields``."""


def open_bridge(
    spark: SparkSession, conf: Mapping[str, str], version: int = WITH_VECTORS
) -> Bridge | None:
    """The bridge to the catalog that the conf describes; None where there is none. ``version``: of
    Iceberg's format, for tables that are made."""
    return None if is_remote_session(spark) else Bridge(lake_session(spark, conf), version)


class Bridge:
    """The catalog as an object of Iceberg's. Calls may come from several threads."""

    def __init__(self, spark: SparkSession, version: int = WITH_VECTORS) -> None:
        self._session: Any = spark
        self._version = version
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
        self._snapshot_json = iceberg.SnapshotParser.toJson
        self._mapper = jvm.com.fasterxml.jackson.databind.ObjectMapper()
        self._literals = iceberg.expressions.Expressions
        self.columnar = ColumnarTables(self._open)
        self._seen: dict[TableName, Any] = {}
        """Tables as they were looked at, to be refreshed."""

    def look(self, name: TableName) -> Stored | None:
        """See LakeFormat.look."""
        before, table = self._seen.get(name), self._load(name)
        if table is None:
            self.forget(name)
            return None
        if before is not None and before.uuid() != table.uuid():
            # Refreshing may not show it, see _version.
            self.columnar.forget(name)
        self._seen[name] = table
        # As JSON: each value that is asked for by itself is a call to the JVM.
        lake_schema = StructType.fromJson(json.loads(self._schemas.convert(table.schema()).json()))
        columns = {field.name: field.dataType.simpleString() for field in lake_schema.fields}
        properties = json.loads(self._mapper.writeValueAsString(table.properties()))
        properties[FORMAT_VERSION] = str(_format_version(table))
        position = newest_position(table, self._snapshot_json)
        if position is not None and is_undone(
            properties, position, lambda commit: self._has(table, commit)
        ):
            position = None
        return Stored(position, columns, properties, _version(table))

    def _has(self, table: Any, snapshot: int) -> bool:
        """Whether the snapshot is the table's, or one from before it, as far as is known."""
        if table.snapshot(snapshot) is None:
            return True
        ancestors = self._jvm.org.apache.iceberg.util.SnapshotUtil
        return bool(ancestors.isAncestorOf(table, snapshot))

    def version(self, name: TableName) -> str | None:
        """See LakeFormat.version. (To refresh a table that nobody has changed costs next to
        nothing.)"""
        if (seen := self._seen.get(name)) is not None:
            # If it fails, it is another table now, or none: loaded anew, it tells.
            with contextlib.suppress(Exception):
                seen.refresh()
                return _version(seen)
        return None if (table := self._load(name)) is None else _version(table)

    def forget(self, name: TableName) -> None:
        """There may be no such table any more, or another one."""
        self._seen.pop(name, None)
        self.columnar.forget(name)

    def _open(self, name: TableName) -> IcebergTable:
        """The table, which is there, as it is now."""
        return IcebergTable(self._gateway, self._catalog.loadTable(self._identifier(name)))

    def adopt(
        self,
        lake_schema: LakeTableSchema,
        files: Sequence[Path],
        constants: Mapping[str, Constant],
        stamp: Stamp,
    ) -> bool:
        """See LakeFormat.adopt.

        The files get a second name (a hard link) in the table's folder, with what they hold as it
        is; False if they cannot, or if they have a name that was another column's in files which
        were adopted before: nobody could tell then whose it is. False too where our columns would
        have values that the format's version has no place for. What the former snapshots consist
        of stays for their readers, until the snapshots expire.
        """
        former = self._load(lake_schema.name)
        # Iceberg leads no table back to an older version of its format.
        version = max(self._version, 0 if former is None else _format_version(former))
        # Our columns are not in the files: they come later, with what they are to be read as.
        ours = {column.name: column.spark_type for column in lake_schema.ours}
        if version < WITH_VECTORS and any(constants.get(name) is not None for name in ours):
            return False
        in_files = ", ".join(
            f"{quoted(c.name)} {c.spark_type}{'' if c.nullable else ' NOT NULL'}"
            for c in lake_schema.columns
            if c.name not in ours
        )
        schema = self._schemas.convert(self._struct_type.fromDDL(in_files))
        builder = self._catalog.buildTable(self._identifier(lake_schema.name), schema)
        builder = builder.withProperties(
            self._java_map(all_properties(lake_schema, stamp.owner, version))
        )
        if former is None:
            transaction = builder.createTransaction()
        else:
            transaction = builder.replaceTransaction()
        named = None if former is None else former.properties().get(NAME_MAPPING)
        if files and _is_ambiguous(self._names(transaction.table()), json.loads(named or "[]")):
            return False
        table = IcebergTable(self._gateway, transaction.table())
        if files and not table.is_here:
            return False
        folder: str | None = None
        location: str = transaction.table().location()
        if files and (folder := _link(files, location)) is None:
            return False
        try:
            if ours:
                self._add_columns(transaction, ours, constants)
            if folder is not None:
                self._map_names(transaction, named)
            append = transaction.newAppend()
            for file in [] if folder is None else _data_files(table, folder, files):
                append.appendFile(file)
            for key, value in stamp.properties.items():
                append.set(key, value)
            append.commit()
        except BaseException:
            if folder is not None:
                shutil.rmtree(path_here(folder), ignore_errors=True)
            raise
        # If this fails nobody knows whether it has happened: the links stay where they are.
        transaction.commitTransaction()
        return True

    def change_columns(self, name: TableName, changes: ColumnChanges) -> None:
        """See LakeFormat.change_columns."""
        table = self._load(name)
        adopted = table.properties().get(ADOPTED_NAMES) or table.properties().get(NAME_MAPPING)
        transaction = table.newTransaction()
        update = transaction.updateSchema()
        for column in changes.dropped:
            update = update.deleteColumn(column)
        for column, new in changes.renamed.items():
            update = update.renameColumn(column, new)
        for column, spark_type in changes.widened.items():
            update = update.updateColumn(column, self._type(spark_type))
        for column in changes.nullable:
            update = update.makeColumnOptional(column)
        update.commit()
        added = changes.added
        if _format_version(table) < WITH_VECTORS:
            added = tuple(column for column in added if column.value is None)
        self._add_new(transaction, added)
        properties = transaction.updateProperties()
        if adopted is not None:
            # Iceberg has followed the names, but files that were adopted have theirs.
            properties = properties.set(NAME_MAPPING, adopted)
        for key, value in changes.properties.items():
            properties = properties.set(key, value)
        properties.commit()
        transaction.commitTransaction()

    def _add_new(self, transaction: Any, columns: Sequence[NewColumn]) -> None:
        update = transaction.updateSchema()
        last: dict[str | None, str | None] = {}
        for column in columns:
            kind = self._type(column.spark_type)
            if column.value is None:
                update = update.addColumn(None, column.name, kind)
            elif (value := self._default(column.value, column.spark_type)) is not None:
                update = update.addColumn(None, column.name, kind, value.to(kind))
                # Only rows that are there have it.
                update = update.updateColumnDefault(column.name, None)
            else:
                # What comes after this one comes after the one before it.
                last[column.name] = last.get(column.after, column.after)
                continue
            after = last.get(column.after, column.after)
            if after is None:
                update = update.moveFirst(column.name)
            else:
                update = update.moveAfter(column.name, after)
        update.commit()

    def _default(self, value: object, spark_type: str) -> Any:
        """The value as a literal that is or becomes one of the type; None if there is none."""
        match value:
            case float() if not math.isfinite(value):
                # Iceberg would write it, but not read it again.
                return None
            case Decimal():
                scale = int(spark_type.rstrip(")").rpartition(",")[2])
                return self._literals.lit(f"{value:.{scale}f}")
            case datetime():
                return self._literals.lit(value.isoformat(timespec="microseconds"))
            case date():
                return self._literals.lit(value.isoformat())
            case bool() | int() | float() | str() | bytes():
                return self._literals.lit(value)
        return None

    def _type(self, spark_type: str) -> Any:
        struct = self._struct_type.fromDDL(f"c {spark_type}")
        return self._schemas.convert(struct).columns()[0].type()

    def _names(self, table: Any) -> list[_Field]:
        """The columns' names, as a name mapping."""
        mappings = self._jvm.org.apache.iceberg.mapping
        mapping = mappings.MappingUtil.create(table.schema())
        names: list[_Field] = json.loads(mappings.NameMappingParser.toJson(mapping))
        return names

    def version_at(self, name: TableName, position: Lsn) -> int | None:
        """See LakeFormat.versions_at."""
        table = self._load(name)
        snapshot = None if table is None else table.currentSnapshot()
        found: tuple[Lsn, int] | None = None
        while snapshot is not None:
            stamp = snapshot.summary().get(POSITION)
            at = None if stamp is None else Lsn.parse(stamp)
            if at is not None and found is not None and at != found[0]:
                break
            if at is not None and at <= position:
                found = at, snapshot.snapshotId()
            parent = snapshot.parentId()
            snapshot = None if parent is None else table.snapshot(parent)
        return None if found is None else found[1]

    def versions(self, name: TableName) -> list[Version]:
        """See LakeFormat.versions."""
        current = self._catalog.loadTable(self._identifier(name)).operations().current()
        # As JSON: see look.
        metadata = json.loads(self._jvm.org.apache.iceberg.TableMetadataParser.toJson(current))
        snapshots = sorted(metadata.get("snapshots", []), key=lambda one: one["timestamp-ms"])
        return [
            Version(
                snapshot["snapshot-id"],
                datetime.fromtimestamp(snapshot["timestamp-ms"] / 1000, UTC),
                Lsn.parse(lsn) if (lsn := snapshot["summary"].get(POSITION)) else None,
            )
            for snapshot in snapshots
        ]

    def expire(self, name: TableName, versions: Sequence[int]) -> None:
        """See LakeFormat.expire. No job of Spark's looks for the files, as it does by SQL."""
        # Nothing by age: what is to go is said.
        expiry = self._catalog.loadTable(self._identifier(name)).expireSnapshots()
        expiry = expiry.expireOlderThan(0)
        for version in versions:
            expiry = expiry.expireSnapshotId(version)
        expiry.commit()

    def _add_columns(
        self, transaction: Any, columns: Mapping[str, str], values: Mapping[str, Constant]
    ) -> None:
        """Columns that rows of files which lack them have these values in."""
        update = transaction.updateSchema()
        for name, spark_type in columns.items():
            kind = self._type(spark_type)
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

    def _map_names(self, transaction: Any, named: str | None) -> None:
        """Have the columns of a copy's files found by name; ``named``: by which names those of
        former ones are found."""
        names = self._names(transaction.table())
        mapping = json.dumps(_name_mapping(names, json.loads(named or "[]")))
        properties = transaction.updateProperties()
        properties.set(NAME_MAPPING, mapping).set(ADOPTED_NAMES, mapping).commit()

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


def _version(table: Any) -> str | None:
    snapshot = table.currentSnapshot()
    if snapshot is None:
        return None
    location = table.operations().current().metadataFileLocation()
    path = None if location is None else local_path(location)
    if path is None:
        return str(snapshot.snapshotId())
    # Folders number their versions: another table in its place may have as many, and a table that
    # is refreshed does not see that it is another one.
    try:
        file = path.stat()
    except FileNotFoundError:
        # A path without a scheme may be one of another file system.
        return str(snapshot.snapshotId())
    return f"{snapshot.snapshotId()}-{file.st_ino}-{file.st_mtime_ns}"


def _format_version(table: Any) -> int:
    """Of Iceberg's format."""
    version: int = table.operations().current().formatVersion()
    return version


def _name_mapping(names: list[_Field], before: list[_Field]) -> list[_Field]:
    """By which names the files' columns are found, as Iceberg's JSON has it: the files have no
    field ids.

    They have the table's names, but call the overflow texts ``_exact``. Readers of former snapshots
    still need the columns that the table had before.
    """
    fields = {field["field-id"]: field for field in names}
    for field in fields.values():
        if field["names"] == [EXACT]:
            field["names"].append("_exact")
    taken = {name for field in names for name in field["names"]}
    for field in before:
        free = [name for name in field["names"] if name not in taken]
        if field["field-id"] in fields:
            fields[field["field-id"]]["names"] += free
        elif free:
            fields[field["field-id"]] = {**field, "names": free}
    return list(fields.values())


def _is_ambiguous(names: list[_Field], before: list[_Field]) -> bool:
    """Whether one name is that of a column now and was that of another before."""
    whose = {name: field["field-id"] for field in names for name in field["names"]}
    return any(
        whose.get(name, field["field-id"]) != field["field-id"]
        for field in before
        for name in field["names"]
    )


def _data_files(table: IcebergTable, folder: str, files: Sequence[Path]) -> Iterator[Any]:
    """The copy's files as Iceberg knows them, with the bounds of their columns."""
    fields = table.fields
    for file in files:
        location = f"{folder}/{file.name}"
        yield table.data_file(copied_rows(location, path_here(location), fields))


def _link(files: Sequence[Path], location: str) -> str | None:
    """Put the files into the table's folder too, and say where; None if that cannot be."""
    # A folder of its own: whatever else lies there is not the copy's.
    folder = f"{location.rstrip('/')}/data/copy-{uuid.uuid4()}"
    if (path := local_path(folder)) is None:
        return None
    try:
        path.mkdir(parents=True)
        for file in files:
            os.link(file, path / file.name)
    except OSError:
        # Another file system, or one without links.
        shutil.rmtree(path, ignore_errors=True)
        return None
    return folder
