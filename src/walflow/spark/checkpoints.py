"""Frames that are computed now, and whose plan is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from walflow.spark.connect import is_remote_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["checkpointed"]


def checkpointed(frame: DataFrame) -> DataFrame:
    """The frame's rows as they are now, kept by Spark for as long as the result is referenced."""
    if not is_remote_session(frame.sparkSession):
        return frame.localCheckpoint()
    from pyspark.sql.connect.session import SparkSession

    # PySpark 4.1 takes the result for one of the thread's active session, whichever it was.
    active: Any = SparkSession._active_session
    before = getattr(active, "session", None)
    active.session = frame.sparkSession
    try:
        return frame.localCheckpoint()
    finally:
        active.session = before
