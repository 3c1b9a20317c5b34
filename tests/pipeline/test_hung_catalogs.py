"""A catalog that takes connections and never answers: nothing waits for it for ever."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from structlog.testing import capture_logs

from tests.conftest import Database
from tests.pipeline.capturing import wait_for
from tests.pipeline.following import wait_phase
from tests.pipeline.running import HOLD, QUICK, WAIT, running, settings_for
from walflow.destinations.iceberg import catalog_conf, format
from walflow.model import Phase
from walflow.pipeline.pipeline import Pipeline
from walflow.spark.jobs import BackgroundJobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT = "rest.client.socket-timeout-ms"


@contextmanager
def hanging_server() -> Iterator[tuple[str, threading.Event]]:
    """Gives its address, and what is set when somebody waits for an answer. Who does is told at the
    end that nobody is there any more."""
    asked, accepted = threading.Event(), list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    accepted.append(server.accept()[0])
                except OSError:
                    return
                asked.set()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}", asked
        finally:
            # It does not wake up who accepts to close it.
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in accepted:
                connection.close()


def test_requests_to_a_rest_catalog_end_unless_told_otherwise() -> None:
    prefix = "spark.sql.catalog.lake."
    for kind in ({"type": "rest"}, {"catalog-impl": "org.apache.iceberg.rest.RESTCatalog"}):
        assert int(catalog_conf("/lake", {**kind, "uri": "http://c"})[prefix + TIMEOUT]) > 0
        said = catalog_conf("/lake", {**kind, "uri": "http://c", TIMEOUT: "7"})
        assert said[prefix + TIMEOUT] == "7"
    assert prefix + TIMEOUT not in catalog_conf("/lake", {})


@pytest.mark.spark
def test_a_pipeline_that_has_begun_receives_meanwhile(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION walflow FOR TABLE t",
    )
    with running(settings_for(database, tmp_path), spark) as pipeline:
        wait_phase(pipeline, "t", Phase.READY)
    database.execute("INSERT INTO t VALUES (2)")
    with hanging_server() as (address, asked), capture_logs() as logs:
        options = {"type": "rest", "uri": address, TIMEOUT: "3600000"}
        settings = settings_for(database, tmp_path, destination__options=options)
        pipeline = Pipeline(settings, spark=spark, timing=replace(QUICK, catalog=0.1))
        starting = threading.Thread(target=pipeline.start)
        starting.start()
        try:
            wait_for(lambda: pipeline.stage == "running", WAIT, "it starts")
            position = pipeline.source_position()
            wait_for(lambda: pipeline._log.end >= position, WAIT, check=pipeline.check)
            assert asked.wait(WAIT)
        finally:
            pipeline.stop()
    # What the catalog was asked for ends, at the latest by the requests' own limit.
    starting.join(WAIT)
    ending = threading.Thread(target=pipeline.shutdown)
    ending.start()
    ending.join(WAIT)
    assert not ending.is_alive()
    told = [line for line in logs if line["event"].startswith("the catalog does not answer")]
    assert [str(line["error"]) for line in told] == ["it has not answered for 0.1 seconds"]


class Door:
    """A lock that tells how many have come to it."""

    def __init__(self) -> None:
        self.came = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.came += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_who_waited_for_an_answer_in_vain_does_not_wait_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the tables' threads would wait one after the other, each for as long."""
    asked, hung, told = list[object](), threading.Event(), list[str]()

    def open_bridge(*arguments: object) -> None:
        asked.append(arguments)
        assert hung.wait(WAIT)
        raise OSError("Read timed out")

    monkeypatch.setattr(format, "open_bridge", open_bridge)
    catalog, door = format.IcebergFormat(str(tmp_path)), Door()
    catalog._opening = door  # type: ignore[assignment]

    def ask() -> None:
        try:
            catalog.opened(cast("SparkSession", None))
        except OSError as error:
            told.append(str(error))

    asking = [threading.Thread(target=ask) for _ in range(3)]
    for thread in asking:
        thread.start()
    wait_for(lambda: door.came == 3, WAIT)
    hung.set()
    for thread in asking:
        thread.join(WAIT)
    assert (told, len(asked)) == (["Read timed out"] * 3, 1)
    # Who comes later asks anew.
    ask()
    assert len(asked) == 2


@pytest.mark.spark
def test_the_end_does_not_wait_for_ever_for_what_is_no_job(spark: SparkSession) -> None:
    held = threading.Event()

    def hold() -> None:
        held.wait(HOLD)

    jobs = BackgroundJobs(spark, "held", hold)
    began = time.monotonic()
    jobs.end(0.5)
    assert time.monotonic() - began < WAIT
    held.set()
    jobs.end(WAIT)
    assert not jobs._thread.is_alive()
