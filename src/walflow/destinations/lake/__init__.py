"""Tables of a lake, kept equal to their Postgres tables by Spark: what all formats share."""

from __future__ import annotations

from walflow.config.lake import Metadata, TablePlan
from walflow.destinations.lake.destination import LakeDestination
from walflow.destinations.lake.format import LakeFormat
from walflow.destinations.lake.owner import Owner
from walflow.destinations.lake.table_schema import EXACT

__all__ = ["EXACT", "LakeDestination", "LakeFormat", "Metadata", "Owner", "TablePlan"]
