"""Tables of a lake, kept equal to their Postgres tables by Spark: what all formats share."""

from __future__ import annotations

from walflow.destinations.lake.destination import LakeDestination
from walflow.destinations.lake.format import LakeFormat
from walflow.destinations.lake.forms import EXACT, Metadata, TablePlan, plan_of
from walflow.destinations.lake.maintenance import UpkeepPlan, upkeep_of
from walflow.destinations.lake.owner import Owner

__all__ = [
    "EXACT",
    "LakeDestination",
    "LakeFormat",
    "Metadata",
    "Owner",
    "TablePlan",
    "UpkeepPlan",
    "plan_of",
    "upkeep_of",
]
