"""Whole runs whose executors are outside the command: on a cluster, behind Spark Connect."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.cli.commands import ended, new_room, wait_for_line
from tests.conftest import Database
from tests.destinations.reference import reading_session
from tests.spark.clusters import ConnectServer, StandaloneCluster, written
from walflow.demo.compare import compare_table
from walflow.model import TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS = 20_000


def fill(database: Database) -> None:
    """A table of many ranges, and one without a key."""
    database.execute(
        "CREATE TABLE large (id bigint PRIMARY KEY, body text NOT NULL, note text)",
        f"INSERT INTO large SELECT n, repeat(md5(n::text), 3) FROM generate_series(1, {ROWS}) n",
        # Large values out of line: an update that leaves one alone does not send it.
        "ALTER TABLE large ALTER note SET STORAGE EXTERNAL",
        "UPDATE large SET note = repeat('x', 5000) WHERE id <= 5",
        "CREATE TABLE keyless (a int, b text)",
        "ALTER TABLE keyless REPLICA IDENTITY FULL",
        "INSERT INTO keyless SELECT n % 10, 'b' FROM generate_series(1, 100) n",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )


def change(database: Database) -> None:
    database.execute(
        f"INSERT INTO large SELECT n, 'new' FROM generate_series({ROWS + 1}, {ROWS + 100}) n",
        "UPDATE large SET body = 'changed' WHERE id <= 3 OR id % 50 = 0",
        "UPDATE large SET id = -id WHERE id IN (4, 100)",
        "DELETE FROM large WHERE id % 70 = 0",
        "DELETE FROM keyless WHERE ctid IN (SELECT ctid FROM keyless WHERE a = 3 LIMIT 4)",
        "INSERT INTO keyless VALUES (3, 'c'), (3, 'c'), (NULL, NULL)",
    )


@pytest.fixture(params=["cluster", "connect_server"])
def server(request: pytest.FixtureRequest) -> StandaloneCluster | ConnectServer:
    found: StandaloneCluster | ConnectServer = request.getfixturevalue(request.param)
    return found


def test_a_run_ends_equal(
    server: StandaloneCluster | ConnectServer, database: Database, spark: SparkSession
) -> None:
    fill(database)
    before = executors_of(server)
    with new_room() as room:
        lake = room.path / "lake"
        file = room.path / "settings.yaml"
        file.write_text(
            yaml.safe_dump(
                {
                    "name": "shop",
                    "source": {"uri": database.uri, "slot": f"{database.name}_slot"},
                    "destination": {"uri": f"iceberg://{lake}"},
                    "log": {"folder": str(room.path / "log")},
                    "copy": {"range_bytes": 64 << 10},
                    "spark": written(server.settings),
                }
            )
        )
        # So that what is changed meanwhile is surely part of what is caught up with.
        room.failpoints = "sync.finished_copy=sleep:4"
        with ended(room.start("run", file, "--until-caught-up")) as process:
            wait_for_line(process, "made the slot")
            change(database)
            _, printed = process.communicate(timeout=240)
        assert process.returncode == 0, printed
        assert "Traceback" not in printed
        assert room.processes_after(20) == []

        session = reading_session(spark, lake)
        with database.connect() as connection:
            large = compare_table(connection, session, TableName("public", "large"))
        assert large.equal, (large, printed)
        keyless = session.table("lake.public.keyless").select("a", "b")
        stored = [tuple(row) for row in keyless.collect()]
        assert Counter(stored) == Counter(database.execute("SELECT a, b FROM keyless"))
    if isinstance(server, StandaloneCluster):
        logs = [place / "stderr" for place in executors_of(server) - before]
        assert {log.parents[2].name for log in logs} == {"one", "two"}
        assert all("Finished task" in log.read_text() for log in logs)


def executors_of(server: StandaloneCluster | ConnectServer) -> set[Path]:
    """The folder of each executor that a worker of the cluster has run."""
    return {place for name in ("one", "two") for place in server.folder.glob(f"{name}/app-*/*")}
