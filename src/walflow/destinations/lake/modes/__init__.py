"""What becomes of changes in a table, by its mode. Each mode is one module of the same shape."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from walflow.config.lake import Mode
from walflow.destinations.lake.batch import Batch
from walflow.destinations.lake.format import Constant
from walflow.destinations.lake.modes import history, mirror, scd2, soft_delete
from walflow.destinations.lake.table_schema import LakeTableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["MODES", "ModeWriter"]


class ModeWriter(Protocol):
    @property
    def keeps_past(self) -> bool:
        """Whether the table has rows that the source has no longer."""

    def copied(
        self, lake_schema: LakeTableSchema, metadata: Mapping[str, Constant], time: datetime
    ) -> Mapping[str, Constant]:
        """What our columns have in rows of a copy, by name. ``metadata``: those of the metadata;
        ``time``: of the copy."""

    def held(self, table: DataFrame, lake_schema: LakeTableSchema) -> DataFrame:
        """The source's rows, as of the table's position, from the table's: ``row`` (a struct) and
        ``exact``."""

    def apply(self, batch: Batch) -> LakeTableSchema:
        """Write the changes, in exactly one commit; the table's schema after it (it may have got
        the column of overflow texts)."""


MODES: Mapping[Mode, ModeWriter] = {
    "mirror": mirror,
    "soft_delete": soft_delete,
    "history": history,
    "scd2": scd2,
}
