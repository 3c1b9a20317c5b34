"""Changes that were appended get into the base: from time to time, when it pays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from walflow.destinations.lake.format import LakeFormat
from walflow.destinations.lake.freshness.parts import BATCH, FOLDED, NEWEST, REMOVED, Parts
from walflow.destinations.lake.freshness.shown import newest_changes, same_key
from walflow.destinations.lake.merging import assignments, inserted
from walflow.destinations.lake.owner import Owner, Stamp
from walflow.destinations.lake.table_schema import TablePlan
from walflow.failpoints import failpoint
from walflow.model import Lsn, TableName
from walflow.spark.checkpoints import checkpointed
from walflow.spark.names import SOURCE, TARGET, literal, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Unfolded", "fold"]

_VIEW = "walflow_fold"
_LEAST = 10_000
"""Fewer changes than this are not worth a merge, however small the table is; only their age is."""


def fold(
    format: LakeFormat, spark: SparkSession, parts: Parts, owner: Owner, position: Lsn
) -> None:
    """Merge what was changed up to the position, which is the table's, into the base, then take it
    out of the changes. The view shows the same rows before, after, and between the two commits.

    Repeats safely. Nobody may append meanwhile.
    """
    changes = format.identifier(parts.changes)
    upto = f"{quoted(BATCH)} <= {int(position)}"
    stored = format.look(spark, parts.base)
    since = None if stored is None else stored.position
    numbered = spark.sql(newest_changes(parts, f"(SELECT * FROM {changes} WHERE {upto}) c"))
    # As rows, not as a plan: the MERGE reads them more than once, and a window function in its
    # source would keep Spark from filtering the base's scan by the keys.
    newest = checkpointed(numbered.where(f"{quoted(NEWEST)} = 1"))
    newest.createOrReplaceTempView(_VIEW)
    with format.stamped(spark, Stamp(owner, position, since)):
        try:
            spark.sql(_merge(parts, format.identifier(parts.base), upto))
        finally:
            spark.catalog.dropTempView(_VIEW)
    failpoint("fold.merged", parts.name)
    with format.stamped(spark, Stamp(owner, position, position)):
        said = f"{literal(FOLDED)} = {literal(str(position))}"
        format.alter(spark, parts.changes, f"SET TBLPROPERTIES ({said})")
        spark.sql(f"DELETE FROM {changes} WHERE {upto}")


def _merge(parts: Parts, base: str, upto: str) -> str:
    values = {name: f"{SOURCE}.{quoted(name)}" for name in parts.columns}
    # The key too (see merging); changes have nothing in columns that are kept.
    told = {name: value for name, value in values.items() if name not in parts.kept}
    removed = f"{SOURCE}.{quoted(REMOVED)}"
    return (
        f"MERGE INTO {base} {TARGET} USING (SELECT * FROM {_VIEW} WHERE {upto}) {SOURCE}"
        f" ON {same_key(parts, TARGET, SOURCE)}"
        f" WHEN MATCHED AND {removed} THEN DELETE"
        f" WHEN MATCHED THEN UPDATE SET {assignments(told)}"
        f" WHEN NOT MATCHED AND NOT {removed} THEN {inserted(values)}"
    )


@dataclass(frozen=True, slots=True)
class _Waiting:
    base: int
    """About how many rows the base has."""
    rows: int = 0
    """How many changes have not been merged, at most."""
    since: float | None = None
    """When the first of them came, or was found."""


class Unfolded:
    """How much waits to be merged, by table: asked after each round, so kept in memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tables: dict[TableName, _Waiting] = {}

    def found(self, name: TableName, base: int, changes: int) -> None:
        """The table was looked at: its parts have about as many rows."""
        since = self._clock() if changes else None
        with self._lock:
            self._tables[name] = _Waiting(base, changes, since)

    def appended(self, name: TableName, rows: int) -> None:
        with self._lock:
            before = self._tables.get(name, _Waiting(0))
            since = self._clock() if before.since is None else before.since
            self._tables[name] = replace(before, rows=before.rows + rows, since=since)

    def base_rows(self, name: TableName) -> int:
        with self._lock:
            return self._tables.get(name, _Waiting(0)).base

    def forget(self, name: TableName) -> None:
        with self._lock:
            self._tables.pop(name, None)

    def due(self, name: TableName, plan: TablePlan) -> bool:
        """By the plan's share of the table and age."""
        with self._lock:
            waiting = self._tables.get(name)
        if waiting is None or waiting.since is None:
            return False
        if waiting.rows >= max(plan.fold_share * waiting.base, _LEAST):
            return True
        return self._clock() - waiting.since >= plan.fold_seconds
