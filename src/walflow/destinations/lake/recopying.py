"""A new copy of a table that keeps the past: what differs is written as changes.

The rows that the table says its source has are compared with the copy's, and inserts, updates and
deletes at the copy's position bring them after. What is equal stays as it is, and so does the past.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from walflow.destinations.base import TableChanges
from walflow.destinations.lake.batch import Batch
from walflow.destinations.lake.engines import SparkEngine
from walflow.destinations.lake.format import LakeFormat, Stored
from walflow.destinations.lake.modes import MODES
from walflow.destinations.lake.owner import Stamp
from walflow.destinations.lake.schema_changes import change_schema
from walflow.destinations.lake.table_schema import (
    COLUMNS,
    EXACT,
    MODE,
    LakeTableSchema,
    column_numbers,
    is_as_planned,
)
from walflow.errors import DestinationError
from walflow.evolution import Evolution, NotFollowed, widens
from walflow.model import ChangeStats, ChangeType, Column, Lsn, PgType, TableName, TableSchema
from walflow.spark.changes import EXACT_TYPE, changes_schema
from walflow.spark.checkpoints import checkpointed
from walflow.spark.names import quoted
from walflow.spark.net_keyless import row_identity
from walflow.spark.row_identity import identity_of, may_be_inexact

if TYPE_CHECKING:
    from pyspark.sql import Column as Expr
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["bring_to_schema", "check_key", "has_past", "write_differences"]

_INSERT, _UPDATE, _DELETE = (
    ChangeType.INSERT.value,
    ChangeType.UPDATE.value,
    ChangeType.DELETE.value,
)


def has_past(spark: SparkSession, format: LakeFormat, name: TableName, stored: Stored) -> bool:
    """Whether the table has a past, which a copy in its place would destroy."""
    mode = stored.properties.get(MODE, "mirror")
    keeps = any(writer.keeps_past for name, writer in MODES.items() if name == mode)
    if not keeps:
        return False
    # A first copy that broke off leaves no position and no rows. Where somebody has set the table
    # back, its position may be unknown, but its rows are still there.
    return stored.position is not None or format.rows(spark, name) > 0


def bring_to_schema(
    spark: SparkSession,
    format: LakeFormat,
    lake_schema: LakeTableSchema,
    stored: Stored,
    stamp: Stamp,
) -> None:
    """Give the stored table the schema of the copy. DestinationError if it cannot be
    had without losing the past."""
    identifier = format.identifier(lake_schema.name)
    if not is_as_planned(lake_schema.plan, stored.properties):
        raise _would_be_lost(
            identifier, f"is to be of mode {lake_schema.plan.mode}, with other columns of walflow's"
        )
    if stored.position is not None and stamp.position < stored.position:
        raise _would_be_lost(
            identifier,
            f"has changes up to {stored.position}, after the copy's position {stamp.position}: "
            "the source was restored to an earlier state, and the order of changes would be lost",
        )
    try:
        way = _way(lake_schema.schema, stored)
        if way is not None:
            change_schema(spark, format, lake_schema, way, stamp.owner)
    except NotFollowed as reason:
        raise _would_be_lost(identifier, f"cannot get the copy's schema ({reason})") from reason
    # Which key it had before it does not say.
    check_key(spark, format, lake_schema)


def check_key(spark: SparkSession, format: LakeFormat, lake_schema: LakeTableSchema) -> None:
    """DestinationError if deleted rows that are kept have the same key as others, as they may if
    another key identified them: each would be changed when one is."""
    schema, identifier = lake_schema.schema, format.identifier(lake_schema.name)
    if lake_schema.plan.mode != "soft_delete" or not schema.key:
        return
    parts = []
    for column in schema.key_columns:
        value, text = sf.col(quoted(column.name)), sf.lit(None).cast("string")
        if lake_schema.overflow and may_be_inexact(column):
            text = sf.try_element_at(sf.col(EXACT), sf.lit(column.name))
        # Without a value it is no key: no change finds the row.
        parts.append(sf.when(value.isNotNull() | text.isNotNull(), sf.struct(value, text)))
    keys = spark.table(identifier).select(*(part.alias(f"k{n}") for n, part in enumerate(parts)))
    keys = keys.where(" AND ".join(f"{name} IS NOT NULL" for name in keys.columns))
    if not keys.groupBy(*keys.columns).count().where("count > 1").isEmpty():
        raise _would_be_lost(
            identifier,
            f"has several rows with one key, now that the key is ({', '.join(schema.key)}): "
            "deleted rows could not be distinguished from the current one",
        )


def _would_be_lost(identifier: str, why: str) -> DestinationError:
    return DestinationError(
        f"The table {identifier} keeps rows that its source no longer has, and {why}",
        hint="walflow does not remove it by itself. Keep it under another name (ALTER TABLE "
        f"{identifier} RENAME TO …, or where the catalog cannot rename: CREATE TABLE … AS SELECT * "
        f"FROM {identifier}; DROP TABLE {identifier};), or drop it; then walflow retry creates it "
        "again. Or restore what was changed: the settings, or the source's key.",
        retry=False,
    )


def _way(schema: TableSchema, stored: Stored) -> Evolution | None:
    """From the table's schema to this one; None if it has it. Raises NotFollowed."""
    said = stored.properties.get(COLUMNS)
    numbers: Mapping[str, int] = column_numbers(schema) if said is None else json.loads(said)
    columns = [
        Column(name, PgType("", 0, 0), stored.columns[name], True, number)
        for name, number in numbers.items()
        if name in stored.columns
    ]
    before = {column.attnum: column for column in columns}
    after = {column.attnum: column for column in schema.columns}
    both = [(before[number], after[number]) for number in after if number in before]
    renamed = tuple((old, new) for old, new in both if old.name != new.name)
    widened = tuple((old, new) for old, new in both if old.spark_type != new.spark_type)
    added = tuple(column for number, column in after.items() if number not in before)
    if not renamed and not widened and not added:
        return None
    for old, new in widened:
        if not widens(old.spark_type, new.spark_type):
            raise NotFollowed(f"column {new.name} was {old.spark_type}, and is {new.spark_type}")
    if 0 in after:
        raise NotFollowed("it is not known which columns are the former ones")
    former = TableSchema(schema.oid, schema.name, tuple(columns), ())
    return Evolution(former, schema, added=added, renamed=renamed, widened=widened)


