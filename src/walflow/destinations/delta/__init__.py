"""Delta tables, kept equal to their Postgres tables by Spark."""

from __future__ import annotations

from walflow.destinations.delta.format import DeltaFormat
from walflow.destinations.delta.tables import EXTENSIONS, table_folder, table_identifier

__all__ = ["EXTENSIONS", "DeltaFormat", "table_folder", "table_identifier"]
