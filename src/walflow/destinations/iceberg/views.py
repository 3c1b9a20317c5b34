"""Views that an Iceberg catalog keeps beside its tables, and which catalogs do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from walflow.destinations.iceberg.tables import CATALOG, table_identifier
from walflow.destinations.lake.names import folder_names
from walflow.model import TableName
from walflow.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["count_rows", "create_view", "drop_view", "keeps_views", "name_in_view"]

_KEEP_VIEWS = ("rest", "hive", "nessie")


def keeps_views(options: Mapping[str, str]) -> bool:
    """Whether a catalog that is described so does."""
    # org.apache.iceberg.rest.RESTCatalog
    implementation = options.get("catalog-impl", "").rpartition(".")[2].lower()
    kind = implementation.removesuffix("catalog") or options.get("type", "hadoop").lower()
    if kind == "jdbc":
        # Tables of its own that came with this version have the views.
        return options.get("jdbc.schema-version", "").upper() == "V1"
    return kind in _KEEP_VIEWS


def name_in_view(name: TableName) -> str:
    """Without the catalog, which others may know by another name."""
    return ".".join(map(quoted, folder_names(name)))


def create_view(spark: SparkSession, name: TableName, query: str) -> None:
    """See LakeFormat.create_view."""
    before = spark.catalog.currentCatalog()
    # By SQL: the method looks for a catalog that is new to the session in another's conf.
    spark.sql(f"SET CATALOG {CATALOG}")
    try:
        spark.sql(f"CREATE OR REPLACE VIEW {table_identifier(name)} AS\n{query}")
    finally:
        spark.sql(f"SET CATALOG {quoted(before)}")


def drop_view(spark: SparkSession, name: TableName) -> None:
    spark.sql(f"DROP VIEW IF EXISTS {table_identifier(name)}")


def count_rows(spark: SparkSession, name: TableName) -> int:
    """As the newest snapshot says: with rows that only a deletion vector takes out."""
    row = spark.sql(
        f"SELECT summary['total-records'] FROM {table_identifier(name)}.snapshots"
        " ORDER BY committed_at DESC LIMIT 1"
    ).first()
    return int(row[0] or 0) if row is not None else 0
