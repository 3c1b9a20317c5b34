"""What of a table is read for a small batch that Spark merges."""

from __future__ import annotations

import datetime

import pyarrow as pa

from tests.destinations.reference import make_schema
from walflow.destinations.lake.small.conditions import among
from walflow.destinations.lake.small.relation import has_long_texts

COLUMNS = make_schema({"a": "string", "d": "date", "f": "double", "n": "bigint"}, []).columns


def keys(*rows: tuple[object, ...]) -> pa.Table:
    types = [pa.string(), pa.date32(), pa.float64(), pa.int64()]
    columns = [[row[n] for row in rows] for n in range(len(types))]
    return pa.table(
        [pa.array(*one) for one in zip(columns, types, strict=True)], ["a", "d", "f", "n"]
    )


def test_a_column_that_tells_all_keys_apart_is_enough() -> None:
    day = datetime.date(1970, 1, 2)
    assert among(COLUMNS, keys(("x", day, 1.0, 5), ("x", day, 1.0, -6))) == (
        "_walflow_target.`n` IN (5L, -6L, cast(NULL AS bigint))"
    )


def test_nulls_and_texts_that_look_like_sql() -> None:
    day = datetime.date(1970, 1, 2)
    assert among(
        COLUMNS, keys(("'${a}\\", day, 1.0, 5), (None, day, 2.0, 5), (None, day, 3.0, 5))
    ) == (
        "(_walflow_target.`a` IN ('\\'\\u0024{a}\\\\', cast(NULL AS string))"
        " OR _walflow_target.`a` IS NULL)"
        " AND _walflow_target.`d` IN (date_from_unix_date(1), cast(NULL AS date))"
        " AND _walflow_target.`n` IN (5L, cast(NULL AS bigint))"
    )


def test_what_has_no_short_literal() -> None:
    many = [("x" * 200, None, float(number), number) for number in range(1001)]
    assert among(COLUMNS[2:], keys(*many)) is None
    assert among(COLUMNS[:1], keys(*many)) is None
    assert has_long_texts(keys(("x" * 20_000, None, 1.0, 1)))
    assert not has_long_texts(keys(("x", None, 1.0, 1)))
