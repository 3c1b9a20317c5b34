"""The first table, append and MERGE of a JVM take seconds; here they happen ahead of need."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from walflow.destinations.iceberg.bridge import open_bridge
from walflow.destinations.iceberg.merge import append_rows, kept, merge_net
from walflow.destinations.iceberg.sessions import SessionPool
from walflow.destinations.iceberg.tables import Owner, catalog_conf, create_table
from walflow.model import ChangeStats, Column, Lsn, PgType, TableName, TableSchema
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
    """Make, append to and merge into a table in a temporary folder, in a session of its own."""
    with tempfile.TemporaryDirectory(prefix="walflow-warm-") as folder:
        conf, owner = catalog_conf(folder, {}), Owner("warm-up", "0")
        pool = SessionPool(spark, conf)
        with pool.borrowed() as session:
            bridge = open_bridge(spark, conf, owner)
            if bridge is None:
                create_table(session, _TABLE, owner, exact=False)
            else:
                bridge.replace_table(_TABLE, [], Lsn(0), exact=False)
            _write(session)
        pool.close()


def _write(session: SparkSession) -> None:
    changes = session.createDataFrame(
        [("update", 1, 0, None, 1, None, None, None, 1, "a")], changes_schema(_TABLE)
    )
    append_rows(changes, _TABLE, has_exact=False)
    stats = ChangeStats(rows=1, updates=1)
    with kept(net_changes(changes, _TABLE, stats)) as net:
        merge_net(net, _TABLE, has_exact=False, partial=False)
