"""Whether executors outside this process can do our work: they need Python and walflow."""

from __future__ import annotations

import platform
import re
import threading
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from walflow.errors import SparkError
from walflow.spark.jobs import cancel_jobs, tagged

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["check_executors"]

_TAG = "walflow-check"
# Executors that are started on demand take their time.
_START_SECONDS = 180.0


def check_executors(session: SparkSession, seconds: float = _START_SECONDS) -> None:
    """Run a function of walflow on an executor; SparkError if none comes, or it cannot."""
    found: list[str] = []
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            with tagged(session, _TAG):
                rows = session.range(1, numPartitions=1).mapInArrow(_say_version, "version string")
                found.extend(row["version"] for row in rows.collect())
        except BaseException as error:  # told by the caller's thread
            failed.append(error)

    asking = threading.Thread(target=ask, name="walflow-check", daemon=True)
    asking.start()
    asking.join(seconds)
    if asking.is_alive():
        cancel_jobs(session, _TAG)
        raise SparkError(
            f"no executor has taken up a task within {seconds:.0f} s",
            hint="Check that the cluster has workers with free cores, and at least the memory of "
            "spark.executor.memory (1g, unless spark.conf says otherwise).",
        )
    if failed:
        raise SparkError(
            f"executors cannot run walflow: {_reason(failed[0])}", hint=_hint()
        ) from failed[0]
    if found != [version("walflow")]:
        raise SparkError(
            f"executors have walflow {', '.join(found)}, this is {version('walflow')}",
            hint=_hint(),
        )


def _say_version(batches: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Runs on an executor. Pickled by name: walflow must be importable there."""
    import pyarrow as pa

    for _ in batches:
        yield pa.record_batch({"version": [version("walflow")]})


def _reason(error: BaseException) -> str:
    """What the worker's Python or the executor says, without the JVM's pages around it."""
    text = str(error)
    for sign in (
        r"^\w*(?:ModuleNotFound|Import)Error: .+",
        r"Cannot run program .+?(?=$|\n)",
        r"\[PYTHON_VERSION_MISMATCH\] .+",
        r"^[\w.]*(?:Error|Exception): .+",
    ):
        if match := re.search(sign, text, re.MULTILINE):
            return match[0].strip()[:300]
    return text.strip().partition("\n")[0][:300]


def _hint() -> str:
    minor = ".".join(platform.python_version_tuple()[:2])
    return (
        f"Every worker needs Python {minor} with walflow {version('walflow')} (pip install "
        f"walflow=={version('walflow')}). Where its interpreter is not at the same path as here, "
        "set spark.conf's spark.pyspark.python; a session of your own has to be made, and a Spark "
        "Connect server started, with PYSPARK_PYTHON set to it in the environment."
    )
