"""What writes a lake's tables: Spark's jobs, or columns in this process.

Both come to the same. Columns are cheaper for what is small and near; Spark can do all. An engine
that cannot do something says so before anything has happened, and Spark does it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog

from walflow.config.lake import EngineChoice
from walflow.destinations.base import Written
from walflow.destinations.lake.batch import Batch
from walflow.destinations.lake.fallback import FallBackToSpark, Reason
from walflow.destinations.lake.format import Columnar, Compaction, LakeFormat, Turn
from walflow.destinations.lake.modes import MODES
from walflow.destinations.lake.net_columns import columnar_changes, fits_memory
from walflow.errors import DestinationError
from walflow.failpoints import failpoint
from walflow.model import TableName

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["ColumnarEngine", "Engine", "Engines", "SparkEngine"]

_Done = TypeVar("_Done")

_logger = structlog.get_logger(__name__)


class Engine(Protocol):
    """Every call is at most one commit, or one and its stamp. The session is the caller's alone.

    FallBackToSpark: it cannot be done so, and nothing has happened.
    """

    @property
    def name(self) -> str: ...

    def merge(self, batch: Batch) -> None:
        """Bring the table from where it is to the end of the batch, in exactly one commit with the
        batch's stamp."""

    def append(self, spark: SparkSession, name: TableName, rows: pa.Table) -> None:
        """Add rows that have all columns of the table, in one commit without a stamp."""

    def compact(self, spark: SparkSession, name: TableName, policy: Compaction, turn: Turn) -> bool:
        """Rewrite small files, and those of which much is deleted, if there are enough of them to
        pay; whether it did. The newest commit has the turn's stamp then. Does a limited amount of
        work: what is left is due again."""


class SparkEngine:
    """Can do everything."""

    name = "spark"

    def __init__(self, format: LakeFormat) -> None:
        self._format = format

    def merge(self, batch: Batch) -> None:
        with self._format.stamped(batch.spark, batch.stamp):
            MODES[batch.lake_schema.plan.mode].apply(batch)

    def append(self, spark: SparkSession, name: TableName, rows: pa.Table) -> None:
        # One partition, so one file.
        self._format.append(spark.createDataFrame(rows).coalesce(1), name)

    def compact(self, spark: SparkSession, name: TableName, policy: Compaction, turn: Turn) -> bool:
        with turn() as stamp, self._format.stamped(spark, stamp):
            done = self._format.compact(spark, name, policy)
            if done:
                failpoint("maintain.compacted", name)
                # It commits without a stamp of ours.
                self._format.touch(spark, name)
        return done


class ColumnarEngine:
    """Merges into mirrors only."""

    name = "columnar"

    def __init__(self, tables: Columnar) -> None:
        self._tables = tables

    def merge(self, batch: Batch) -> None:
        if (mode := batch.lake_schema.plan.mode) != "mirror":
            raise FallBackToSpark(f"mode {mode}", Reason.MODE)
        if not fits_memory(batch.changes):
            raise FallBackToSpark("there are too many changes, or none", Reason.SIZE)
        self._tables.merge(
            batch.lake_schema,
            lambda: columnar_changes(batch.changes, overflow=batch.lake_schema.overflow),
            batch.begins,
            batch.stamp,
        )

    def append(self, spark: SparkSession, name: TableName, rows: pa.Table) -> None:
        self._tables.append(name, rows)

    def compact(self, spark: SparkSession, name: TableName, policy: Compaction, turn: Turn) -> bool:
        done = self._tables.compact(name, policy, turn)
        if done:
            failpoint("maintain.compacted", name)
        return done


class Engines:
    """Chooses for each call. Calls may come from several threads."""

    def __init__(self, format: LakeFormat, choice: EngineChoice = "auto") -> None:
        self._format = format
        self._choice = choice
        self._spark = SparkEngine(format)

    def merge(self, batch: Batch) -> Written:
        """See Engine. DestinationError if columns are choice, and cannot be had."""
        name = batch.lake_schema.name
        try:
            _, written = self._do(batch.spark, name, lambda engine: engine.merge(batch))
        except FallBackToSpark as reason:
            raise DestinationError(
                f"{name} has changes that cannot be written in columns: {reason}",
                hint="Let Spark write what columns cannot: apply.engine: auto",
            ) from reason
        return written

    def append(self, spark: SparkSession, name: TableName, rows: pa.Table) -> None:
        self._do(spark, name, lambda engine: engine.append(spark, name, rows), strict=False)

    def compact(self, spark: SparkSession, name: TableName, policy: Compaction, turn: Turn) -> bool:
        def compact(engine: Engine) -> bool:
            return engine.compact(spark, name, policy, turn)

        done, _ = self._do(spark, name, compact, strict=False)
        return done

    def _do(
        self,
        spark: SparkSession,
        name: TableName,
        act: Callable[[Engine], _Done],
        *,
        strict: bool = True,
    ) -> tuple[_Done, Written]:
        try:
            engine = self._columnar(spark)
            return act(engine), Written(engine.name)
        except FallBackToSpark as fallback:
            if self._choice == "columnar" and strict:
                raise
            if self._choice != "spark":
                _logger.debug(
                    "left to Spark",
                    table=str(name),
                    reason=fallback.reason.value,
                    detail=str(fallback),
                )
            written = Written(self._spark.name, fallback.reason.value)
        return act(self._spark), written

    def _columnar(self, spark: SparkSession) -> ColumnarEngine:
        if self._choice == "spark":
            raise FallBackToSpark("apply.engine is spark", Reason.SETTING)
        tables = self._format.columnar(spark)
        if tables is None:
            raise FallBackToSpark(f"{self._format.name} here has no columns", Reason.FORMAT)
        return ColumnarEngine(tables)
