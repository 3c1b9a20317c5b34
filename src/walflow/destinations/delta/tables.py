"""Delta tables of ours: their places, schemas, owners and positions, and their catalog entries.

The folder is what counts. A catalog (such as a Hive metastore that ``spark.conf`` names) only adds
a name to it. If a crash leaves an entry out, it is added when the table is next used.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from walflow.destinations.delta.commits import (
    LOG,
    carried_on,
    is_table,
    newest_position,
    newest_version,
)
from walflow.destinations.lake.format import Stored
from walflow.destinations.lake.names import folder_names, name_of_folder
from walflow.destinations.lake.owner import Owner, Stamp
from walflow.destinations.lake.properties import is_table_owned, properties_of
from walflow.destinations.lake.table_schema import LakeTableSchema, table_properties
from walflow.errors import DestinationError
from walflow.evolution import NotFollowed
from walflow.model import TableName
from walflow.spark.names import literal, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "EXTENSIONS",
    "SESSION_CONF",
    "Entries",
    "all_properties",
    "alter_table",
    "carrying_on",
    "check_names",
    "create_table",
    "drop_table",
    "identifier_of",
    "look_at_table",
    "owned_tables",
    "rename_table",
    "stamped",
    "table_folder",
    "table_identifier",
]

EXTENSIONS = "io.delta.sql.DeltaSparkSessionExtension"

_DROPPED = ".dropped-"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"

SESSION_CONF = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A batch that changes nothing has a position all the same.
    "spark.databricks.delta.skipRecordingEmptyCommits": "false",
    # What a batch merges is computed once already, and read from there. Delta fears for sources
    # that were cached over a Delta table, of which a later read may see another version; ours are
    # files of the change log, which do not change, and rows that are at hand.
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.databricks.delta.merge.failSourceCachedAfterMaterialization": "false",
    # A table's list of files is short: more tasks than one only cost.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    # A MERGE is many small jobs. Without these they are fewer, and each is planned once.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": str(10 << 20),
    # How long former versions are kept is our policy's to say, and a VACUUM tells what it removed.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.logging.enabled": "true",
    # In as many tasks VACUUM looks through a table's folder; by itself, ten thousand.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}
"""What a session needs for batches on Delta tables; some of it is the opposite of what Iceberg's
do."""

_PROPERTIES = {
    # An update marks the old row and appends the new one.
    "delta.enableDeletionVectors": "true",
    # Columns can be renamed and dropped, and have any name.
    "delta.columnMapping.mode": "name",
    "delta.enableTypeWidening": "true",
    # Delta lets a column of the type be added only to a table that was made with this.
    "delta.feature.timestampNtz": "supported",
}

_OWN_COLUMNS = frozenset(
    {
        "_metadata",
        "_condition_",
        "__condition__",
        "_file_name_",
        "_row_dropped_",
        "_row_id_",
        "_source_row_index",
        "_source_row_present_",
        "_target_row_index_",
        "_target_row_present_",
        "deletionVectorId",
        "filePath",
        "rowIndexCol",
    }
)
"""What its MERGE calls what it needs to know of a row."""

# Changes of a column's type that Delta does not make.
_OTHER_TYPE = ("DELTA_UNSUPPORTED_ALTER_TABLE_CHANGE_COL_OP", "NOT_SUPPORTED_CHANGE_COLUMN")


def table_folder(warehouse: Path, name: TableName) -> Path:
    schema, table = folder_names(name)
    return warehouse / schema / table


def identifier_of(folder: Path) -> str:
    """The name of the folder's table in Spark SQL: its place is enough, no catalog needs to know
    it."""
    return f"delta.{quoted(str(folder))}"


def table_identifier(warehouse: Path, name: TableName) -> str:
    """The table's name in Spark SQL."""
    return identifier_of(table_folder(warehouse, name))


def all_properties(lake_schema: LakeTableSchema, owner: Owner) -> dict[str, str]:
    return {**_PROPERTIES, **owner.properties, **table_properties(lake_schema)}


