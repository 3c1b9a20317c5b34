"""Iceberg tables of ours: their names, their form, who owns them, and how far they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from walflow.errors import DestinationForeign
from walflow.model import Column, Lsn, TableName, TableSchema
from walflow.spark.net import EXACT_TYPE, may_be_inexact, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "CATALOG",
    "EXACT",
    "Owner",
    "Progress",
    "catalog_conf",
    "create_table",
    "drop_table",
    "literal",
    "read_progress",
    "stamped",
    "table_identifier",
    "table_path",
]

CATALOG = "lake"
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

EXACT = "_EXACT"
"""The column of exact texts, added to a table the first time that a row needs it."""

_PROPERTIES = {
    # Deletion vectors: an update marks the old row and appends the new one.
    "format-version": "3",
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    # A round is small: a shuffle before the write costs more than tidy files are worth.
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
    "write.delete.distribution-mode": "none",
    "write.target-file-size-bytes": str(128 << 20),
    # Each commit writes a new metadata file; without this all of them stay.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}

_SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."


@dataclass(frozen=True, slots=True)
class Owner:
    """The pipeline that tables belong to."""

    pipeline: str
    system: str
    """The source: its system identifier and database."""
    timeline: int | None = None

    @property
    def properties(self) -> dict[str, str]:
        known = {"walflow.pipeline": self.pipeline, "walflow.system": self.system}
        if self.timeline is not None:
            known["walflow.timeline"] = str(self.timeline)
        return known


@dataclass(frozen=True, slots=True)
class Progress:
    """What a table says of itself."""

    applied: Lsn | None
    settled: Lsn
    """Rows of changes up to here may be in the table already, although not all are."""
    has_exact: bool


def catalog_conf(warehouse: str, options: Mapping[str, str]) -> dict[str, str]:
    """Spark settings of our catalog; options name another kind of catalog, or its details."""
    prefix = f"spark.sql.catalog.{CATALOG}"
    return {
        "spark.sql.extensions": EXTENSIONS,
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "hadoop",
        f"{prefix}.warehouse": warehouse,
        # Each session would cache tables for itself, and not see what another one commits.
        f"{prefix}.cache-enabled": "false",
        **{f"{prefix}.{name}": value for name, value in options.items()},
    }


def table_identifier(name: TableName) -> str:
    """The table's name in Spark SQL."""
    return f"{CATALOG}.{table_path(name)}"


def table_path(name: TableName) -> str:
    """The table's name inside the catalog, as procedures want it."""
    return f"{quoted(_folder_name(name.schema))}.{quoted(_folder_name(name.name))}"


def _folder_name(name: str) -> str:
    """The name, with what folders, paths and JVMs trip over written as ``~`` and hex.

    Hadoop's paths give a meaning to ``%``, ``:`` and a leading dot or underscore, and a JVM in the
    C locale cannot write names that are not ASCII.
    """
    escaped = re.sub(
        r"[^A-Za-z0-9_.-]", lambda match: "".join(f"~{b:02X}" for b in match[0].encode()), name
    )
    return re.sub(r"^[._-]", lambda match: f"~{ord(match[0]):02X}", escaped)


def literal(text: str) -> str:
    """The text as a string in Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def create_table(spark: SparkSession, schema: TableSchema, owner: Owner, exact: str | None) -> None:
    """Make the empty table; ``exact`` names the column of exact texts if it is to have one."""
    columns = [
        f"{quoted(c.name)} {c.spark_type}{' NOT NULL' if _never_null(schema, c) else ''}"
        for c in schema.columns
    ]
    if exact is not None:
        columns.append(f"{quoted(exact)} {EXACT_TYPE}")
    properties = ", ".join(
        f"{literal(name)} = {literal(value)}"
        for name, value in (_PROPERTIES | owner.properties).items()
    )
    spark.sql(
        f"CREATE TABLE {table_identifier(schema.name)} ({', '.join(columns)})"
        f" USING iceberg TBLPROPERTIES ({properties})"
    )


def _never_null(schema: TableSchema, column: Column) -> bool:
    # A key that its type cannot hold becomes null, with the text in the column of exact texts.
    return column.name in schema.key and not may_be_inexact(column)


def drop_table(spark: SparkSession, name: TableName) -> None:
    spark.sql(f"DROP TABLE IF EXISTS {table_identifier(name)} PURGE")


def read_progress(spark: SparkSession, name: TableName, owner: Owner) -> Progress | None:
    """How far the table is; None when there is none. DestinationForeign when it is not ours."""
    identifier = table_identifier(name)
    if not spark.catalog.tableExists(identifier):
        return None
    _check_owner(spark, name, owner)
    lsn, settled = _newest_position(spark, identifier)
    return Progress(lsn, settled or lsn or Lsn(0), EXACT in spark.table(identifier).columns)


def _check_owner(spark: SparkSession, name: TableName, owner: Owner) -> None:
    rows = spark.sql(f"SHOW TBLPROPERTIES {table_identifier(name)}").collect()
    properties = {row["key"]: row["value"] for row in rows}
    pipeline, system = properties.get("walflow.pipeline"), properties.get("walflow.system")
    if (pipeline, system) == (owner.pipeline, owner.system):
        return
    if pipeline is None:
        whose = "was not made by walflow"
    elif pipeline != owner.pipeline:
        whose = f"belongs to the pipeline {pipeline!r}"
    else:
        whose = f"was copied from another source ({system}, now {owner.system})"
    raise DestinationForeign(
        f"the table {table_identifier(name)} exists and {whose}",
        hint=f"Use another warehouse folder, or remove the table: "
        f"DROP TABLE {table_identifier(name)} PURGE;",
    )


def _newest_position(spark: SparkSession, identifier: str) -> tuple[Lsn | None, Lsn | None]:
    """From the newest ancestor of main that has one: maintenance commits without it."""
    refs = spark.sql(f"SELECT snapshot_id FROM {identifier}.refs WHERE name = 'main'").collect()
    snapshots = {
        row["snapshot_id"]: row
        for row in spark.sql(
            "SELECT snapshot_id, parent_id, summary['walflow.lsn'] AS lsn,"
            f" summary['walflow.settled'] AS settled FROM {identifier}.snapshots"
        ).collect()
    }
    current = refs[0]["snapshot_id"] if refs else None
    while (snapshot := snapshots.get(current)) is not None:
        if snapshot["lsn"] is not None:
            settled = snapshot["settled"]
            return Lsn.parse(snapshot["lsn"]), None if settled is None else Lsn.parse(settled)
        current = snapshot["parent_id"]
    return None, None


def summary_of(owner: Owner, position: Lsn, settled: Lsn | None) -> dict[str, str]:
    """What a commit says of itself in its snapshot's summary."""
    summary = {**owner.properties, "walflow.lsn": str(position)}
    if settled is not None and settled > position:
        summary["walflow.settled"] = str(settled)
    return summary


@contextmanager
def stamped(
    spark: SparkSession, owner: Owner, position: Lsn, settled: Lsn | None
) -> Iterator[None]:
    """What this session commits inside carries the position in its snapshot's summary."""
    summary = summary_of(owner, position, settled)
    for name, value in summary.items():
        spark.conf.set(_SNAPSHOT_PROPERTY + name, value)
    try:
        yield
    finally:
        for name in summary:
            spark.conf.unset(_SNAPSHOT_PROPERTY + name)
