"""Run in the background (see walflow.spark.class_archive): a session that does once what a
destination does, so that Java can archive the classes that this takes."""

from __future__ import annotations

import sys
import tempfile
from typing import TYPE_CHECKING

from walflow.config import SparkSettings, load_settings
from walflow.destinations import open_destination
from walflow.spark.class_archive import make_archive
from walflow.spark.session import make_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["archived_by"]


def archived_by(lake: str = "") -> tuple[str, ...]:
    """What Python is run with. ``lake``: the kind of lake that the session is for."""
    return ("-m", "walflow.destinations.class_archive", lake)


def _query(session: SparkSession) -> None:
    """Small queries of the kinds that changes need."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    rows = session.range(100).select("id", (sf.col("id") % 7).alias("key"))
    last = sf.row_number().over(Window.partitionBy("key").orderBy(sf.desc("id")))
    newest = rows.withColumn("n", last).where("n = 1").persist()
    newest.count()
    rows.join(newest, "key", "left").groupBy("n").count().collect()
    newest.unpersist()


def _run(lake: str) -> None:
    if not lake:
        session = make_session(SparkSettings())
        _query(session)
        stop_session(session)
        return
    with tempfile.TemporaryDirectory(prefix="walflow-classes-") as folder:
        settings = load_settings(
            None,
            {
                "name": "classes",
                "source.uri": "postgresql://nowhere/nothing",
                "destination.uri": f"{lake}://{folder}/lake",
                "log.folder": f"{folder}/log",
            },
            environment={},
        )
        opened = open_destination(settings, "classes", warm_up=False)
        opened.destination.startup()
        opened.close()


if __name__ == "__main__":
    make_archive(lambda: _run(sys.argv[1]))
