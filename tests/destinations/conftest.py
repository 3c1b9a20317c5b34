"""Destinations on a warehouse of the test's own, and a source with something of everything."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.destinations.reference import Source, iceberg_lake, one_of_each
from walflow.destinations.lake import LakeDestination, Owner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWNER = Owner("shop", "7300000000000000001", 1)


@pytest.fixture(autouse=True)
def nobody_else_writes() -> None:
    """A pipeline of an earlier test may have ended before its warm-up, which would take the steps
    that a test here counts, or breaks off."""
    for thread in threading.enumerate():
        if thread.name == "walflow-warm-up":
            thread.join()


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "ware house%20#?"


@pytest.fixture
def destination(spark: SparkSession, warehouse: Path) -> Iterator[LakeDestination]:
    destination = iceberg_lake(spark, warehouse, OWNER)
    yield destination
    destination.shutdown()


@pytest.fixture(params=["bridge", pytest.param("sql", marks=pytest.mark.long)])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With Iceberg's own API, and by SQL alone, as where there is no bridge to the JVM."""
    way: str = request.param
    if way == "sql":
        monkeypatch.setattr("walflow.destinations.iceberg.format.open_bridge", lambda *_: None)
    return way


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return one_of_each(tmp_path)


@dataclass(frozen=True, slots=True)
class Metastore:
    folder: Path
    options: Mapping[str, str]


@pytest.fixture(scope="session")
def metastore(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Metastore:
    """Hive's, in this process: a catalog that keeps views, and renames tables.

    One for all tests, which leave it empty: a process has but one, whatever they set. (JDBC's
    catalog does both too, but not with Derby.)
    """
    folder = tmp_path_factory.mktemp("metastore")
    jvm: Any = spark._jvm
    jvm.System.setProperty("derby.stream.error.file", str(folder / "derby.log"))
    options = {
        "type": "hive",
        "hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:{folder / 'derby'};create=true",
        "hadoop.datanucleus.schema.autoCreateAll": "true",
        "hadoop.datanucleus.connectionPoolingType": "NONE",
        "hadoop.hive.metastore.schema.verification": "false",
        "hadoop.iceberg.engine.hive.lock-enabled": "false",
        "hadoop.hive.metastore.warehouse.dir": str(folder / "warehouse"),
        # Else Hive compares a table's new columns to those that were in their places.
        "hadoop.hive.metastore.disallow.incompatible.col.type.changes": "false",
    }
    return Metastore(folder, options)
