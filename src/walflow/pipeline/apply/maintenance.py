"""Maintenance of the destination's tables, between their batches."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import structlog

from walflow.destinations.base import Destination
from walflow.errors import WalflowError
from walflow.observe.metrics import PipelineMetrics
from walflow.pipeline.state.table_states import TableState
from walflow.spark.jobs import cancel_jobs, in_pool, tagged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Maintenance"]

_CANCEL_SECONDS = 0.2

_logger = structlog.get_logger(__name__)


class Maintenance:
    """Called by the tables' workers, between two batches of the table."""

    def __init__(
        self, spark: SparkSession, destination: Destination, metrics: PipelineMetrics
    ) -> None:
        self._spark = spark
        self._destination = destination
        self._metrics = metrics
        self._tag = f"walflow-maintenance-{uuid.uuid4()}"
        self._busy = threading.Lock()
        self._closed = threading.Event()
        self._beside = ThreadPoolExecutor(1, "maintenance")

    @property
    def busy(self) -> bool:
        """Whether a table is being maintained."""
        return self._busy.locked()

    def is_due(self, state: TableState) -> bool:
        """Whether maintenance of the table is due. Costs nothing."""
        if self._closed.is_set():
            return False
        return self._destination.maintenance_due(state.destination_schema)

    def between_batches(self, state: TableState) -> None:
        """Maintain the table if it is due: now, or beside its next batches if the destination can
        do that.

        One table is maintained at a time, because batches of other tables need Spark more. A worker
        that finds another table being maintained tries again later. If maintenance fails, the table
        goes on.
        """
        if not self.is_due(state) or not self._busy.acquire(blocking=False):
            return
        if self._destination.capabilities.maintains_beside:
            self._beside.submit(self._maintain, state)
        else:
            self._maintain(state)

    def _maintain(self, state: TableState) -> None:
        began = time.monotonic()
        try:
            with in_pool(self._spark, "maintenance"), tagged(self._spark, self._tag):
                self._destination.maintain(state.destination_schema)
        except Exception as error:
            if self._closed.is_set():
                return
            self._metrics.worker_failed("maintenance", error)
            _logger.warning(
                "maintenance of a table failed; its changes go on, and it is tried again later",
                table=str(state.name),
                error=str(error),
                hint=error.hint if isinstance(error, WalflowError) else None,
            )
        else:
            seconds = round(time.monotonic() - began, 1)
            _logger.info("maintained a table", table=str(state.name), seconds=seconds)
        finally:
            self._busy.release()

    def close(self) -> None:
        """Begin no more maintenance, and interrupt what is running: it is done again later."""
        self._closed.set()
        while not self._busy.acquire(timeout=_CANCEL_SECONDS):
            # A JVM that is gone has no jobs; what it was asked for fails by itself.
            with contextlib.suppress(Exception):
                cancel_jobs(self._spark, self._tag)
        self._busy.release()
        self._beside.shutdown()
