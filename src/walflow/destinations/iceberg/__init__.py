"""Iceberg tables, kept equal to their Postgres tables by Spark."""

from __future__ import annotations

from walflow.destinations.iceberg.destination import IcebergDestination
from walflow.destinations.iceberg.tables import CATALOG, Owner, catalog_conf, table_identifier

__all__ = ["CATALOG", "IcebergDestination", "Owner", "catalog_conf", "table_identifier"]
