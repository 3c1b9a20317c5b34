"""Iceberg tables, kept equal to their Postgres tables by Spark."""

from __future__ import annotations

from walflow.destinations.iceberg.format import IcebergFormat
from walflow.destinations.iceberg.tables import (
    CATALOG,
    EXTENSIONS,
    catalog_conf,
    table_identifier,
)

__all__ = ["CATALOG", "EXTENSIONS", "IcebergFormat", "catalog_conf", "table_identifier"]
