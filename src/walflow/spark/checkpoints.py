"""Frames that are computed once, and whose plan is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from walflow.spark.connect import is_remote_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["checkpointed"]


def checkpointed(frame: DataFrame) -> DataFrame:
    """The frame's rows, computed by the first job that needs them, and then kept by Spark for as
    long as the result is referenced. Tables are read as they are now."""
    if not is_remote_session(frame.sparkSession):
        return frame.localCheckpoint(eager=False)
    from pyspark.sql.connect.session import SparkSession

    # PySpark 4.1 takes the result for one of the thread's active session, whichever it was.
    active: Any = SparkSession._active_session
    before = getattr(active, "session", None)
    active.session = frame.sparkSession
    try:
        return frame.localCheckpoint(eager=False)
    finally:
        active.session = before
