"""Iceberg tables of ours: their names, schemas, owners and positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pyspark.errors import UnsupportedOperationException

from walflow.destinations.lake.format import Stored
from walflow.destinations.lake.names import folder_names, name_of_folder
from walflow.destinations.lake.owner import Owner, Place, Stamp, position_of
from walflow.destinations.lake.properties import is_table_owned, properties_of
from walflow.destinations.lake.table_schema import LakeTableSchema, table_properties
from walflow.destinations.lake.written_back import is_undone
from walflow.model import TableName
from walflow.spark.names import literal, quoted

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

__all__ = [
    "ADOPTED_NAMES",
    "CATALOG",
    "EXTENSIONS",
    "FORMAT_VERSION",
    "NAME_MAPPING",
    "WITH_VECTORS",
    "all_properties",
    "alter_table",
    "catalog_conf",
    "count_rows",
    "create_table",
    "drop_namespace",
    "drop_table",
    "has_namespace",
    "look_at_table",
    "make_namespace",
    "owned_tables",
    "rename_table",
    "stamped",
    "table_identifier",
    "version_of_table",
]

CATALOG = "lake"
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

NAME_MAPPING = "schema.name-mapping.default"
"""By which names columns are found in files that were adopted: Iceberg's property."""
ADOPTED_NAMES = "walflow.adopted-names"
"""The same as it was when they were: what becomes of the table's columns later does not change
what those files have."""

FORMAT_VERSION = "format-version"
WITH_VECTORS = 3
"""The version of Iceberg's format from which on there are deletion vectors, and columns that rows
from before have a value in."""

_PROPERTIES = {
    # An update marks the old row and appends the new one.
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    # A batch is small: a shuffle before the write costs more than tidy files are worth.
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
    "write.delete.distribution-mode": "none",
    # Nor is a sort: deleted rows are listed file by file.
    "write.spark.fanout.enabled": "true",
    "write.target-file-size-bytes": str(128 << 20),
    # Each commit writes a new metadata file; without this all of them stay.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # A commit that finds so many lists of files makes few of them: a reader reads all of them.
    "commit.manifest.min-count-to-merge": "20",
}

_REST_TIMEOUTS = {
    "rest.client.connection-timeout-ms": "60000",
    "rest.client.socket-timeout-ms": "60000",
}
"""Iceberg has none: who waits for a server that hangs would wait for ever, and not end either."""

_SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."


def catalog_conf(warehouse: str, options: Mapping[str, str]) -> dict[str, str]:
    """Spark settings of our catalog; options name another kind of catalog, or its details."""
    prefix = f"spark.sql.catalog.{CATALOG}"
    # Iceberg refuses a catalog that has a class and a type.
    kind = {} if "catalog-impl" in options else {f"{prefix}.type": "hadoop"}
    timeouts = _REST_TIMEOUTS if _is_rest(options) else {}
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        **kind,
        f"{prefix}.warehouse": warehouse,
        # Each session would cache tables for itself, and not see what another one commits.
        f"{prefix}.cache-enabled": "false",
        # A table that gets another name stays in its folder. If another one of its former name
        # came into the same, each would take the other's files for litter.
        f"{prefix}.unique-table-location": "true",
        **{f"{prefix}.{name}": value for name, value in {**timeouts, **options}.items()},
    }


def _is_rest(options: Mapping[str, str]) -> bool:
    kind = options.get("type", "").lower(), options.get("catalog-impl", "").rpartition(".")[2]
    return "rest" in kind or "RESTCatalog" in kind


def table_identifier(name: TableName) -> str:
    """The table's name in Spark SQL."""
    schema, table = folder_names(name)
    return f"{CATALOG}.{quoted(schema)}.{quoted(table)}"


