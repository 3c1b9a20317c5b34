"""What changes come to in columns, without a lake: random stories against the row-by-row
reference."""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pytest

from tests.destinations.hard_stories import KEYED, KEYLESS, change, insert
from tests.destinations.reference import Inexact, Row, Source, assert_same
from walflow.destinations.lake.net_columns import ColumnarChanges, columnar_changes
from walflow.destinations.lake.netting.comparable import comparable, numbered
from walflow.model import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("schema", [KEYED, KEYLESS], ids=["keyed", "keyless"])
@pytest.mark.parametrize("seed", range(12))
def test_stories_at_random(tmp_path: Path, schema: TableSchema, seed: int) -> None:
    source, chance = Source(schema, tmp_path), random.Random(seed)
    rows: list[Row] = []
    no_spark = cast("SparkSession", None)
    for _ in range(6):
        for _ in range(chance.randrange(1, 8)):
            with source.transaction():
                insert(source, chance)
                for _ in range(chance.randrange(5)):
                    if chance.random() < 0.03:
                        source.truncate()
                    change(source, chance)
        changes = source.events(no_spark, pieces=chance.randrange(1, 4))
        if changes.files:
            rows = after(rows, columnar_changes(changes, overflow=True), schema)
        assert_same(rows, source.rows)


def after(rows: Sequence[Row], changes: ColumnarChanges, schema: TableSchema) -> list[Row]:
    names = schema.key or schema.column_names

    def identity(row: Row) -> str:
        return repr([row[name] for name in names])

    keys = [
        identity(with_texts({n: row[n] for n in names}, dict(row.get("_EXACT") or [])))
        for row in changes.keys.to_pylist(maps_as_pydicts=None)
    ]
    assert len(set(keys)) == len(keys)
    there = [] if changes.empties else list(rows)
    base = {identity(row): row for row in there}
    left: Mapping[str, Any] = dict.fromkeys(keys, len(there) + changes.rows.num_rows)
    if changes.removals is not None:
        left = dict(zip(keys, changes.removals.tolist(), strict=True))
    left = dict(left)
    stay = []
    for row in there:
        if left.get(identity(row), 0):
            left[identity(row)] -= 1
        else:
            stay.append(row)
    for number, row in enumerate(changes.rows.to_pylist(maps_as_pydicts=None)):
        texts = {name: texts[number].as_py() for name, texts in changes.overflow.items()}
        new = with_texts(row, texts)
        for name, mask in changes.unsent.items():
            if mask[number]:
                new[name] = base[keys[changes.base[number]]][name]
        if changes.removals is not None and left.get(identity(new), 0):
            left[identity(new)] -= 1
        else:
            stay.append(new)
    return stay


def with_texts(row: Row, texts: Mapping[str, str | None]) -> Row:
    def value(name: str, near: Any) -> Any:
        if isinstance(near, datetime.datetime):
            # Arrow gives a zone of its own kind.
            near = near.astimezone(datetime.UTC)
        text = texts.get(name)
        return near if text is None else Inexact(near, text)

    return {name: value(name, near) for name, near in row.items()}


def test_what_is_the_same() -> None:
    floats = pa.array([0.0, -0.0, float("nan"), -float("nan"), None])
    assert codes(comparable(floats)) == [0, 0, 1, 1, 2]
    assert codes(comparable(floats, signed_zeros=True)) == [0, 1, 2, 2, 3]
    lists = pa.array([[0.0], [-0.0], [], None, [None], [0.0, 0.0]], pa.list_(pa.float64()))
    assert codes(comparable(lists)) == [0, 0, 1, 2, 3, 4]
    assert codes(comparable(lists, signed_zeros=True)) == [0, 1, 2, 3, 4, 5]
    texts = pa.array([["a", "b"], ["ab"], ["a1:b"], [["x"][0]], ["b", "a"]], pa.list_(pa.string()))
    assert codes(comparable(texts)) == [0, 1, 2, 3, 4]
    assert codes(comparable(texts[3:])) == [0, 1], "a part of an array"
    pairs = [[("k", "v"), ("j", None)], [("j", None), ("k", "v")], [("k", None), ("j", "v")], None]
    maps = pa.array(pairs, pa.map_(pa.string(), pa.string()))
    assert codes(comparable(maps)) == [0, 0, 1, 2]
    nested = pa.array([[["a"], []], [["a", ""]], [["a"], [], []]], pa.list_(pa.list_(pa.string())))
    assert codes(comparable(nested)) == [0, 1, 2]


def codes(values: pa.Array) -> list[int]:
    found = numbered([values, pa.array(np.zeros(len(values), dtype=np.int64))])
    return [int(code) for code in found]
