"""Every change is a row.

The order of changes is (position, ``_SEQ``). A change of key, and every update where there is no
key, takes two numbers: the former row is told as deleted just before the new one as updated. So
the newest row of a key says what became of it. Rows of a copy come before all changes of their
position.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from walflow.destinations.lake.format import Constant
from walflow.destinations.lake.forms import SEQ, Metadata, StoredForm
from walflow.destinations.lake.merging import assignments, inserted, our_values, viewed
from walflow.destinations.lake.modes.timelines import filled_from, row_changes, stored_key
from walflow.destinations.lake.rounds import Round, stored_rows, stored_values
from walflow.model import ChangeType
from walflow.spark.connect import is_remote_session
from walflow.spark.identities import only_old_texts, without_old_texts
from walflow.spark.names import SOURCE, TARGET, quoted
from walflow.spark.net_copies import row_identity

if TYPE_CHECKING:
    from pyspark.sql import Column as Expr
    from pyspark.sql import DataFrame

__all__ = ["apply", "copied", "held", "keeps_past"]

keeps_past = True

_OF_COPY = -1
_TRUNCATE, _DELETE, _UPDATE = (
    ChangeType.TRUNCATE.value,
    ChangeType.DELETE.value,
    ChangeType.UPDATE.value,
)


def copied(
    form: StoredForm, metadata: Mapping[str, Constant], time: datetime
) -> Mapping[str, Constant]:
    return {**metadata, SEQ: _OF_COPY}


def held(table: DataFrame, form: StoredForm) -> DataFrame:
    names = _names(form)
    kind = sf.col(quoted(names.change_type))
    at = sf.struct(sf.col(quoted(names.lsn)).alias("lsn"), sf.col(SEQ).alias("seq"))
    found = table.where(kind == _TRUNCATE).agg(sf.max(at).alias("last")).first()
    rows = table.where(kind != _TRUNCATE)
    if found is not None and found["last"] is not None:
        lsn, seq = found["last"]
        rows = rows.where(at > sf.expr(f"named_struct('lsn', {lsn}L, 'seq', {seq}L)"))
    is_delete = kind == _DELETE
    if form.schema.key:
        newest = Window.partitionBy(stored_key(form, texts=True)).orderBy(at.desc())
        values = stored_values(
            rows, form, sf.row_number().over(newest).alias("number"), is_delete.alias("gone")
        )
        return values.where("number = 1 AND NOT gone").select("row", "exact")
    weight = sf.when(is_delete, -1).otherwise(1)
    copies = (
        stored_values(rows, form, weight.alias("weight"))
        .groupBy(row_identity(form.schema, sf.col("row"), sf.col("exact")).alias("identity"))
        .agg(
            sf.first("row").alias("row"),
            sf.first("exact").alias("exact"),
            sf.sum("weight").cast("int").alias("copies"),
        )
        .where("copies > 0")
    )
    each = sf.explode(sf.sequence(sf.lit(1), sf.col("copies")))
    return copies.select("row", "exact", each.alias("copy")).select("row", "exact")


def apply(round: Round) -> StoredForm:
    """An append, whatever the changes are."""
    stats, form = round.changes.stats, round.form
    if form.schema.key and (stats.unchanged or stats.key_changes):
        rows = _followed(round)
    else:
        rows = _as_told(round)
    round = round.with_exact(stats.exact)
    ours = {name: sf.col(quoted(value)) for name, value in our_values(round.form).items()}
    _append(stored_rows(rows, round.form, ours), round)
    return round.form


def _as_told(round: Round) -> DataFrame:
    """The changes as they are; where there is no key, an update's former row too."""
    changes, schema, stats = round.changes.changes, round.form.schema, round.changes.stats
    rows = _numbered(changes, 1).withColumn("_kind", sf.col("_change_type"))
    if stats.exact:
        rows = rows.withColumn("_exact", without_old_texts(sf.col("_exact")))
    if schema.key or not stats.updates:
        return rows
    former = (
        _numbered(changes.where(sf.col("_change_type") == _UPDATE), 0)
        .withColumn("_kind", sf.lit(_DELETE))
        .withColumn("_exact", only_old_texts(sf.col("_exact")))
        .withColumns({name: sf.col("_old")[name] for name in schema.column_names})
    )
    return rows.unionByName(former)


def _followed(round: Round) -> DataFrame:
    """The changes with the values that they do not tell, and each change of key at both keys."""
    changes, form, stats = round.changes, round.form, round.changes.stats
    names = _names(form)
    events = filled_from(
        round.spark.table(round.identifier),
        row_changes(changes),
        form,
        stats,
        newest_first=(-sf.col(quoted(names.lsn)), -sf.col(SEQ)),
    )
    gone, kind = sf.col("gone"), sf.col("kind")
    leaves = gone & (kind == _UPDATE)
    rows = events.select(
        sf.when(gone, _DELETE).otherwise(kind).alias("_kind"),
        sf.col("at._lsn").alias("_lsn"),
        sf.col("time").alias("_timestamp"),
        _number(sf.col("at._seq"), sf.when(leaves, 0).otherwise(1)).alias(SEQ),
        sf.col("exact").alias("_exact"),
        *(sf.col("row")[name].alias(name) for name in form.schema.column_names),
    )
    if not stats.truncates:
        return rows
    truncates = _numbered(changes.changes.where(sf.col("_change_type") == _TRUNCATE), 1)
    told = truncates.withColumn("_kind", sf.col("_change_type"))
    return rows.unionByName(told.select(*(quoted(name) for name in rows.columns)))


def _numbered(changes: DataFrame, place: int) -> DataFrame:
    return changes.withColumn(SEQ, _number(sf.col("_seq"), sf.lit(place)))


def _number(seq: Expr, place: Expr) -> Expr:
    """Two numbers for each change, of which the second is its own."""
    return seq * 2 + place


def _names(form: StoredForm) -> Metadata:
    assert form.metadata is not None, "a history has metadata"
    return form.metadata


def _append(rows: DataFrame, round: Round) -> None:
    form = round.form
    if not is_remote_session(round.spark):
        round.format.append(rows, form.name)
        return
    # A Spark Connect server goes on with what a client that is gone has asked for, and two appends
    # do not get in each other's way: a MERGE sees that the table has changed under it.
    lsn = quoted(_names(form).lsn)
    values = {column.name: f"{SOURCE}.{quoted(column.name)}" for column in form.columns}
    with viewed(rows) as view:
        round.spark.sql(
            f"MERGE INTO {round.identifier} {TARGET} USING {view} {SOURCE}"
            f" ON {TARGET}.{lsn} = {SOURCE}.{lsn} AND {TARGET}.{SEQ} = {SOURCE}.{SEQ}"
            f" AND {SOURCE}.{SEQ} >= 0"
            f" WHEN MATCHED THEN UPDATE SET {assignments({SEQ: f'{SOURCE}.{SEQ}'})}"
            f" WHEN NOT MATCHED THEN {inserted(values)}"
        )
