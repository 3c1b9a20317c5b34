"""Maintenance between batches: a table goes on if it fails, and nobody waits for it at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Database
from tests.destinations.reference import make_schema
from tests.pipeline.capturing import wait_for
from tests.pipeline.running import HOLD, WAIT, catch_up, in_source, phase_of, running, settings_for
from tests.pipeline.shelf import PositionedShelf
from walflow.destinations.base import TableChanges
from walflow.destinations.own import adapted
from walflow.errors import DestinationError
from walflow.model import Phase, TableName, TableSchema
from walflow.observe.metrics import Metrics
from walflow.pipeline.apply.maintenance import Maintenance
from walflow.pipeline.state.table_states import TableState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = make_schema({"id": "int"}, ["id"])
STATE = TableState.new(SCHEMA, TableName("public", "t"), Phase.READY)


class Kept:
    """A destination that has nothing but maintenance."""

    name = "kept"

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self.due = True

    def truncate_table(self, table: TableSchema) -> None:
        raise NotImplementedError

    def write_table_rows(self, table: TableSchema, rows: DataFrame) -> None:
        raise NotImplementedError

    def write_events(self, events: TableChanges) -> None:
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
    maintenance = Maintenance(spark, adapted(destination), metrics.pipeline("shop"))
    maintenance.between_batches(STATE)
    destination.due = False
    maintenance.between_batches(STATE)
    told = capsys.readouterr().out
    assert told.count("maintenance of a table failed") == 1
    assert "Free some space." in told
    assert errors(metrics, "DestinationError") == 1
    maintenance.close()


def test_at_the_end_it_is_broken_off(spark: SparkSession) -> None:
    begun = threading.Event()

    def work() -> None:
        begun.set()
        spark.range(10**15).selectExpr("sum(hash(id))").collect()

    metrics = Metrics()
    maintenance = Maintenance(spark, adapted(Kept(work)), metrics.pipeline("shop"))
    worker = threading.Thread(target=maintenance.between_batches, args=(STATE,), daemon=True)
    worker.start()
    assert begun.wait(WAIT)
    # Another table does not wait for its turn.
    maintenance.between_batches(STATE)
    closing = threading.Thread(target=maintenance.close, daemon=True)
    closing.start()
    for thread in (closing, worker):
        thread.join(120)
        assert not thread.is_alive()
    begun.clear()
    maintenance.between_batches(STATE)
    assert not begun.is_set()
    assert not next(iter(metrics.worker_errors.collect())).samples


class KeptShelf(PositionedShelf):
    """Tables whose maintenance is due until it was done."""

    def __init__(self) -> None:
        super().__init__()
        self.due: set[TableName] = set()
        self.begun: list[TableName] = []
        self.go_on = threading.Event()

    def maintenance_due(self, table: TableSchema) -> bool:
        return table.name in self.due

    def maintain(self, table: TableSchema) -> None:
        self.begun.append(table.name)
        batches = self.batches[table.name]
        assert self.go_on.wait(HOLD)
        assert self.batches[table.name] == batches, "it was written meanwhile"
        self.due.discard(table.name)


def test_tables_that_fell_silent_are_maintained_in_turn(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "CREATE PUBLICATION walflow FOR TABLE a, b",
    )
    a, b = TableName("public", "a"), TableName("public", "b")
    shelf, metrics = KeptShelf(), Metrics()
    settings = settings_for(database, tmp_path)
    with running(settings, spark, destination=shelf, metrics=metrics) as pipeline:
        wait_for(lambda: {phase_of(pipeline, table) for table in "ab"} == {Phase.READY}, WAIT)
        shelf.due.add(a)
        wait_for(lambda: shelf.begun == [a], WAIT, "a is maintained", pipeline.check)
        shelf.due.add(b)
        # b finds it taken after its only batch; a, which has all, holds up nobody who waits.
        database.execute("INSERT INTO b VALUES (1)")
        catch_up(pipeline)
        assert shelf.rows("b") == [(1,)]
        assert shelf.begun == [a]
        database.execute("INSERT INTO a VALUES (1)")
        shelf.go_on.set()
        wait_for(lambda: not shelf.due, WAIT, "b is maintained", pipeline.check)
        catch_up(pipeline)
        assert shelf.rows("a") == in_source(database, "a")
    assert shelf.begun == [a, b]
    assert not next(iter(metrics.worker_errors.collect())).samples


def errors(metrics: Metrics, error: str) -> float | None:
    labels = {"pipeline": "shop", "worker": "maintenance", "error": error}
    return metrics.registry.get_sample_value("etl_worker_errors_total", labels)
