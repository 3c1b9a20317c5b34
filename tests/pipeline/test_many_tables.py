"""Tables by the hundred: how long they take to get ready, what they need of the source, and what
one that nothing happens to costs. The figures are printed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.conftest import Database
from tests.pipeline.capturing import wait_for
from tests.pipeline.running import QUICK, catch_up, in_source, settings_for
from tests.pipeline.sessions import held_sessions
from tests.pipeline.test_pipeline import in_lake
from walflow.model import Phase
from walflow.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

LARGE = 4
SOME = 16
BATCHES = 5
WINDOWS = 3
WAIT = 600


@pytest.fixture(params=[40, pytest.param(300, marks=pytest.mark.long)])
def tables(request: pytest.FixtureRequest, database: Database) -> list[str]:
    """A few large tables, some with rows, and most of them empty."""
    names = [f"t{number:03}" for number in range(request.param)]
    database.execute(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in names),
        *(
            f"INSERT INTO {name} SELECT i, repeat('x', 100) FROM generate_series(1, 50000) i"
            for name in names[:LARGE]
        ),
        *(f"INSERT INTO {name} VALUES (1, 'one')" for name in names[LARGE : LARGE + SOME]),
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    return names


class Connections:
    """How many sessions the pipeline has on the source, at most, by what they are for."""

    def __init__(self) -> None:
        self.most: dict[str, int] = {}

    @contextmanager
    def counted(self, database: Database) -> Iterator[None]:
        over = threading.Event()
        counter = threading.Thread(target=self._count, args=(database, over))
        counter.start()
        try:
            yield
        finally:
            over.set()
            counter.join()

    def _count(self, database: Database, over: threading.Event) -> None:
        while not over.wait(0.1):
            held = Counter(held_sessions(database, "walflow test%"))
            for name, count in {"all": held.total(), **held}.items():
                self.most[name] = max(count, self.most.get(name, 0))


def test_many_tables(
    spark: SparkSession,
    database: Database,
    tables: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = settings_for(database, tmp_path, copy__range_bytes=1 << 20, max_copy_connections=3)
    connections = Connections()
    began = time.monotonic()
    pipeline = Pipeline(settings, spark=spark, timing=QUICK)
    with connections.counted(database):
        pipeline.start()
        try:
            wait_for(lambda: ready(pipeline) == len(tables), WAIT)
            seconds = time.monotonic() - began
            cost = idle_cost(pipeline, database, tables)
            catch_up(pipeline)
        finally:
            pipeline.shutdown()
    show(
        capsys,
        f"{len(tables)} tables were ready after {seconds:.1f} s; connections at most: "
        f"{connections.most}; an idle table costs {cost * 1e6:.1f} µs of CPU a turn",
    )
    assert cost < 1e-3
    assert connections.most["walflow test copy"] <= 3
    assert connections.most["all"] <= 12
    for name in (*tables[: LARGE + SOME], tables[-1]):
        assert in_lake(spark, settings, name) == in_source(database, name)
    # Another start takes up what is known: no table goes through its phases again.
    began, restarted = time.monotonic(), time.time()
    with Pipeline(settings, spark=spark, timing=QUICK) as again:
        catch_up(again)
        show(capsys, f"started again and caught up in {time.monotonic() - began:.1f} s")
        assert ready(again) == len(tables)
        assert all(state.since < restarted for state in again.status().tables)


def show(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with capsys.disabled():
        print(f"\n{text}")


def ready(pipeline: Pipeline) -> int:
    pipeline.check()
    return sum(state.phase is Phase.READY for state in pipeline.status().tables)


def idle_cost(pipeline: Pipeline, database: Database, tables: list[str]) -> float:
    """CPU seconds of the coordinating thread, a turn and idle table, while one table is busy."""
    costs = []
    for window in range(WINDOWS):
        before = coordinating_cpu()
        for number in range(window * BATCHES, (window + 1) * BATCHES):
            database.execute(f"INSERT INTO {tables[-1]} VALUES ({number}, 'busy')")
            catch_up(pipeline)
        costs.append((coordinating_cpu() - before) / BATCHES / (len(tables) - 1))
    # On a busy machine a window costs more than it needs, and none costs less.
    return min(costs)


def coordinating_cpu() -> float:
    [native] = {t.native_id for t in threading.enumerate() if t.name == "walflow-coordinate"}
    used = next(thread for thread in psutil.Process().threads() if thread.id == native)
    return float(used.user_time + used.system_time)
