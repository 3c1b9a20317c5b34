"""A Spark session of the user's own: its Python is looked at, and no job of ours stays in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Database

PROGRAM = """
import json, os, sys, threading, time
from pathlib import Path

from pyspark.sql import SparkSession
from walflow import Pipeline, WalflowError
from walflow.destinations import iceberg
from walflow.spark.jars import ICEBERG, find_jars
from walflow.spark.java import find_java

folder, uri, slot = sys.argv[1:]
os.environ["JAVA_HOME"] = str(find_java().home)
os.environ["PYSPARK_PYTHON"] = "/nowhere/python3"
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.memory", "1g")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.jars", ",".join(map(str, find_jars([ICEBERG]))))
    .config("spark.sql.extensions", iceberg.EXTENSIONS)
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
config = {
    "source.uri": uri,
    "source.slot": slot,
    "destination.uri": f"iceberg://{folder}/lake",
    "log.folder": f"{folder}/log",
}

def left():
    threads = [one.name for one in threading.enumerate() if one.name.startswith("walflow")]
    # Spark notes the end of a job in a thread of its own, some time after it.
    tracker, deadline = spark.sparkContext.statusTracker(), time.monotonic() + 60
    while (jobs := list(tracker.getActiveJobsIds())) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [threads, jobs]

found = {}
try:
    with Pipeline(config, spark=spark):
        found["refused"] = None
except WalflowError as error:
    found["refused"] = [error.code, error.message, error.hint]
found["made"] = os.path.exists(f"{folder}/log")

# As in an environment that is not activated: nobody has said which Python, and python3 is another.
del os.environ["PYSPARK_PYTHON"]
spark.sparkContext.pythonExec = "python3"
with Pipeline(config, spark=spark):
    pass
found["left at once"] = left()
with Pipeline(config, spark=spark) as pipeline:
    pipeline.wait(until_caught_up=True)
found["left"] = left()
files = [str(file) for file in Path(folder, "lake", "public").glob("t*/**/*.parquet")]
found["rows"] = [row["id"] for row in spark.read.parquet(*files).collect()]
spark.stop()
print(json.dumps(found))
"""


@pytest.mark.spark
def test_without_an_activated_environment(database: Database, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (7)",
        "CREATE PUBLICATION walflow FOR TABLE t",
    )
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho this is another Python >&2; exit 1\n")
    other.chmod(0o755)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "SPARK_", "VIRTUAL_ENV"))
    }
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), database.uri, f"slot_{database.name}"],
        env=environment | {"PATH": f"{other.parent}:/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    code, message, hint = found["refused"]
    assert code == "SparkError"
    assert "executors cannot run walflow" in message
    assert "/nowhere/python3" in message
    assert "PYSPARK_PYTHON" in hint
    assert not found["made"]
    assert found["left at once"] == [[], []]
    assert found["left"] == [[], []]
    assert found["rows"] == [7]
    assert "Traceback" not in ran.stderr
