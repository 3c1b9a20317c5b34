"""Tables of a lake, kept equal to their Postgres tables by Spark: what all formats share."""

from __future__ import annotations

from walflow.destinations.lake.destination import LakeDestination
from walflow.destinations.lake.format import LakeFormat
from walflow.destinations.lake.maintenance import MaintenancePlan, maintenance_of
from walflow.destinations.lake.owner import Owner
from walflow.destinations.lake.table_schema import EXACT, Metadata, TablePlan, plan_of

__all__ = [
    "EXACT",
    "LakeDestination",
    "LakeFormat",
    "MaintenancePlan",
    "Metadata",
    "Owner",
    "TablePlan",
    "maintenance_of",
    "plan_of",
]
