"""Whole pipelines in the test's own process and Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conftest import Database
from walflow.config import Settings, load_settings
from walflow.destinations.base import Destination
from walflow.destinations.own import BasicDestination
from walflow.failpoints import set_failpoints
from walflow.model import Phase, TableName
from walflow.observe.metrics import Metrics
from walflow.pipeline.pipeline import Pipeline
from walflow.pipeline.state.table_states import TableState
from walflow.pipeline.timing import Timing
from walflow.stores.base import BasicStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "HOLD",
    "QUICK",
    "WAIT",
    "catch_up",
    "fill_two_tables",
    "in_source",
    "phase_of",
    "running",
    "settings_for",
    "state_of",
    "told_to_end",
]

WAIT = 400
"""A bound for what hangs: a machine that does other things takes its time."""
HOLD = 3 * WAIT
"""For who is held until the test goes on, which may itself wait for several things."""
QUICK = Timing(publication=0.3, set_aside=0.3, requests=0.2, store_pause=0.05, lease=WAIT)
"""What changes is seen soon, and a machine that stands still for long loses no lease."""


def settings_for(
    database: Database, folder: Path, log: str = "log", **overrides: object
) -> Settings:
    """Settings with names of the test's own; further ones with ``__`` for the dot."""
    return load_settings(
        None,
        {
            "name": "test",
            "source.uri": database.uri,
            "source.slot": f"slot_{database.name}",
            "destination.uri": f"iceberg://{folder}/lake",
            "log.folder": str(folder / log),
            "batch.max_fill_ms": 50,
            "table_error_retry_delay_ms": 200,
            **{name.replace("__", "."): value for name, value in overrides.items()},
        },
        environment={},
    )


@contextmanager
def running(
    settings: Settings,
    spark: SparkSession,
    *,
    destination: Destination | BasicDestination | None = None,
    store: BasicStore | None = None,
    metrics: Metrics | None = None,
    caught_up: bool = True,
    timing: Timing = QUICK,
) -> Iterator[Pipeline]:
    """A pipeline that has caught up with what was committed before (unless told otherwise)."""
    pipeline = Pipeline(settings, store, destination, spark=spark, metrics=metrics, timing=timing)
    pipeline.start()
    try:
        if caught_up:
            catch_up(pipeline)
        yield pipeline
    except BaseException:
        # The end would wait for who is held, and the next test would be held too.
        set_failpoints("")
        raise
    finally:
        pipeline.shutdown()


def fill_two_tables(database: Database, rows: int = 50) -> None:
    """Tables ``a`` and ``b``, published as ``walflow``."""
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        "CREATE TABLE b (id int PRIMARY KEY, v text)",
        f"INSERT INTO a SELECT i, 'a' || i FROM generate_series(1, {rows}) i",
        f"INSERT INTO b SELECT i, 'b' || i FROM generate_series(1, {rows}) i",
        "CREATE PUBLICATION walflow FOR TABLE a, b",
    )


def catch_up(pipeline: Pipeline) -> None:
    assert pipeline.wait_until(pipeline.source_position(), WAIT)


def told_to_end(pipeline: Pipeline) -> bool:
    """Whether each copy that is under way was told to end. Who is held may go on then: it looks
    first. No other sign of it can be seen from outside."""
    workers = pipeline._coordinating.workers.all()
    return all(worker._break_off.is_set() for worker in workers if worker.copies)


def in_source(database: Database, table: str) -> list[tuple[Any, ...]]:
    with database.connect() as connection:
        return sorted(connection.execute(f"SELECT * FROM {table}").fetchall())


def state_of(pipeline: Pipeline, table: str) -> TableState | None:
    name = TableName("public", table)
    return next((state for state in pipeline.status().tables if state.name == name), None)


def phase_of(pipeline: Pipeline, table: str) -> Phase | None:
    state = state_of(pipeline, table)
    return None if state is None else state.phase
