"""The first append and the first MERGE of a JVM take seconds; here they happen ahead of need."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from walflow.destinations.iceberg.merge import append_rows, kept, merge_net
from walflow.destinations.iceberg.tables import Owner, catalog_conf, create_table
from walflow.model import ChangeStats, Column, PgType, TableName, TableSchema
from walflow.spark.net import changes_schema, net_changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def warm_up_writes(spark: SparkSession) -> None:
    """Append to and merge into a table in a temporary folder, in a session of its own."""
    with tempfile.TemporaryDirectory(prefix="walflow-warm-") as folder:
        session = spark.newSession()
        for name, value in catalog_conf(folder, {}).items():
            if name.startswith("spark.sql.catalog."):
                session.conf.set(name, value)
        create_table(session, _TABLE, Owner("warm-up", "0"), exact=None)
        changes = session.createDataFrame(
            [("update", 1, 0, None, 1, None, None, None, 1, "a")], changes_schema(_TABLE)
        )
        append_rows(changes, _TABLE, has_exact=False)
        stats = ChangeStats(rows=1, updates=1)
        with kept(net_changes(changes, _TABLE, stats)) as net:
            merge_net(net, _TABLE, has_exact=False, partial=False)
