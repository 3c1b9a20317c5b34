"""The first table, append and MERGE of a JVM take seconds; here they happen ahead of need."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from walflow.destinations.base import TableChanges
from walflow.destinations.lake.format import LakeFormat
from walflow.destinations.lake.forms import TablePlan, stored_form
from walflow.destinations.lake.modes import mirror
from walflow.destinations.lake.owner import Owner, Stamp
from walflow.destinations.lake.rounds import Round
from walflow.destinations.lake.sessions import SessionPool
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


def warm_up_writes(spark: SparkSession, format: LakeFormat) -> None:
    """Make, append to and merge into a table in a temporary folder, in a session of its own."""
    with tempfile.TemporaryDirectory(prefix="walflow-warm-") as folder:
        format = format.warm_copy(folder)
        pool = SessionPool(spark, format.session_conf)
        form = stored_form(_TABLE, TablePlan(), exact=False)
        with pool.borrowed() as session:
            stamp = Stamp(Owner("warm-up", "0"), Lsn(1))
            format.opened(spark)
            format.make_namespace(session, form.name)
            if not format.adopt(session, form, [], {}, stamp):
                format.create(session, form, stamp.owner)
            for stats in (ChangeStats(rows=1, inserts=1), ChangeStats(rows=1, updates=1)):
                with format.stamped(session, stamp):
                    mirror.apply(Round(format, form, _changes(session, stats)))
        pool.close()


def _changes(session: SparkSession, stats: ChangeStats) -> TableChanges:
    return _Made(_TABLE, (), stats, session)


class _Made(TableChanges):
    """Changes that are in no file."""

    @property
    def changes(self) -> DataFrame:
        return self.spark.createDataFrame(
            [("update", 1, 0, None, 1, None, None, None, 1, "a")], changes_schema(_TABLE)
        )