def check_names(table: TableName, columns: Collection[str]) -> None:
    """DestinationError if Delta takes two of the columns for the same, or one for its own."""
    if taken := sorted({name for name in columns if name in _OWN_COLUMNS}):
        raise DestinationError(
            f"{table} has a column {', '.join(taken)}, a name that Delta needs for itself",
            hint="Rename it at the source, leave it out of the publication with a column list, or "
            "use Iceberg.",
            retry=False,
        )
    folded = Counter(name.lower() for name in columns)
    alike = [name for name in columns if folded[name.lower()] > 1]
    if not alike:
        return
    raise DestinationError(
        f"{table} has columns whose names differ by case alone, which Delta takes for the same: "
        + ", ".join(alike),
        hint="Rename all but one of them at the source (or, if one is walflow's own, that: "
        "apply.change_type_column and the like), or use Iceberg, which tells them apart.",
        retry=False,
    )


def create_table(
    spark: SparkSession, identifier: str, lake_schema: LakeTableSchema, owner: Owner
) -> None:
    """Make the empty table."""
    properties = ", ".join(
        f"{literal(name)} = {literal(value)}"
        for name, value in all_properties(lake_schema, owner).items()
    )
    spark.sql(
        f"CREATE TABLE {identifier} ({lake_schema.ddl}) USING delta TBLPROPERTIES ({properties})"
    )


def alter_table(spark: SparkSession, identifier: str, clauses: Sequence[str]) -> None:
    """One commit a clause. NotFollowed: Delta cannot give a column that type."""
    for clause in clauses:
        try:
            spark.sql(f"ALTER TABLE {identifier} {clause}")
        except Exception as error:
            if any(condition in str(error) for condition in _OTHER_TYPE):
                raise NotFollowed(f"Delta has no way to {clause}") from error
            raise


def rename_table(folder: Path, new: Path) -> bool:
    """Its folder is its name; False if something is in the way."""
    if new.exists():
        return False
    new.parent.mkdir(parents=True, exist_ok=True)
    folder.rename(new)
    return True


def drop_table(folder: Path) -> None:
    """Remove the table with its files, if it is there: Delta itself drops no table that is known
    by its place alone."""
    # In one step it is no table any more; a process that died after that leaves the rest to us.
    if folder.exists():
        folder.rename(folder.with_name(f"{_DROPPED}{uuid.uuid4()}"))
    for dropped in folder.parent.glob(f"{_DROPPED}*"):
        shutil.rmtree(dropped, ignore_errors=True)


def owned_tables(spark: SparkSession, warehouse: Path, owner: Owner) -> list[TableName]:
    """The tables in the folder that are the owner's."""
    found = []
    for log in sorted(warehouse.glob(f"*/*/{LOG}")):
        schema, table = (name_of_folder(name) for name in log.parent.parts[-2:])
        if (
            schema is not None
            and table is not None
            and is_table_owned(spark, identifier_of(log.parent), owner)
        ):
            found.append(TableName(schema, table))
    return found


def look_at_table(spark: SparkSession, folder: Path) -> Stored | None:
    """None when there is no such table."""
    if not is_table(folder):
        return None
    identifier = identifier_of(folder)
    # The version first: all else may only be newer.
    version, position = newest_version(folder), newest_position(folder)
    columns = {f.name: f.dataType.simpleString() for f in spark.table(identifier).schema.fields}
    return Stored(position, columns, properties_of(spark, identifier), version)


@contextmanager
def stamped(spark: SparkSession, stamp: Stamp) -> Iterator[None]:
    """What this session commits inside carries the stamp."""
    with _saying(spark, json.dumps(stamp.properties)):
        yield


@contextmanager
def carrying_on(spark: SparkSession, folder: Path) -> Iterator[None]:
    """What this session commits inside says that the table is where it was before, whatever the
    session is stamped with: in Delta a change of schema is a commit like any other."""
    with _saying(spark, carried_on(folder)):
        yield


@contextmanager
def _saying(spark: SparkSession, text: str | None) -> Iterator[None]:
    before = spark.conf.get(_USER_METADATA, None)
    _say(spark, text)
    try:
        yield
    finally:
        _say(spark, before)


def _say(spark: SparkSession, text: str | None) -> None:
    if text is None:
        spark.conf.unset(_USER_METADATA)
    else:
        spark.conf.set(_USER_METADATA, text)


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
