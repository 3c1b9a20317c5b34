"""Truncates among the changes of a table: they end all rows at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from walflow.destinations.base import TableChanges
from walflow.model import ChangeStats, ChangeType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["EMPTIED", "Truncate", "between_truncates", "first_truncate"]

EMPTIED = "_deleted"
"""A column beside the source's, under a name that none of these has."""
_MOMENT = "struct<at: struct<_lsn: bigint, _seq: bigint>, time: timestamp>"


@dataclass(frozen=True, slots=True)
class Truncate:
    lsn: int
    seq: int
    micros: int

    @property
    def at(self) -> str:
        """In SQL."""
        return f"named_struct('_lsn', {self.lsn}L, '_seq', {self.seq}L)"

    @property
    def time(self) -> str:
        """In SQL."""
        return f"timestamp_micros({self.micros})"


def first_truncate(changes: TableChanges) -> Truncate | None:
    """The one that emptied the table as it was before the changes."""
    if not changes.stats.truncates:
        return None
    is_truncate = sf.col("_change_type") == ChangeType.TRUNCATE.value
    moment = sf.struct("_lsn", "_seq", sf.unix_micros("_timestamp").alias("micros"))
    found = changes.changes.where(is_truncate).agg(sf.min(moment).alias("first")).first()
    if found is None or found["first"] is None:
        return None
    return Truncate(found["first"]["_lsn"], found["first"]["_seq"], found["first"]["micros"])


def between_truncates(changes: DataFrame, stats: ChangeStats) -> DataFrame:
    """The changes of rows, with a column ``_deleted``: the next truncate after each (a struct of
    ``at`` and ``time``), null if there is none."""
    if not stats.truncates:
        return changes.withColumn(EMPTIED, sf.lit(None).cast(_MOMENT))
    is_truncate = sf.col("_change_type") == ChangeType.TRUNCATE.value
    moment = sf.struct(sf.struct("_lsn", "_seq").alias("at"), sf.col("_timestamp").alias("time"))
    truncates = changes.where(is_truncate).agg(
        sf.sort_array(sf.collect_list(moment)).alias(EMPTIED)
    )
    later = sf.filter(EMPTIED, lambda one: one["at"] > sf.struct("_lsn", "_seq"))
    rows = changes.where(~is_truncate).crossJoin(sf.broadcast(truncates))
    return rows.withColumn(EMPTIED, sf.get(later, sf.lit(0)))
