"""A catalog that is named wrongly, cannot be reached, or lets nothing be written: found at the
start, before anything is copied; and one that goes away later, which is waited for."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from tests.conftest import Database
from tests.pipeline.capturing import wait_for
from tests.pipeline.following import wait_phase
from tests.pipeline.running import WAIT, running, settings_for
from tests.spark.rest_catalog import serving_catalog
from tests.spark.test_catalogs import jdbc as jdbc
from walflow.errors import ConfigError, DestinationError
from walflow.model import Phase
from walflow.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def nobodys_port() -> Iterator[int]:
    """Refuses every connection: it is taken, so that nobody else gets it, and not listened on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def start(database: Database, folder: Path, spark: SparkSession, **overrides: Any) -> None:
    """Which is to fail."""
    pipeline = Pipeline(settings_for(database, folder, **overrides), spark=spark)
    try:
        pipeline.start()
    finally:
        pipeline.shutdown()


def nothing_made(database: Database, folder: Path) -> bool:
    made = database.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    )
    return made == [(0,)] and not (folder / "log").exists() and not (folder / "lake").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"type": "unknwon"}, r"destination.options.type is 'unknwon', .*rest, glue"),
        ({"type": "hadop"}, r"did you mean hadoop\?"),
        ({"type": "rest"}, "has no uri, where the catalog of type rest is"),
        ({"type": "jdbc"}, "has no uri"),
        ({"type": "rest", "uri": "http://x", "catalog-impl": "x.Y"}, "type and catalog-impl"),
    ],
)
def test_options_that_cannot_be_right(
    database: Database, tmp_path: Path, options: dict[str, str], told: str
) -> None:
    # No session and no table: neither Spark nor the source is asked.
    with pytest.raises(ConfigError, match=told):
        Pipeline(settings_for(database, tmp_path, destination__options=options)).start()
    assert nothing_made(database, tmp_path)


def test_catalogs_that_cannot_be_used(
    database: Database, tmp_path: Path, spark: SparkSession, nobodys_port: int
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION walflow FOR TABLE t"
    )
    (tmp_path / "file").touch()
    closed = {"type": "hadoop", "warehouse": f"{tmp_path}/file/lake"}
    address = f"http://127.0.0.1:{nobodys_port}"
    cases: list[tuple[dict[str, str], str, bool]] = [
        (
            {"type": "rest", "uri": address},
            f"{re.escape(address)} failed: Connection refused",
            True,
        ),
        ({"catalog-impl": "org.example.Nothing"}, "org.example.Nothing", False),
        ({"io-impl": "org.example.NoFiles"}, "org.example.NoFiles", False),
        (closed, f"not a directory: {tmp_path}/file", False),
    ]
    for options, told, retry in cases:
        with pytest.raises(DestinationError, match=told) as refused:
            start(database, tmp_path, spark, destination__options=options)
        assert refused.value.retry is retry, options
        assert "destination.options" in refused.value.hint
        assert nothing_made(database, tmp_path), options
    options = {"catalog": "nowhere"}
    with pytest.raises(DestinationError, match="nowhere"):
        start(
            database,
            tmp_path,
            spark,
            destination__uri=f"delta://{tmp_path}/lake",
            destination__options=options,
        )
    assert nothing_made(database, tmp_path)


def test_a_catalog_that_goes_away_later_is_waited_for(
    database: Database, tmp_path: Path, spark: SparkSession, jdbc: Mapping[str, str]
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION walflow FOR TABLE t",
    )
    served = {**jdbc, "warehouse": f"{tmp_path}/warehouse", "unique-table-location": "true"}
    with serving_catalog(spark, served) as address:
        options = {"type": "rest", "uri": address}
        settings = settings_for(database, tmp_path, destination__options=options)
        with running(settings, spark) as pipeline:
            wait_phase(pipeline, "t", Phase.READY)
    database.execute("INSERT INTO t VALUES (2)")
    with capture_logs() as logs, running(settings, spark, caught_up=False) as pipeline:
        position = pipeline.source_position()

        def check() -> None:
            pipeline.check()
            assert not pipeline._end.asked.is_set()

        # What the source has goes on coming into the log.
        wait_for(lambda: pipeline._log.end >= position, WAIT, "all is in the log", check)
    told = [line for line in logs if line["event"].startswith("the catalog does not answer")]
    assert len(told) == 1
    assert address in str(told[0]["error"])
