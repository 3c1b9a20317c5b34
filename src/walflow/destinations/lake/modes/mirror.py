"""The table equals its source: one row a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from walflow.destinations.lake.format import Constant
from walflow.destinations.lake.forms import StoredForm
from walflow.destinations.lake.merging import (
    merge_copies,
    merge_net,
    metadata_values,
    with_base_rows,
)
from walflow.destinations.lake.rounds import Round, kept, stored_rows
from walflow.spark.connect import is_remote_session
from walflow.spark.net import net_changes, net_copies

if TYPE_CHECKING:
    from pyspark.sql import Column as Expr

__all__ = ["apply", "copied"]


def copied(form: StoredForm, constants: Mapping[str, Constant]) -> Mapping[str, Constant]:
    return constants


def apply(round: Round) -> StoredForm:
    """In the cheapest way that is right."""
    if _only_appends(round):
        return _append(round)
    return _merge(round) if round.form.schema.key else _merge_keyless(round)


def _only_appends(round: Round) -> bool:
    changes, stats = round.changes, round.changes.stats
    inserts_only = stats.inserts == stats.rows and not changes.truncated and not stats.unchanged
    # A Spark Connect server goes on with what a client that is gone has asked for, and two appends
    # do not get in each other's way: a MERGE sees that the table has changed under it.
    outlives = bool(round.form.schema.key) and is_remote_session(round.spark)
    return inserts_only and not outlives


def _append(round: Round) -> StoredForm:
    """Each row is new, and the position proves that no row of it is there yet."""
    round = round.with_exact(round.changes.stats.exact)
    rows = round.changes.changes.withColumnRenamed("_change_type", "_kind")
    round.format.append(stored_rows(rows, round.form, _metadata(round.form)), round.form.name)
    return round.form


def _merge(round: Round) -> StoredForm:
    schema, stats = round.form.schema, round.changes.stats
    with kept(net_changes(round.changes.changes, schema, stats)) as net:
        round = round.with_exact_for(net, "_exact")
        form, identifier = round.form, round.identifier
        if round.changes.truncated:
            rows = net.where("_change_type = 'upsert'")
            round.format.overwrite(stored_rows(rows, form, _metadata(form)), form.name)
        elif stats.unchanged and stats.key_changes:
            merge_net(with_base_rows(net, identifier, form), identifier, form, partial=True)
        else:
            merge_net(net, identifier, form, partial=stats.unchanged)
    return form


def _merge_keyless(round: Round) -> StoredForm:
    if round.changes.truncated:
        with kept(round.changes.net()) as net:
            round = round.with_exact_for(net, "_exact")
            rows = stored_rows(
                net.where("_change_type = 'insert'"), round.form, _metadata(round.form)
            )
            round.format.overwrite(rows, round.form.name)
        return round.form
    copies = net_copies(round.changes.changes, round.form.schema, round.changes.stats)
    with kept(copies) as net:
        round = round.with_exact_for(net, "exact")
        merge_copies(net, round.identifier, round.form, round.format.places)
    return round.form


def _metadata(form: StoredForm) -> Mapping[str, Expr]:
    return {name: sf.col(value) for name, value in metadata_values(form).items()}
