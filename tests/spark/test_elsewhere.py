"""Executors outside the process: on a standalone cluster, and behind a Spark Connect server; what
sessions there can do, and whole runs. In one file, so that each of the servers is started once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.cli.commands import Room, ended, new_room, wait_for_line
from tests.conftest import Database
from tests.lake.equality import Lake, Sought, assert_equal
from tests.spark.clusters import ConnectServer, StandaloneCluster, written
from walflow.config import Settings, SparkSettings
from walflow.destinations import delta, iceberg
from walflow.spark.conf import driver_conf, master_addresses
from walflow.spark.java import Java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 20_000
ROOT = Path(__file__).parents[2]


def run_program(*arguments: str) -> Any:
    """What a quiet program prints as JSON."""
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    return json.loads(ran.stdout)


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.long) for name in ("cluster", "connect_server")],
)
def server(request: pytest.FixtureRequest) -> StandaloneCluster | ConnectServer:
    found: StandaloneCluster | ConnectServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def found(
    server: StandaloneCluster | ConnectServer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What tests/spark/elsewhere.py saw there; a text in place of a result is its traceback."""
    folder = tmp_path_factory.mktemp("work")
    settings = json.dumps(written(server.settings))
    result: dict[str, Any] = run_program("-m", "tests.spark.elsewhere", settings, str(folder))
    return result


@pytest.mark.spark
def test_sessions_have_our_settings(found: dict[str, Any]) -> None:
    assert found["case"] == "true"
    assert found["child"] == ["true", "3", "true", "2"]
    assert found["cores"] == 2


@pytest.mark.spark
def test_executors_run_walflow_all_at_once(
    server: StandaloneCluster | ConnectServer, found: dict[str, Any]
) -> None:
    rows = found["run_walflow"]
    assert sorted(row["lsn"] for row in rows) == ["0/0", "0/1"], rows
    places = {Path(row["place"]).relative_to(server.folder).parts[0] for row in rows}
    assert places == ({"one", "two"} if isinstance(server, StandaloneCluster) else {"scratch"})


@pytest.mark.spark
def test_cancelling_a_tag_ends_its_jobs_only(found: dict[str, Any]) -> None:
    ends = found["cancel_one_of_two"]
    assert ends["one"].startswith("failed:"), ends
    assert "cancel" in ends["one"].lower()
    assert ends["worker ended"]
    assert ends["still running"]
    assert ends["other"] == "finished"


@pytest.mark.spark
def test_a_cluster_without_free_executors_is_told(found: dict[str, Any]) -> None:
    assert found["lack_executors"]["message"] == "no executor has taken up a task within 1 s"
    assert "workers with free cores" in found["lack_executors"]["hint"]


@pytest.mark.spark
def test_tables_are_kept_without_a_bridge_to_the_jvm(
    server: StandaloneCluster | ConnectServer, found: dict[str, Any]
) -> None:
    expected = "equal" if isinstance(server, ConnectServer) else None
    assert found.get("keep_tables") == expected, found["keep_tables"]


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


def write_settings(
    room: Room,
    database: Database,
    server: StandaloneCluster | ConnectServer,
    format: str,
    range_bytes: int = 64 << 10,
) -> Path:
    file = room.path / "settings.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "name": "shop",
                "source": {"uri": database.uri, "slot": f"{database.name}_slot"},
                "destination": {"uri": f"{format}://{room.path / 'lake'}"},
                "log": {"folder": str(room.path / "log")},
                "copy": {"range_bytes": range_bytes},
                "spark": written(server.settings),
            }
        )
    )
    return file


def check_equal(database: Database, spark: SparkSession, file: Path) -> None:
    lake = Lake(spark, Settings.model_validate(yaml.safe_load(file.read_text())))
    assert_equal(database, lake, [Sought("large"), Sought("keyless")])


@pytest.mark.spark
def test_a_run_ends_equal(
    server: StandaloneCluster | ConnectServer, database: Database, spark: SparkSession
) -> None:
    fill(database)
    before = executors_of(server)
    with new_room() as room:
        file = write_settings(room, database, server, "iceberg")
        # What is changed meanwhile is to be part of what is caught up with.
        room.failpoints = "sync.finished_copy[public.large]=hold"
        with ended(room.start("run", file, "--until-caught-up")) as process:
            wait_for_line(process, "made the slot")
            change(database)
            room.go_on.touch()
            _, printed = process.communicate(timeout=400)
        assert process.returncode == 0, printed
        assert "Traceback" not in printed
        assert room.processes_after(60) == []
        check_equal(database, spark, file)
    if isinstance(server, StandaloneCluster):
        # One may have come so late that the other had done all of it.
        logs = [place / "stderr" for place in executors_of(server) - before]
        assert any("Finished task" in log.read_text() for log in logs if log.exists())


@pytest.mark.spark
@pytest.mark.long
def test_delta_tables_of_a_connect_server_end_equal(
    connect_server: ConnectServer, database: Database, spark: SparkSession
) -> None:
    """Copied by one run, followed by the next: no JVM has to start for it."""
    with new_room() as room:
        file = write_settings(room, database, connect_server, "delta", range_bytes=1 << 20)
        for happens in (fill, change):
            happens(database)
            ran = room.run("run", file, "--until-caught-up", seconds=400)
            assert ran.returncode == 0, ran.stderr
            assert "Traceback" not in ran.stderr
        check_equal(database, spark, file)


def executors_of(server: StandaloneCluster | ConnectServer) -> set[Path]:
    """The folder of each executor that a worker of the cluster has run."""
    return {place for name in ("one", "two") for place in server.folder.glob(f"{name}/app-*/*")}


