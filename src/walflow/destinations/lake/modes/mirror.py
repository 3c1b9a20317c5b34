"""The table equals its source: one row a row."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from walflow.destinations.lake.columnar import are_plain, columnar_changes
from walflow.destinations.lake.copies import merge_copies, overwrite_copies
from walflow.destinations.lake.format import Constant
from walflow.destinations.lake.forms import StoredForm
from walflow.destinations.lake.merging import merge_net, our_values, with_base_rows
from walflow.destinations.lake.rounds import (
    Round,
    append_rows,
    kept,
    only_inserts,
    stored_rows,
    stored_values,
)
from walflow.spark.connect import is_remote_session
from walflow.spark.net import net_changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["apply", "copied", "held", "keeps_past"]

keeps_past = False


def copied(
    form: StoredForm, metadata: Mapping[str, Constant], time: datetime
) -> Mapping[str, Constant]:
    return metadata


def held(table: DataFrame, form: StoredForm) -> DataFrame:
    return stored_values(table, form)


def apply(round: Round) -> StoredForm:
    """In the cheapest way that is right."""
    if _merge_in_columns(round):
        return round.form
    if _only_appends(round):
        return append_rows(round, {})
    if round.form.schema.key:
        return _merge(round)
    return overwrite_copies(round) if round.changes.truncated else merge_copies(round)


def _merge_in_columns(round: Round) -> bool:
    columnar = round.format.columnar(round.spark)
    if columnar is None or not are_plain(round.changes, round.form):
        return False
    return columnar.merge(
        round.form, lambda: columnar_changes(round.changes), round.begins, round.stamp
    )


def _only_appends(round: Round) -> bool:
    # A Spark Connect server goes on with what a client that is gone has asked for, and two appends
    # do not get in each other's way: a MERGE sees that the table has changed under it.
    outlives = bool(round.form.schema.key) and is_remote_session(round.spark)
    return only_inserts(round.changes) and not outlives


def _merge(round: Round) -> StoredForm:
    schema, stats = round.form.schema, round.changes.stats
    with kept(net_changes(round.changes.changes, schema, stats)) as net:
        round = round.with_exact_for(net, "_exact")
        form, identifier = round.form, round.identifier
        if round.changes.truncated:
            rows = net.where("_change_type = 'upsert'")
            ours = {name: sf.col(value) for name, value in our_values(form).items()}
            round.format.overwrite(stored_rows(rows, form, ours), form.name)
        elif stats.unchanged and stats.key_changes:
            merge_net(with_base_rows(net, identifier, form), identifier, form, partial=True)
        else:
            merge_net(net, identifier, form, partial=stats.unchanged)
    return form