def write_differences(
    rows: DataFrame, format: LakeFormat, lake_schema: LakeTableSchema, stamp: Stamp, time: datetime
) -> None:
    """Bring the table, which has the copy's schema, after the copy's rows, in one commit."""
    spark, schema = rows.sparkSession, lake_schema.schema
    held = MODES[lake_schema.plan.mode].held(
        spark.table(format.identifier(lake_schema.name)), lake_schema
    )
    copied = rows.select(
        sf.struct(*(sf.col(quoted(name)) for name in schema.column_names)).alias("row"),
        (sf.col("_exact") if "_exact" in rows.columns else sf.lit(None).cast(EXACT_TYPE)).alias(
            "exact"
        ),
    )
    differ = _by_key(held, copied, schema) if schema.key else _by_copies(held, copied, schema)
    changes = checkpointed(_as_changes(differ, schema, stamp.position, time))
    if changes.isEmpty():
        with format.stamped(spark, stamp):
            format.touch(spark, lake_schema.name)
        return
    stats = ChangeStats(rows=3, inserts=1, updates=1 if schema.key else 0, deletes=1, overflow=True)
    written = Differences(schema, (), stats, spark, rows=changes)
    # They are in no file, and there are many: a copy's.
    SparkEngine(format).merge(Batch(format, lake_schema, written, stamp.position, stamp))


@dataclass(frozen=True, slots=True)
class Differences(TableChanges):
    """Changes that are in no file."""

    rows: DataFrame | None = None

    @property
    def changes(self) -> DataFrame:
        assert self.rows is not None
        return self.rows


def _by_key(held: DataFrame, copied: DataFrame, schema: TableSchema) -> DataFrame:
    """``kind``, ``row`` and ``exact`` of what differs."""
    before = held.select(
        _key(schema).alias("held_key"),
        sf.col("row").alias("held_row"),
        sf.col("exact").alias("held_exact"),
    )
    both = copied.withColumn("key", _key(schema)).join(
        before, sf.col("key").eqNullSafe(sf.col("held_key")), "full"
    )
    gone, new = sf.col("key").isNull(), sf.col("held_key").isNull()
    same = row_identity(schema, sf.col("row"), sf.col("exact")).eqNullSafe(
        row_identity(schema, sf.col("held_row"), sf.col("held_exact"))
    )
    kind = sf.when(gone, _DELETE).when(new, _INSERT).when(~same, _UPDATE)
    return both.select(
        kind.alias("kind"),
        sf.when(gone, sf.col("held_row")).otherwise(sf.col("row")).alias("row"),
        sf.when(gone, sf.col("held_exact")).otherwise(sf.col("exact")).alias("exact"),
    ).where("kind IS NOT NULL")


def _key(schema: TableSchema) -> Expr:
    columns = schema.key_columns
    texts = {c.name: sf.try_element_at(sf.col("exact"), sf.lit(c.name)) for c in columns}
    return identity_of(columns, {c.name: sf.col("row")[c.name] for c in columns}, texts)


def _by_copies(held: DataFrame, copied: DataFrame, schema: TableSchema) -> DataFrame:
    """The same without a key: as many copies as there are too many, or too few."""
    both = copied.withColumn("weight", sf.lit(1)).unionByName(held.withColumn("weight", sf.lit(-1)))
    counted = (
        both.groupBy(row_identity(schema, sf.col("row"), sf.col("exact")).alias("identity"))
        .agg(
            sf.first("row").alias("row"),
            sf.first("exact").alias("exact"),
            sf.sum("weight").cast("int").alias("copies"),
        )
        .where("copies <> 0")
    )
    return counted.select(
        sf.when(sf.col("copies") > 0, _INSERT).otherwise(_DELETE).alias("kind"),
        "row",
        "exact",
        sf.explode(sf.sequence(sf.lit(1), sf.abs("copies"))).alias("copy"),
    )


def _as_changes(differ: DataFrame, schema: TableSchema, position: Lsn, time: datetime) -> DataFrame:
    """With the change log's columns: before all other changes that may have this position."""
    values = {
        "_change_type": sf.col("kind"),
        "_lsn": sf.lit(int(position)),
        "_seq": sf.lit(-1),
        "_timestamp": sf.lit(time),
        "_exact": sf.col("exact"),
        **{name: sf.col("row")[name] for name in schema.column_names},
    }
    declared = differ.sparkSession.createDataFrame([], changes_schema(schema)).schema
    return differ.select(
        *(
            values.get(field.name, sf.lit(None)).cast(field.dataType).alias(field.name)
            for field in declared.fields
        )
    )
