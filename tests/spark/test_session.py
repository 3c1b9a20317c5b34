"""The session: quiet, as set, and gone when stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from walflow.spark.session import jvm_ended_error

PROGRAM = """
import json, sys, os
import walflow.spark.session as sessions
assert "pyspark" not in sys.modules, "imported before it is needed"
from walflow.config import SparkSettings
from walflow.errors import SparkError

def children():
    import psutil
    return [p.pid for p in psutil.Process().children(recursive=True)]

settings = SparkSettings(master="local[2]", driver_memory="512m",
                         conf={"spark.sql.shuffle.partitions": "3"})
spark = sessions.make_session(settings)
try:
    sessions.make_session(settings)
except SparkError as error:
    second = str(error)
def same(batches):
    import sys
    for batch in batches:
        yield batch
count = len(spark.range(5).mapInArrow(same, "id long").collect())
found = {
    "second": second,
    "count": count,
    "running": children(),
    "time zone": spark.conf.get("spark.sql.session.timeZone"),
    "case": spark.conf.get("spark.sql.caseSensitive"),
    "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
    "java home": os.environ.get("JAVA_HOME"),
}
sessions.stop_session(spark)
sessions.stop_session(spark)
found["left"] = children()
spark = sessions.make_session(settings)
found["again"] = spark.range(3).count()
# The last one is left to the end of the process.
print(json.dumps(found))
"""


@pytest.mark.spark
def test_a_session_from_start_to_end(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert ran.stderr == ""
    assert "already" in found["second"]
    assert found["count"] == 5
    assert (found["time zone"], found["case"], found["partitions"]) == ("UTC", "true", "3")
    assert found["java home"] == os.environ.get("JAVA_HOME")
    assert found["running"]
    assert found["left"] == []
    assert found["again"] == 3
    # Python's workers end by themselves when they hear no more from the JVM.
    deadline = time.monotonic() + 60
    while any(map(psutil.pid_exists, found["running"])):
        assert time.monotonic() < deadline, found["running"]
        time.sleep(0.1)
    assert not list(tmp_path.glob("walflow-spark-*"))


@pytest.mark.spark
def test_a_jvm_that_does_not_start_says_why() -> None:
    program = (
        "from walflow.spark.session import *; from walflow.config import SparkSettings;"
        "make_session(SparkSettings(driver_memory='512m',"
        " conf={'spark.driver.extraJavaOptions': '-XX:MaxDirectMemorySize=nonsense'}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=400, check=False
    )
    message, hint = ran.stderr.strip().splitlines()[-2:]
    assert message.startswith("walflow.errors.SparkError: the JVM did not start")
    assert "MaxDirectMemorySize" in message
    assert hint.startswith("What to do: Run again with --debug")


SECRET = "hunter2hunter2"
SECRET_AND_DEATH = f"""
import json
import threading
import time
import psutil
import walflow.spark.session as sessions
from walflow.config import SparkSettings

settings = SparkSettings(master="local[1]", driver_memory="512m",
                         conf={{"spark.hadoop.fs.s3a.secret.key": {SECRET!r}}})
spark = sessions.make_session(settings)
(jvm,) = psutil.Process().children()
hadoop = spark.sparkContext._jsc.hadoopConfiguration()
found = {{
    "command": jvm.cmdline(),
    "secret": hadoop.get("fs.s3a.secret.key"),
    "running": sessions.jvm_ended(),
}}
# It dies in the middle of a call, and with a connection to PySpark's server of accumulators.
found["python"] = spark.sparkContext.parallelize([1, 2]).count()
java, broken = spark.sparkContext._jvm.java.lang, []
def call():
    java.System.setProperty("called", "yes")
    try:
        java.Thread.sleep(600_000)
    except Exception as error:
        broken.append(type(error).__name__)
calling = threading.Thread(target=call)
calling.start()
while java.System.getProperty("called") is None:
    time.sleep(0.01)
jvm.kill()
found["ended"] = sessions.jvm_ended(60)
calling.join()
found["broken"] = len(broken)
sessions.stop_session(spark)
found["stopped"] = sessions.jvm_ended()
spark = sessions.make_session(settings)
found["again"] = spark.range(3).count()
sessions.stop_session(spark)
print(json.dumps(found))
"""


@pytest.mark.spark
def test_secrets_stay_off_the_command_line_and_a_dead_jvm_is_told(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", SECRET_AND_DEATH],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    found = json.loads(ran.stdout)
    command = " ".join(found["command"])
    assert "spark.driver.memory=512m" in command
    assert SECRET not in command
    assert found["secret"] == SECRET
    assert (found["running"], found["ended"], found["stopped"]) == (None, -9, None)
    assert (found["python"], found["broken"], found["again"]) == (2, 1, 3)
    assert not list(tmp_path.glob("walflow-spark-*"))


@pytest.mark.parametrize(
    ("code", "message", "hint"),
    [
        (3, "the JVM had too little memory and ended (exit code 3)", "Raise spark.driver_memory"),
        (-9, "the JVM was killed (signal 9)", "A user did that, or the kernel"),
        (137, "the JVM was killed (signal 9)", "A user did that, or the kernel"),
        (143, "the JVM was told to end (signal 15)", "Start again"),
        (-11, "the JVM crashed (signal 11)", "hs_err_pid"),
        (1, "the JVM ended (exit code 1)", "--debug"),
    ],
)
def test_of_a_jvm_that_ended_is_said_what_is_known(code: int, message: str, hint: str) -> None:
    error = jvm_ended_error(code)
    assert error.message == message
    assert hint in error.hint