def all_properties(lake_schema: LakeTableSchema, owner: Owner, version: int) -> dict[str, str]:
    """Of a table that is made, in this version of Iceberg's format."""
    return {
        FORMAT_VERSION: str(version),
        **_PROPERTIES,
        **owner.properties,
        **table_properties(lake_schema),
    }


def make_namespace(spark: SparkSession, name: TableName) -> None:
    """Make the namespace that the table is to be in, unless it is there: some catalogs insist."""
    try:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{quoted(folder_names(name)[0])}")
    except Exception:
        # Of several who make it at once, JDBC's catalog fails all but one.
        if not has_namespace(spark, name):
            raise


def has_namespace(spark: SparkSession, name: TableName) -> bool:
    return spark.catalog.databaseExists(f"{CATALOG}.{quoted(folder_names(name)[0])}")


def drop_namespace(spark: SparkSession, name: TableName) -> None:
    """Remove the namespace that the table was in. It stays if something is in it, or if we may not
    remove it, which is no reason to fail: it is empty, and the next table needs it again."""
    with suppress(Exception):
        spark.sql(f"DROP NAMESPACE IF EXISTS {CATALOG}.{quoted(folder_names(name)[0])}")


def create_table(
    spark: SparkSession, lake_schema: LakeTableSchema, owner: Owner, version: int
) -> None:
    """Make the empty table."""
    properties = ", ".join(
        f"{literal(name)} = {literal(value)}"
        for name, value in all_properties(lake_schema, owner, version).items()
    )
    spark.sql(
        f"CREATE TABLE {table_identifier(lake_schema.name)} ({lake_schema.ddl})"
        f" USING iceberg TBLPROPERTIES ({properties})"
    )


def alter_table(spark: SparkSession, name: TableName, clauses: Sequence[str]) -> None:
    """See LakeFormat.alter. Between two commits, readers may find other columns in files that were
    adopted (by a bridge, which does it better)."""
    identifier = table_identifier(name)
    properties = properties_of(spark, identifier)
    adopted, present = properties.get(ADOPTED_NAMES), properties.get(NAME_MAPPING)
    alter = f"ALTER TABLE {identifier}"
    set_right = f"{alter} SET TBLPROPERTIES ({literal(NAME_MAPPING)} = {literal(adopted or '')})"
    if adopted is not None and present != adopted:
        spark.sql(set_right)
    for clause in clauses:
        spark.sql(f"{alter} {clause}")
        if adopted is not None:
            spark.sql(set_right)


def rename_table(spark: SparkSession, name: TableName, new: TableName) -> bool:
    """See LakeFormat.rename. Not if its folder has its name: that is so where there is no catalog
    but folders, and where a REST server chooses such ones. The next table of that name would come
    into the same folder, and each would take the other's files for litter."""
    if _folder(spark, name) == folder_names(name)[1]:
        return False
    if new.schema != name.schema:
        make_namespace(spark, new)
    # Without the catalog's name, which only Hive's catalog does not take for a namespace.
    new_name = ".".join(map(quoted, folder_names(new)))
    try:
        spark.sql(f"ALTER TABLE {table_identifier(name)} RENAME TO {new_name}")
    except UnsupportedOperationException:
        return False
    except Exception as error:
        if "UnsupportedOperationException" in str(error):
            return False
        raise
    return True


def _folder(spark: SparkSession, name: TableName) -> str:
    """The last part of where the table is."""
    described = spark.sql(f"DESCRIBE TABLE EXTENDED {table_identifier(name)}").collect()
    # The columns come first, and one may be called so.
    location: str = [row["data_type"] for row in described if row["col_name"] == "Location"][-1]
    return location.rstrip("/").rpartition("/")[2]


def drop_table(spark: SparkSession, name: TableName) -> None:
    spark.sql(f"DROP TABLE IF EXISTS {table_identifier(name)} PURGE")


