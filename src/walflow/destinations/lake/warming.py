"""The first table, append and MERGE of a JVM take seconds; here they happen ahead of need."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from walflow.config.lake import TablePlan
from walflow.destinations.base import TableChanges
from walflow.destinations.lake.batch import Batch
from walflow.destinations.lake.engines import Engines, SparkEngine
from walflow.destinations.lake.format import LakeFormat
from walflow.destinations.lake.owner import Owner, Stamp
from walflow.destinations.lake.sessions import SessionPool
from walflow.destinations.lake.table_schema import lake_table_schema
from walflow.model import ChangeStats, Column, Lsn, PgType, TableName, TableSchema
from walflow.spark.changes import changes_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["warm_up_writes"]

_TABLE = TableSchema(
    oid=0,
    name=TableName("walflow", "warm_up"),
    columns=(
        Column("id", PgType("bigint", 20, 20), "bigint"),
        Column("body", PgType("text", 25, 25), "string"),
    ),
    key=("id",),
)


_warm: set[tuple[str, str]] = set()
"""Applications of Spark, and formats that each of them has written."""


def warm_up_writes(spark: SparkSession, format: LakeFormat) -> None:
    """Make, append to and merge into a table in a temporary folder, in a session of its own.
    Does nothing if this process has done so in the same JVM."""
    place = spark.conf.get("spark.app.id") or "", format.name
    if place in _warm:
        return
    _write(spark, format)
    _warm.add(place)


def _write(spark: SparkSession, format: LakeFormat) -> None:
    with tempfile.TemporaryDirectory(prefix="walflow-warm-") as folder:
        format = format.warm_copy(folder)
        pool = SessionPool(spark, format.session_conf)
        lake_schema = lake_table_schema(_TABLE, TablePlan(), overflow=False)
        with pool.borrowed() as session:
            stamp = Stamp(Owner("warm-up", "0"), Lsn(1))
            format.opened(spark)
            format.make_namespace(session, lake_schema.name)
            if not format.adopt(session, lake_schema, [], {}, stamp):
                format.create(session, lake_schema, stamp.owner)
            for stats in (ChangeStats(rows=1, inserts=1), ChangeStats(rows=1, updates=1)):
                made = _made(session, stats)
                SparkEngine(format).merge(Batch(format, lake_schema, made, stamp.position, stamp))
            # And once more in columns, where the format can.
            changes = _in_file(Path(folder), session)
            Engines(format).merge(Batch(format, lake_schema, changes, stamp.position, stamp))
        pool.close()


def _made(session: SparkSession, stats: ChangeStats) -> TableChanges:
    return _Made(_TABLE, (), stats, session)


def _in_file(folder: Path, session: SparkSession) -> TableChanges:
    file = folder / "changes.parquet"
    pq.write_table(
        pa.table(
            {
                "_change_type": ["update"],
                "_lsn": [1],
                "_seq": [1],
                "_timestamp": pa.array([0], pa.timestamp("us", "UTC")),
                "id": [1],
                "body": ["b"],
            }
        ),
        file,
    )
    return TableChanges(_TABLE, (str(file),), ChangeStats(rows=1, updates=1), session)


class _Made(TableChanges):
    """Changes that are in no file."""

    @property
    def changes(self) -> DataFrame:
        return self.spark.createDataFrame(
            [("update", 1, 0, None, 1, None, None, None, 1, "a")], changes_schema(_TABLE)
        )
