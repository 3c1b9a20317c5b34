"""A round of a table that is shown by a view: its net changes, appended in one commit.

What it costs depends on the round. Only rounds that do not say all need the table: rows of which
Postgres did not send every value are completed from what the view shows, and a truncate names
every key.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from walflow.destinations.lake.format import Constant
from walflow.destinations.lake.forms import EXACT, StoredForm
from walflow.destinations.lake.freshness.parts import (
    REMOVED,
    ROUND,
    Parts,
    base_of,
    changes_form,
    changes_of,
    stored_parts,
)
from walflow.destinations.lake.freshness.shown import show, shown
from walflow.destinations.lake.merging import with_base_rows
from walflow.destinations.lake.rounds import Round, kept, stored_rows
from walflow.model import ChangeType, Lsn, TableSchema
from walflow.spark.changes import EXACT_TYPE
from walflow.spark.checkpoints import checkpointed
from walflow.spark.names import SOURCE, TARGET, quoted
from walflow.spark.net import net_changes

if TYPE_CHECKING:
    from pyspark.sql import Column as Expr
    from pyspark.sql import DataFrame

__all__ = ["append_round"]

_BASE, _CHANGES, _SHOWN = "walflow_base", "walflow_changes", "walflow_shown"

_FEW = 1000
"""So many keys are named to the scan of the base, which may then pass files over."""
_COUNTABLE = ("smallint", "int", "bigint", "string")


def append_round(round: Round, upto: Lsn) -> StoredForm:
    """Append the changes up to the position; the form of the table after it."""
    stats = round.changes.stats
    net = net_changes(round.changes.changes, round.form.schema, stats)
    may_need_exact = stats.exact and not round.form.exact
    with ExitStack() as stack:
        if stats.unchanged or round.changes.truncated or may_need_exact:
            net = stack.enter_context(kept(net))
        if may_need_exact and not net.where("_exact IS NOT NULL").isEmpty():
            round = _with_exact(round)
        form = round.form
        if round.changes.truncated:
            net = _with_removed(net, round)
        elif stats.unchanged:
            net = _completed(net, round)
        rows = stored_rows(net, changes_form(form), _ours(form, upto))
        round.format.append(rows, changes_of(form.name))
    return form


def _ours(form: StoredForm, upto: Lsn) -> Mapping[str, Expr | Constant]:
    ours: dict[str, Expr | Constant] = {
        ROUND: int(upto),
        REMOVED: sf.col("_change_type") == "delete",
    }
    if (names := form.plan.metadata) is not None:
        ours[names.change_type] = sf.col("_kind")
        ours[names.lsn] = sf.col("_lsn")
        ours[names.timestamp] = sf.col("_timestamp")
    return ours


def _with_exact(round: Round) -> Round:
    """The round of a table that has the column of exact texts, in both parts and in the view."""
    format, spark = round.format, round.spark
    form = replace(round.form, exact=True)
    names = base_of(form.name), changes_of(form.name)
    for name in names:
        stored = format.look(spark, name)
        if stored is not None and EXACT not in stored.columns:
            format.add_column(spark, name, EXACT, EXACT_TYPE)
    both = (format.look(spark, name) for name in names)
    if (parts := Parts.of(form.name, stored_parts(*both))) is not None:
        show(format, spark, parts)
    return replace(round, form=form)


def _completed(net: DataFrame, round: Round) -> DataFrame:
    """The net changes with all values: those that were not sent are in the rows that the view
    shows, under the keys that they had."""
    schema, spark = round.form.schema, round.spark
    lacks = sf.col("_unchanged").isNotNull()
    own = sf.struct(*(sf.col(quoted(c.name)) for c in schema.key_columns), "_exact")
    net = net.withColumn("_old", sf.when(lacks, sf.coalesce(sf.col("_old"), own)))
    key = [sf.col(f"_old.{quoted(c.name)}") for c in schema.key_columns]
    keys = checkpointed(net.where(lacks).select(*key).distinct())
    base, changes = _tables(round)
    views = {
        _BASE: _with_keys(base, keys, schema),
        _CHANGES: _with_keys(changes, keys, schema),
    }
    for name, frame in views.items():
        frame.createOrReplaceTempView(name)
    spark.sql(shown(_parts(round.form), _BASE, _CHANGES)).createOrReplaceTempView(_SHOWN)
    try:
        return with_base_rows(net, _SHOWN, round.form)
    finally:
        for name in (*views, _SHOWN):
            spark.catalog.dropTempView(name)


def _with_keys(table: DataFrame, keys: DataFrame, schema: TableSchema) -> DataFrame:
    """The table's rows that have one of the keys."""
    first = schema.key_columns[0]
    if first.spark_type in _COUNTABLE:
        some = [row[0] for row in keys.select(quoted(first.name)).limit(_FEW + 1).collect()]
        if len(some) <= _FEW:
            table = table.where(sf.col(quoted(first.name)).isin(some))
    keys = sf.broadcast(keys.alias(SOURCE))
    return table.alias(TARGET).join(keys, _same_key(schema), "left_semi")


def _same_key(schema: TableSchema) -> list[Expr]:
    names = map(quoted, schema.key)
    return [sf.col(f"{TARGET}.{name}") == sf.col(f"{SOURCE}.{name}") for name in names]


def _with_removed(net: DataFrame, round: Round) -> DataFrame:
    """The net changes after a truncate, and the removal of all other keys that there may be."""
    schema, truncate = round.form.schema, round.changes.stats.last_truncate
    key = [sf.col(quoted(name)) for name in schema.key]
    base, changes = (table.select(*key) for table in _tables(round))
    there = base.union(changes).distinct().alias(TARGET)
    gone = there.join(net.alias(SOURCE), _same_key(schema), "left_anti")
    removed = gone.select(
        *key,
        sf.lit("delete").alias("_change_type"),
        sf.lit(ChangeType.TRUNCATE.value).alias("_kind"),
        sf.lit(truncate and truncate[0]).cast("bigint").alias("_lsn"),
    )
    return net.unionByName(removed, allowMissingColumns=True)


def _tables(round: Round) -> tuple[DataFrame, DataFrame]:
    name, table = round.form.name, round.spark.table
    identifier = round.format.identifier
    return table(identifier(base_of(name))), table(identifier(changes_of(name)))


def _parts(form: StoredForm) -> Parts:
    return Parts(form.name, tuple(column.name for column in form.columns), form.schema.key)