def owned_tables(spark: SparkSession, owner: Owner) -> list[TableName]:
    """The catalog's tables that are the owner's."""
    found = []
    for namespace in _namespaces(spark):
        if (schema := name_of_folder(namespace)) is None:
            continue
        for row in spark.sql(f"SHOW TABLES IN {CATALOG}.{quoted(namespace)}").collect():
            if (name := name_of_folder(row["tableName"])) is None:
                continue
            table = TableName(schema, name)
            if is_table_owned(spark, table_identifier(table), owner):
                found.append(table)
    return found


def _namespaces(spark: SparkSession) -> list[str]:
    try:
        rows = spark.sql(f"SHOW NAMESPACES IN {CATALOG}").collect()
    except Exception as error:
        # A warehouse that no table was ever written to has no folder yet.
        if "NoSuchNamespaceException" in str(error):
            return []
        raise
    # Spark puts in quotes what needs them.
    return [shown[1:-1].replace("``", "`") if shown.startswith("`") else shown for (shown,) in rows]


def look_at_table(spark: SparkSession, name: TableName) -> Stored | None:
    """By SQL alone; None when there is none."""
    identifier = table_identifier(name)
    # Not the name itself, which may be that of somebody's view.
    if not spark.catalog.tableExists(f"{identifier}.refs"):
        return None
    columns = {f.name: f.dataType.simpleString() for f in spark.table(identifier).schema.fields}
    # The version first: all else may only be newer.
    version = _current(spark, identifier)
    snapshots = _snapshots(spark, identifier)
    ancestors = list(_ancestors(snapshots, version))
    position = position_of(_places(ancestors))
    properties = properties_of(spark, identifier)
    undone = snapshots.keys() - {ancestor["snapshot_id"] for ancestor in ancestors}
    if position is not None and is_undone(
        properties, position, lambda commit: commit not in undone
    ):
        position = None
    return Stored(position, columns, properties, None if version is None else str(version))


def version_of_table(spark: SparkSession, name: TableName) -> str | None:
    """See LakeFormat.version."""
    identifier = table_identifier(name)
    if not spark.catalog.tableExists(f"{identifier}.refs"):
        return None
    version = _current(spark, identifier)
    return None if version is None else str(version)


def _current(spark: SparkSession, identifier: str) -> int | None:
    refs = spark.sql(f"SELECT snapshot_id FROM {identifier}.refs WHERE name = 'main'").collect()
    return refs[0]["snapshot_id"] if refs else None


def _snapshots(spark: SparkSession, identifier: str) -> dict[int, Row]:
    query = f"SELECT snapshot_id, parent_id, summary FROM {identifier}.snapshots"
    return {row["snapshot_id"]: row for row in spark.sql(query).collect()}


def _ancestors(snapshots: Mapping[int, Row], version: int | None) -> Iterator[Row]:
    """The version and those before it, the newest first."""
    while version is not None and (snapshot := snapshots.get(version)) is not None:
        yield snapshot
        version = snapshot["parent_id"]


def _places(ancestors: Iterable[Row]) -> Iterator[Place]:
    """Of those that have one: maintenance commits without."""
    for snapshot in ancestors:
        if (place := Place.of(snapshot["summary"])) is not None:
            yield place


@contextmanager
def stamped(spark: SparkSession, stamp: Stamp) -> Iterator[None]:
    """What this session commits inside carries the stamp in its snapshot's summary."""
    summary = stamp.properties
    for name, value in summary.items():
        spark.conf.set(_SNAPSHOT_PROPERTY + name, value)
    try:
        yield
    finally:
        for name in summary:
            spark.conf.unset(_SNAPSHOT_PROPERTY + name)


def count_rows(spark: SparkSession, name: TableName) -> int:
    """As the newest snapshot says: with rows that only a deletion vector takes out."""
    row = spark.sql(
        f"SELECT summary['total-records'] FROM {table_identifier(name)}.snapshots"
        " ORDER BY committed_at DESC LIMIT 1"
    ).first()
    return int(row[0] or 0) if row is not None else 0
