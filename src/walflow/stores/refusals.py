"""The errors with which stores refuse a call, with the same words in all stores."""

from __future__ import annotations

from walflow.errors import LeaseLost, NothingToRollBack, PipelineInUse
from walflow.stores.base import Holder

__all__ = ["lease_lost", "nothing_to_roll_back", "pipeline_in_use"]


def pipeline_in_use(pipeline: str, holder: Holder, seconds_left: float) -> PipelineInUse:
    return PipelineInUse(
        f"the pipeline {pipeline} is run by process {holder.pid} on {holder.host}",
        hint=f"Stop the other process, or give this pipeline another name (--name). If it died, "
        f"its lease runs out in {max(seconds_left, 0):.0f} s: try again then.",
    )


def lease_lost(pipeline: str, taken_by: Holder | None) -> LeaseLost:
    if taken_by is None:
        return LeaseLost(f"the pipeline {pipeline} is not this process's any more")
    return LeaseLost(
        f"the pipeline {pipeline} was taken over by process {taken_by.pid} on {taken_by.host}"
    )


def nothing_to_roll_back(pipeline: str, table: int) -> NothingToRollBack:
    return NothingToRollBack(
        f"the table with oid {table} of the pipeline {pipeline} has no earlier state",
        hint="To copy it anew: `walflow resync TABLE`.",
    )
