"""Where rows with certain keys are: looked through, or looked up in their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from walflow.destinations.iceberg.columnar import key_index
from walflow.destinations.iceberg.columnar.arrow_schema import arrow_schema
from walflow.destinations.iceberg.columnar.key_index import IndexedColumn, KeyedFile, KeyIndex
from walflow.destinations.lake.netting.identity import IdentityPart

FIELDS: list[dict[str, Any]] = [
    {"id": 1, "name": "a", "required": False, "type": "long"},
    {"id": 2, "name": "b", "required": False, "type": "int"},
]
COLUMNS = [IndexedColumn(IdentityPart(field["name"]), field, {}) for field in FIELDS]

VALUES = st.integers(-3, 12)
ROWS = st.lists(st.tuples(VALUES | st.none(), VALUES), max_size=30)
SOUGHT = st.lists(st.sets(st.tuples(VALUES, VALUES), min_size=1, max_size=9), max_size=6)


def rows_of(values: list[tuple[int | None, int]]) -> pa.Table:
    columns = [[row[0] for row in values], [row[1] for row in values]]
    schema = arrow_schema(FIELDS)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema)


@given(
    files=st.lists(st.tuples(ROWS, st.booleans()), min_size=1, max_size=4),
    batches=SOUGHT,
    looks=st.integers(0, 2),
    rare=st.integers(1, 3),
    both=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_it_finds_what_is_there(
    tmp_path: Path,
    files: list[tuple[list[tuple[int | None, int]], bool]],
    batches: list[set[tuple[int, int]]],
    looks: int,
    rare: int,
    both: bool,
) -> None:
    columns = COLUMNS if both else COLUMNS[:1]
    index, keyed, stored = KeyIndex(), [], []
    for number, (rows, in_order) in enumerate(files):
        if in_order:
            rows = sorted((a, b) for a, b in rows if a is not None)
        path = tmp_path / f"{number}.parquet"
        pq.write_table(rows_of(rows), path)
        keyed.append(KeyedFile(str(path), path))
        stored.append(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "_MANY_ROWS", 4)
        patch.setattr(key_index, "_LOOKS", looks)
        patch.setattr(key_index, "_RARE", rare)
        patch.setattr(key_index, "_RARE_ELSEWHERE", rare)
        for batch in batches:
            wanted: list[tuple[int | None, ...]] = list({row[: len(columns)] for row in batch})
            keys = pa.table(
                {
                    column.part.column: pa.array([key[n] for key in wanted], pa.int64())
                    for n, column in enumerate(columns)
                }
            )
            found = {one.file: one for one in index.find(keyed, columns, keys, whole_rows=False)}
            for file, rows in zip(keyed, stored, strict=True):
                expected = [
                    (place, wanted.index(row[: len(columns)]))
                    for place, row in enumerate(rows)
                    if row[: len(columns)] in wanted
                ]
                one = found.get(file)
                got = [] if one is None else list(zip(one.places, one.numbers, strict=True))
                assert got == expected
    index.forget([file.location for file in keyed])
    assert index._bytes == 0


def test_an_order_is_made_only_where_there_is_room() -> None:
    values = pa.array(np.random.default_rng(1).permutation(key_index._MANY_ROWS))
    among = pa.array([5, 7])
    for index, is_made in ((KeyIndex(), True), (KeyIndex(values.nbytes), False)):
        read = key_index._Read.of(values)
        index._remember(("file", ()), read)
        for _ in range(key_index._LOOKS + 1):
            places, which = index._first_hits([read], among)
            assert values.take(pa.array(places)).equals(among.take(pa.array(which)))
        assert (read.order is not None) == is_made
        assert index._bytes == read.nbytes <= index._most_bytes
