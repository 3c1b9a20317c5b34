"""A process that captures and reads a table, until a failpoint kills it."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.pipeline.capturing import Capture
from tests.pipeline.reading import Reading
from walflow.config import SparkSettings
from walflow.spark.session import make_session


def main(uri: str, folder: str, slot: str, table: str) -> None:
    spark = make_session(SparkSettings(master="local[2]", driver_memory="512m"))
    with Capture(uri, Path(folder), slot=slot) as capture:
        reading = Reading(uri, spark, capture)
        with reading.snapshot() as snapshot:
            reading.read(table, snapshot)


if __name__ == "__main__":
    main(*sys.argv[1:])
