"""The one Spark session of a test run, and Spark outside its process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.spark.clusters import ConnectServer, StandaloneCluster
from walflow.config import SparkSettings
from walflow.destinations import delta, iceberg
from walflow.spark.jars import DELTA, ICEBERG
from walflow.spark.session import make_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LITTLE_DATA = {
    # Where there are few rows, to write and compile code for a query costs more than to run it:
    # a third of a batch's work. Commands that tests start have what users have.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # So is to fill a page of 32 MB with zeros for each sort of a few rows, and to let a collector
    # mark what lives beside the tests. Both together are an eighth of the work.
    "spark.buffer.pageSize": "1m",
    "spark.driver.extraJavaOptions": "-XX:-UseG1GC -XX:+UseParallelGC",
}


def pytest_configure(config: pytest.Config) -> None:
    # PySpark leaves the socket of each collect() to the garbage collector.
    config.addinivalue_line(
        "filterwarnings", r"ignore:unclosed <socket.socket fd=\d+, family=1,:ResourceWarning"
    )


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Local Spark with Iceberg and Delta, started when first asked for and ended with the run."""
    settings = SparkSettings(
        master="local[2]",
        # In half of it, the garbage of all tests would be collected for a seventh of their time.
        driver_memory=os.environ.get("WALFLOW_TEST_DRIVER_MEMORY", "2g"),
        conf=LITTLE_DATA,
    )
    extensions = f"{iceberg.EXTENSIONS},{delta.EXTENSIONS}"
    session = make_session(settings, [ICEBERG, DELTA], {"spark.sql.extensions": extensions})
    yield session
    stop_session(session)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """Two workers, for programs that a test starts: a process has one session."""
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """A Spark Connect server, for programs that a test starts."""
    with ConnectServer(tmp_path_factory.mktemp("connect")) as running:
        yield running
