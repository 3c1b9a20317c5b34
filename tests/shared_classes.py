"""What Spark's JVMs have in common: most of a start is the loading of the same classes.

Java can write down what it made of them (a class data archive), and map it into later JVMs: a start
then takes half the work, and tests start about ninety.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["archive_classes"]

_SUBMIT = "SPARK_SUBMIT_OPTS"
_SECONDS = 300

_START_ONCE = f"""\
from walflow.config import SparkSettings
from walflow.spark import driver
from walflow.spark.session import make_session, stop_session

driver._STOP_SECONDS = {_SECONDS}  # it is written when the JVM ends
session = make_session(SparkSettings(master="local[2]"))
session.range(10).selectExpr("id % 3 AS k").groupBy("k").count().collect()
stop_session(session)
"""


def archive_classes(folder: Path) -> None:
    """Let all JVMs that Spark's scripts start from here on share an archive in the folder. Without
    one (not every Java can make it) they start as ever."""
    options = os.environ.get(_SUBMIT, "")
    archive = folder / "classes.jsa"
    environment = os.environ | {_SUBMIT: f"{options} -XX:ArchiveClassesAtExit={archive}"}
    started = subprocess.run(
        [sys.executable, "-c", _START_ONCE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * _SECONDS,
        check=False,
    )
    if started.returncode or not archive.exists():
        print(f"JVMs share no classes (exit code {started.returncode}): {started.stderr[-500:]}")
        return
    os.environ[_SUBMIT] = f"{options} -XX:SharedArchiveFile={archive} -Xlog:cds=off"
