"""Small batches of tables without a key: it is asked where the rows are that may go, and then as
many as must go are deleted there."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sf

from walflow.destinations.lake.batch import Batch, stored_rows
from walflow.destinations.lake.fallback import FallBackToSpark, Reason
from walflow.destinations.lake.format import RowPlaces
from walflow.destinations.lake.merging import (
    inserted,
    our_values,
    places_checked,
    row_moved,
    viewed,
)
from walflow.destinations.lake.net_columns import columnar_changes
from walflow.destinations.lake.netting.net_changes import ColumnarChanges, first_of_each
from walflow.destinations.lake.netting.overflow import texts_map
from walflow.destinations.lake.small.conditions import among
from walflow.destinations.lake.small.relation import (
    Typed,
    fetched,
    has_long_texts,
    numbers_of,
    relation,
    stored_overflow,
)
from walflow.destinations.lake.table_schema import EXACT, LakeTableSchema
from walflow.spark.changes import EXACT_TYPE
from walflow.spark.names import SOURCE, TARGET, quoted

__all__ = ["merge_keyless"]

_OURS: Typed = {
    "_kind": "string",
    "_lsn": "bigint",
    "_timestamp": "timestamp",
    "_exact": EXACT_TYPE,
}
_FILE, _PLACE = "_found_file", "_found_place"
_PLACES: Typed = {_FILE: "string", _PLACE: "bigint"}


def merge_keyless(batch: Batch) -> LakeTableSchema:
    places = batch.format.places
    if places is None and not batch.changes.truncated:
        raise FallBackToSpark("equal rows cannot be told apart", Reason.FORMAT)
    changes = columnar_changes(batch.changes, overflow=batch.lake_schema.overflow)
    assert changes.removals is not None
    if changes.empties:
        rest = _rest(changes, np.zeros(len(changes.removals), dtype=np.int64))
        return _overwrite(batch, rest)
    assert places is not None
    within = among(batch.lake_schema.schema.columns, changes.keys)
    if within is None or has_long_texts(changes.keys):
        raise FallBackToSpark("its rows cannot be found by their values", Reason.TYPES)
    there, numbers = _found(batch, changes, places, within)
    counts = np.bincount(numbers, minlength=len(changes.removals))
    rest = _rest(changes, counts)
    if (counts > changes.removals).any():
        goes = _first(there, numbers, changes)
        there = there.filter(pa.array(goes))
    rows = _rows(rest)
    batch = batch.with_overflow(rows["_exact"].null_count < rows.num_rows)
    gone = there.select(list(_PLACES))
    source = pa.concat_tables([rows, gone], promote_options="default")
    _merge(batch, source, places, within)
    return batch.lake_schema


def _rest(changes: ColumnarChanges, counts: np.ndarray) -> ColumnarChanges:
    if (rest := changes.without_removed(counts)) is None:
        raise FallBackToSpark("it lacks rows that were removed from its source", Reason.MISSING)
    return rest


def _rows(changes: ColumnarChanges) -> pa.Table:
    origins = changes.origins
    ours = {
        "_kind": origins["_change_type"].cast(pa.string()),
        "_lsn": origins["_lsn"],
        "_timestamp": origins["_timestamp"],
        "_exact": texts_map(changes.overflow, changes.rows.num_rows),
    }
    return pa.table({**ours, **{n: changes.rows[n] for n in changes.rows.column_names}})


def _types(lake_schema: LakeTableSchema) -> Typed:
    return {**_OURS, **{c.name: c.spark_type for c in lake_schema.schema.columns}}


def _overwrite(batch: Batch, changes: ColumnarChanges) -> LakeTableSchema:
    rows = _rows(changes)
    batch = batch.with_overflow(rows["_exact"].null_count < rows.num_rows)
    lake_schema = batch.lake_schema
    kept = relation(batch.spark, rows, _types(lake_schema))
    ours = {name: sf.col(value) for name, value in our_values(lake_schema).items()}
    batch.format.overwrite(stored_rows(kept, lake_schema, ours), lake_schema.name)
    return lake_schema


def _found(
    batch: Batch, changes: ColumnarChanges, places: RowPlaces, within: str
) -> tuple[pa.Table, np.ndarray]:
    """The rows of the table that may go, and their numbers, in the order of their places."""
    lake_schema, names = batch.lake_schema, batch.lake_schema.metadata
    types = {**_PLACES, "_lsn": "bigint", "_kind": "string"}
    values = {
        _FILE: places.file,
        _PLACE: places.place,
        "_lsn": "cast(NULL AS bigint)" if names is None else _of_target(names.lsn),
        "_kind": "cast(NULL AS string)" if names is None else _of_target(names.change_type),
    }
    for column in lake_schema.schema.columns:
        types[column.name], values[column.name] = column.spark_type, _of_target(column.name)
    if EXACT in changes.keys.column_names:
        types[EXACT], values[EXACT] = EXACT_TYPE, stored_overflow(lake_schema)
    there = fetched(batch, values, types, within)
    there = there.sort_by([(name, "ascending") for name in _PLACES])
    numbers = numbers_of(changes.identity, changes.keys, there)
    return there.filter(pa.array(numbers >= 0)), numbers[numbers >= 0]


def _of_target(name: str) -> str:
    return f"{TARGET}.{quoted(name)}"


def _first(there: pa.Table, numbers: np.ndarray, changes: ColumnarChanges) -> np.ndarray:
    """Which of them go."""
    assert changes.removals is not None
    kinds = pc.rank(there["_kind"].combine_chunks().fill_null(""), tiebreaker="dense")
    came = there["_lsn"].fill_null(-1).to_numpy(), kinds.to_numpy(zero_copy_only=False)
    return first_of_each(numbers, changes.removals, came)


def _merge(batch: Batch, source: pa.Table, places: RowPlaces, within: str) -> None:
    lake_schema = batch.lake_schema
    values = {name: f"{SOURCE}.{quoted(name)}" for name in lake_schema.schema.column_names}
    # A row that is to be deleted must be where it was found. (Nothing in the MERGE may leave it to
    # Spark to find a common type: it would take the target's hidden columns for others of it then.)
    first = lake_schema.schema.columns[0]
    values[first.name] = (
        f"CASE WHEN {SOURCE}.{_FILE} IS NULL THEN {values[first.name]}"
        f" ELSE cast({row_moved(f'{SOURCE}.{_FILE}')} AS {first.spark_type}) END"
    )
    values |= {name: f"{SOURCE}.{quoted(value)}" for name, value in our_values(lake_schema).items()}
    if lake_schema.overflow:
        values[EXACT] = f"{SOURCE}._exact"
    rows = relation(batch.spark, source, {**_PLACES, **_types(lake_schema)})
    with places_checked(lake_schema.schema), viewed(rows) as view:
        batch.spark.sql(
            f"MERGE INTO {batch.identifier} {TARGET} USING (SELECT * FROM {view}) {SOURCE}"
            f" ON {places.file} = {SOURCE}.{_FILE} AND {places.place} = {SOURCE}.{_PLACE}"
            f" AND {within}"
            " WHEN MATCHED THEN DELETE"
            f" WHEN NOT MATCHED THEN {inserted(values)}"
        )