REFUSED = """
import json, sys
from walflow.config import SparkSettings
from walflow.errors import WalflowError
from walflow.spark.jars import DELTA, ICEBERG
from walflow.spark.session import make_session, stop_session

found = []
for hidden, settings, extra in json.loads(sys.argv[1]):
    for name in hidden:
        sys.modules[name] = None
    try:
        make_session(SparkSettings(**settings), [ICEBERG, DELTA], extra)
        found.append(["made", "", ""])
    except WalflowError as error:
        found.append([error.code, error.message, error.hint])
    for name in hidden:
        del sys.modules[name]
print(json.dumps(found))
"""


def refusals(*attempts: tuple[list[str], dict[str, Any], dict[str, str]]) -> list[list[str]]:
    """Code, message and hint of each: modules to hide, Spark settings, conf of a destination."""
    found: list[list[str]] = run_program("-c", REFUSED, json.dumps(attempts))
    return found


def test_an_address_that_is_none() -> None:
    token = "hunter2hunter2"
    no_packages, both, not_sc, no_port, nobody, no_master = refusals(
        (["grpc"], {"remote": "sc://127.0.0.1:1"}, {}),
        ([], {"remote": "sc://127.0.0.1:1", "master": "local[2]", "driver_memory": "1g"}, {}),
        ([], {"remote": "local[2]"}, {}),
        ([], {"remote": f"sc://127.0.0.1:x/;token={token}"}, {}),
        ([], {"remote": f"sc://127.0.0.1:1/;token={token}"}, {}),
        ([], {"master": "spark://127.0.0.1:1,localhost:1"}, {}),
    )
    assert no_packages[0] == "SparkError"
    assert "grpcio" in no_packages[1]
    assert no_packages[2] == "pip install 'walflow[connect]'"
    assert both[0] == "ConfigError"
    assert both[2] == "Leave out spark.remote, or spark.master and spark.driver_memory."
    assert not_sc[0] == no_port[0] == "ConfigError"
    assert "sc://host:15002" in not_sc[2]
    assert nobody[0] == "SparkError"
    assert "127.0.0.1:1 cannot be reached" in nobody[1]
    assert no_master[0] == "SparkError"
    assert "127.0.0.1:1: Connection refused; localhost:1:" in no_master[1]
    assert token not in json.dumps([no_port, nobody])


@pytest.mark.spark
def test_what_a_server_must_be_started_with(connect_server: ConnectServer) -> None:
    remote = {"remote": connect_server.remote}
    unknown = {
        "spark.sql.extensions": "org.example.Extension",
        "spark.sql.catalog.spark_catalog": "org.example.Catalog",
    }
    no_jars, no_extension, no_conf, static = refusals(
        ([], remote, unknown),
        # A class that the server has, but not as an extension.
        ([], remote, {"spark.sql.extensions": "org.apache.iceberg.spark.SparkCatalog"}),
        ([], remote | {"conf": {"spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:1"}}, {}),
        ([], remote | {"conf": {"spark.sql.warehouse.dir": "elsewhere"}}, {}),
    )
    assert no_jars[0] == "JarsMissing"
    assert "the class org.example.Extension" in no_jars[1]
    assert "the class org.example.Catalog" in no_jars[1]
    assert "io.delta:delta-spark_4.1_2.13:4.4.0" in no_jars[2]
    # Those that the server has stay.
    assert f"{iceberg.EXTENSIONS},{delta.EXTENSIONS},org.example.Extension" in no_jars[2]
    assert no_extension[0] == "SparkError"
    assert "--packages" not in no_extension[2]
    assert "--conf spark.sql.extensions=" in no_extension[2]
    assert no_conf[0] == static[0] == "ConfigError"
    assert "spark.hadoop.fs.s3a.endpoint" in no_conf[1]
    assert "spark.sql.warehouse.dir" in static[1]


@pytest.mark.spark
@pytest.mark.long
def test_executors_whose_python_lacks_walflow(cluster: StandaloneCluster, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    settings = cluster.settings.model_dump(exclude_unset=True)
    settings["conf"]["spark.pyspark.python"] = str(bare)
    ((code, message, hint),) = refusals(([], settings, {}))
    assert code == "SparkError"
    assert "executors cannot run walflow: ModuleNotFoundError: No module named" in message
    assert "spark.pyspark.python" in hint


@pytest.mark.parametrize(
    ("master", "loopback"),
    [
        ("local[2]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost", True),
        ("spark://[::1]:7077,127.0.0.2:1", True),
        ("spark://127.0.0.1:7077,10.0.0.1:7077", False),
        ("spark://head:7077", False),
        ("yarn", False),
        ("k8s://https://127.0.0.1:443", False),
    ],
)
def test_only_a_driver_that_nobody_else_calls_is_on_the_loopback_address(
    master: str, loopback: bool, tmp_path: Path
) -> None:
    settings = SparkSettings(
        master=master, conf={"spark.executor.extraJavaOptions": "-Dmine=1", "spark.x": "y"}
    )
    conf = driver_conf(settings, Java(Path("java"), 17), [], {}, tmp_path, False)
    assert (conf.get("spark.driver.host") == "127.0.0.1") is loopback
    assert (conf.get("spark.driver.bindAddress") == "127.0.0.1") is loopback
    options = conf["spark.executor.extraJavaOptions"]
    assert options.endswith("-Dmine=1")
    assert ("-Duser.timezone=UTC" in options) is not master.startswith("local")
    assert conf["spark.x"] == "y"


def test_addresses_of_masters() -> None:
    assert master_addresses("spark://a:1,[::1]:2,b") == [("a", 1), ("::1", 2), ("b", 7077)]
    assert master_addresses("yarn") == []
    assert master_addresses("local[*]") == []
