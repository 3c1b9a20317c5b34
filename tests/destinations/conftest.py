"""Destinations on a warehouse of the test's own, and a source with something of everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.destinations.reference import Source, iceberg_lake, one_of_each
from walflow.destinations.lake import LakeDestination, Owner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWNER = Owner("shop", "7300000000000000001", 1)


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"


@pytest.fixture
def destination(spark: SparkSession, warehouse: Path) -> Iterator[LakeDestination]:
    destination = iceberg_lake(spark, warehouse, OWNER)
    yield destination
    destination.shutdown()


@pytest.fixture(params=["bridge", "sql"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With Iceberg's own API, and by SQL alone, as where there is no bridge to the JVM."""
    way: str = request.param
    if way == "sql":
        monkeypatch.setattr("walflow.destinations.iceberg.format.open_bridge", lambda *_: None)
    return way


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return one_of_each(tmp_path)
