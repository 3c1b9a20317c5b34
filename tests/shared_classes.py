"""What Spark's JVMs have in common: most of a start is the loading of the same classes.

Tests start about ninety of them. Those of one run share an archive in a folder of the run's own,
made as walflow makes one for its users.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from walflow.destinations.class_archive import archived_by
from walflow.spark.java import QUICK_START

__all__ = ["archive_classes"]

_SUBMIT = "SPARK_SUBMIT_OPTS"
_SECONDS = 600


def archive_classes(folder: Path) -> None:
    """Let all JVMs that Spark's scripts start from here on share an archive in the folder. Without
    one (not every Java can make it) they start as ever."""
    archive = folder / "classes.jsa"
    made = subprocess.run(
        [sys.executable, *archived_by()],
        env=os.environ | {_SUBMIT: QUICK_START, "WALFLOW_CLASS_ARCHIVE": str(archive)},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if made.returncode or not archive.exists():
        print(f"JVMs share no classes (exit code {made.returncode}): {made.stderr[-500:]}")
        return
    options = os.environ.get(_SUBMIT, "")
    os.environ[_SUBMIT] = f"{options} -XX:SharedArchiveFile={archive} -Xlog:cds=off"
