"""A program that reads the demo's tables with PySpark alone."""

from __future__ import annotations

from pathlib import Path

from walflow.destinations.iceberg import EXTENSIONS, catalog_conf
from walflow.spark.jars import ICEBERG, find_jars
from walflow.spark.java import find_java

__all__ = ["query_program"]

_PROGRAM = """\
import os

from pyspark.sql import SparkSession

os.environ["JAVA_HOME"] = {java!r}
spark = (
    SparkSession.builder.master("local[*]")
{conf}
    .getOrCreate()
)
spark.sql("SELECT status, count(*), sum(total) FROM lake.shop.orders GROUP BY status").show()
spark.sql("SELECT id, credit, valid_until, _EXACT FROM lake.shop.customers"
          " WHERE _EXACT IS NOT NULL ORDER BY id").show(5, truncate=False)
"""


def query_program(lake: Path) -> str:
    """The program's text, with the paths of Java and jars on this machine."""
    jars = ",".join(map(str, find_jars([ICEBERG])))
    conf = {
        "spark.jars": jars,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.extensions": EXTENSIONS,
        **catalog_conf(str(lake), {}),
    }
    lines = [f'    .config("{name}", {value!r})' for name, value in conf.items()]
    return _PROGRAM.format(java=str(find_java().home), conf="\n".join(lines))
