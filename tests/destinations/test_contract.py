"""Every destination that walflow brings keeps the contract of destinations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.destinations.conftest import OWNER
from tests.destinations.http_server import HttpTables
from tests.destinations.pairs import delta_lake, delta_rows
from tests.destinations.reference import iceberg_lake, reading_session, stored_rows
from walflow.destinations.delta import DeltaFormat
from walflow.destinations.http import HttpDestination, HttpOptions
from walflow.destinations.lake import LakeDestination
from walflow.destinations.lake.sessions import lake_session
from walflow.testing.destinations import DestinationContract, ReadRows, Reopen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

HTTP_OPTIONS = HttpOptions(secret="s3cret", token="t0ken", batch_rows=4, retry_attempts=0)


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contract")


class TestIceberg(DestinationContract):
    keeps_exact = True

    @pytest.fixture
    def destination(self, spark: SparkSession, warehouse: Path) -> Iterator[LakeDestination]:
        destination = iceberg_lake(spark, warehouse / "iceberg", OWNER)
        yield destination
        destination.shutdown()

    @pytest.fixture
    def reopen(self, spark: SparkSession, warehouse: Path) -> Iterator[Reopen]:
        with ExitStack() as opened:

            def another() -> LakeDestination:
                destination = iceberg_lake(spark, warehouse / "iceberg", OWNER)
                opened.callback(destination.shutdown)
                return destination

            yield another

    @pytest.fixture
    def read_rows(self, spark: SparkSession, warehouse: Path) -> ReadRows:
        session = reading_session(spark, warehouse / "iceberg")
        return lambda table: stored_rows(session, table)


@pytest.mark.long
class TestDelta(DestinationContract):
    keeps_exact = True

    @pytest.fixture
    def destination(self, spark: SparkSession, warehouse: Path) -> Iterator[LakeDestination]:
        destination = delta_lake(spark, warehouse / "delta", OWNER)
        yield destination
        destination.shutdown()

    @pytest.fixture
    def reopen(self, spark: SparkSession, warehouse: Path) -> Iterator[Reopen]:
        with ExitStack() as opened:

            def another() -> LakeDestination:
                destination = delta_lake(spark, warehouse / "delta", OWNER)
                opened.callback(destination.shutdown)
                return destination

            yield another

    @pytest.fixture
    def read_rows(self, spark: SparkSession, warehouse: Path) -> ReadRows:
        folder = warehouse / "delta"
        session = lake_session(spark, DeltaFormat(str(folder)).session_conf)
        return lambda table: delta_rows(session, folder, table)


class TestHttp(DestinationContract):
    keeps_exact = True

    @pytest.fixture
    def service(self) -> Iterator[HttpTables]:
        with HttpTables(secret="s3cret", token="t0ken") as service:
            yield service

    @pytest.fixture
    def destination(self, service: HttpTables) -> Iterator[HttpDestination]:
        destination = HttpDestination(service.uri, HTTP_OPTIONS)
        yield destination
        destination.shutdown()

    @pytest.fixture
    def reopen(self, service: HttpTables) -> Iterator[Reopen]:
        with ExitStack() as opened:

            def another() -> HttpDestination:
                destination = HttpDestination(service.uri, HTTP_OPTIONS)
                opened.callback(destination.shutdown)
                return destination

            yield another

    @pytest.fixture
    def read_rows(self, service: HttpTables) -> ReadRows:
        return service.rows_of
