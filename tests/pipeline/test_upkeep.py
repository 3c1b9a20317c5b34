"""Upkeep between rounds: a table goes on if it fails, and nobody waits for it at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.destinations.reference import make_schema
from walflow.destinations.base import Events
from walflow.errors import DestinationError
from walflow.model import Phase, TableName, TableSchema
from walflow.observe.metrics import Metrics
from walflow.pipeline.tables import TableState
from walflow.pipeline.upkeep import Upkeep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = make_schema({"id": "int"}, ["id"])
STATE = TableState(SCHEMA, TableName("public", "t"), Phase.READY)


class Kept:
    """A destination that only wants to be looked after."""

    name = "kept"

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self.due = True

    def truncate_table(self, table: TableSchema) -> None:
        raise NotImplementedError

    def write_table_rows(self, table: TableSchema, rows: DataFrame) -> None:
        raise NotImplementedError

    def write_events(self, events: Events) -> None:
        raise NotImplementedError

    def maintenance_due(self, table: TableSchema) -> bool:
        return self.due

    def maintain(self, table: TableSchema) -> None:
        assert table.name == STATE.destination
        self._work()


def test_what_fails_is_counted_and_told(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise DestinationError("the disk is full", hint="Free some space.")

    metrics = Metrics()
    destination = Kept(fail)
    upkeep = Upkeep(spark, destination, metrics.pipeline("shop"))
    upkeep.between_rounds(STATE)
    destination.due = False
    upkeep.between_rounds(STATE)
    told = capsys.readouterr().out
    assert told.count("a table was not looked after") == 1
    assert "Free some space." in told
    assert errors(metrics, "DestinationError") == 1
    upkeep.close()


def test_at_the_end_it_is_broken_off(spark: SparkSession) -> None:
    begun = threading.Event()

    def work() -> None:
        begun.set()
        spark.range(10**15).selectExpr("sum(hash(id))").collect()

    metrics = Metrics()
    upkeep = Upkeep(spark, Kept(work), metrics.pipeline("shop"))
    lane = threading.Thread(target=upkeep.between_rounds, args=(STATE,), daemon=True)
    lane.start()
    assert begun.wait(30)
    # Another table does not wait for its turn.
    upkeep.between_rounds(STATE)
    closing = threading.Thread(target=upkeep.close, daemon=True)
    closing.start()
    for thread in (closing, lane):
        thread.join(120)
        assert not thread.is_alive()
    begun.clear()
    upkeep.between_rounds(STATE)
    assert not begun.is_set()
    assert not next(iter(metrics.worker_errors.collect())).samples


def errors(metrics: Metrics, error: str) -> float | None:
    labels = {"pipeline": "shop", "worker": "upkeep", "error": error}
    return metrics.registry.get_sample_value("etl_worker_errors_total", labels)
