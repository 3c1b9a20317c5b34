"""Trying a lake out: a table is made, written, read and removed."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from walflow.config.lake import TablePlan
from walflow.destinations.lake.format import LakeFormat
from walflow.destinations.lake.owner import OWN_NAMESPACE, Owner, Stamp
from walflow.destinations.lake.table_schema import lake_table_schema
from walflow.errors import DestinationError
from walflow.model import Column, Lsn, PgType, TableName, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["scratch_name", "try_out"]


def scratch_name() -> TableName:
    """A name that no table has, where walflow has to be able to make tables anyway."""
    return TableName(OWN_NAMESPACE, f"check_{uuid.uuid4().hex[:12]}")


def try_out(spark: SparkSession, format: LakeFormat, name: TableName, owner: Owner) -> None:
    """Make a table of that name, write a row, read it, and remove all that was made for it."""
    column = Column("id", PgType("bigint", 20, 20), "bigint")
    schema = TableSchema(oid=0, name=name, columns=(column,), key=())
    lake_schema = lake_table_schema(schema, TablePlan(metadata=None), overflow=False)
    was_there = format.has_namespace(spark, name)

    def clean() -> None:
        """Also of what a failure midway has left."""
        format.drop(spark, name)
        if not was_there:
            format.drop_namespace(spark, name)

    format.make_namespace(spark, name)
    try:
        format.create(spark, lake_schema, owner)
        with format.stamped(spark, Stamp(owner, Lsn(1))):
            format.append(spark.range(1), name)
        if (rows := format.rows(spark, name)) != 1:
            raise DestinationError(
                f"a row was written to {format.identifier(name)}, and then it had {rows}",
                hint="Check destination.options: what is written must be what is read.",
            )
    except BaseException:
        # What cannot be removed either is not the reason to tell.
        with suppress(Exception):
            clean()
        raise
    clean()
