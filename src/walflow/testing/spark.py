"""A Spark session for tests: ``pytest_plugins = ["walflow.testing.spark"]``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from walflow.config import SparkSettings
from walflow.spark.java import QUICK_START
from walflow.spark.session import make_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Local Spark without jars. It is started at its first use and ended with the run."""
    # Tests are short: half the start-up for some of the speed.
    conf = {"spark.driver.extraJavaOptions": QUICK_START}
    session = make_session(SparkSettings(master="local[2]", driver_memory="1g", conf=conf))
    yield session
    stop_session(session)
