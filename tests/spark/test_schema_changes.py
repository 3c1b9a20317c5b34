"""Changes of a former form, shown in the present one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from walflow.destinations.base import FormerChanges, TableChanges
from walflow.evolution import Evolution, evolution
from walflow.model import ChangeStats, Column, Lsn, PgType, TableName, TableSchema
from walflow.spark.schema_changes import sql_value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

OIDS = {"int": 23, "bigint": 20, "string": 25, "decimal(10,2)": 1700, "date": 1082}


def column(position: int, name: str, spark_type: str, missing: str | None = None) -> Column:
    kind = PgType(spark_type, OIDS[spark_type], OIDS[spark_type])
    return Column(name, kind, spark_type, attnum=position, missing=missing)


def table(*columns: Column, key: tuple[str, ...] = ()) -> TableSchema:
    return TableSchema(7, TableName("public", "t"), columns, key, filenodes=frozenset({1}))


BEFORE = (
    column(1, "id", "int"),
    column(2, "a", "string"),
    column(3, "b", "string"),
    column(4, "gone", "string"),
    column(5, "d", "date"),
)
# a and b have swapped their names, and one was dropped and made anew under its name.
AFTER = (
    column(1, "key`", "bigint"),
    column(2, "b", "string"),
    column(3, "a", "string"),
    column(5, "day", "date"),
    column(6, "gone", "string", "it's \\ new"),
    column(7, "n", "int"),
)
OPTIONAL = {
    "_unchanged": pa.list_(pa.string()),
    "_old": pa.struct([("id", pa.int32())]),
    "_exact": pa.map_(pa.string(), pa.string()),
}


def way(before: TableSchema, after: TableSchema) -> Evolution:
    found = evolution(before, after, trust_rewrites=True)
    return replace(found, missing={c.name: c.missing for c in found.added if c.missing})


def write(path: Path, rows: list[dict[str, Any]], types: dict[str, Any]) -> str:
    arrays = [pa.array([row.get(name) for row in rows], kind) for name, kind in types.items()]
    pq.write_table(pa.table(arrays, list(types)), path)
    return str(path)


LOGGED = {"_change_type": pa.string(), "_lsn": pa.int64(), "_seq": pa.int64()}
ROW = {"id": pa.int32(), **dict.fromkeys(("a", "b", "gone"), pa.string()), "d": pa.date32()}


def shown(changes: TableChanges) -> list[dict[str, Any]]:
    rows = changes.changes.orderBy("_lsn", "_seq").collect()
    return [row.asDict(recursive=True) for row in rows]


def test_changes_of_a_keyed_table(spark: SparkSession, tmp_path: Path) -> None:
    before, after = table(*BEFORE, key=("id",)), table(*AFTER, key=("key`",))
    long_ago = date(1, 1, 1)
    former = write(
        tmp_path / "former.parquet",
        [
            {
                "_change_type": "insert",
                "_lsn": 10,
                "_seq": 0,
                "_exact": [("d", "infinity")],
                "id": 1,
                "a": "A",
                "b": "B",
                "gone": "old",
                "d": long_ago,
            },
            {
                "_change_type": "update",
                "_lsn": 20,
                "_seq": 1,
                "_old": {"id": 1},
                "_unchanged": ["a", "gone"],
                "_exact": [("_old.id", "one"), ("gone", "x")],
                "id": 2,
                "b": "B2",
            },
            {"_change_type": "delete", "_lsn": 20, "_seq": 2, "id": 3},
            {"_change_type": "truncate", "_lsn": 30, "_seq": 0},
        ],
        {**LOGGED, **OPTIONAL, **ROW},
    )
    present = write(
        tmp_path / "present.parquet",
        [{"_change_type": "insert", "_lsn": 40, "_seq": 0, "key`": 9, "gone": "g", "n": 5}],
        {**LOGGED, "key`": pa.int64(), "gone": pa.string(), "n": pa.int32()},
    )
    rows = shown(
        TableChanges(
            after,
            (present,),
            ChangeStats(),
            spark,
            former=(FormerChanges((former,), way(before, after)),),
        )
    )
    new = "it's \\ new"
    assert [[row[name] for name in after.column_names] for row in rows] == [
        [1, "A", "B", long_ago, new, None],
        [2, None, "B2", None, new, None],
        [3, None, None, None, None, None],
        [None] * 6,
        [9, None, None, None, "g", 5],
    ]
    assert [row["_old"] for row in rows] == [None, {"key`": 1}, None, None, None]
    assert [row["_unchanged"] for row in rows] == [None, ["b"], None, None, None]
    overflow = [row["_exact"] for row in rows]
    assert overflow == [{"day": "infinity"}, {"_old.key`": "one"}, None, None, None]


def test_whole_rows_of_a_keyless_table(spark: SparkSession, tmp_path: Path) -> None:
    before, after = table(*BEFORE), table(*AFTER)
    file = write(
        tmp_path / "former.parquet",
        [
            {
                "_change_type": "update",
                "_lsn": 10,
                "_seq": 0,
                "_old": {"id": 1, "a": "A"},
                "_exact": [("_old.d", "infinity")],
                "id": 2,
                "a": "A2",
                "b": "B",
            },
            {"_change_type": "delete", "_lsn": 20, "_seq": 0, "id": 3, "b": "C"},
        ],
        {**LOGGED, **OPTIONAL, "_old": pa.struct(list(ROW.items())), **ROW},
    )
    changes = TableChanges(
        after,
        (),
        ChangeStats(rows=2, updates=1, deletes=1, overflow=True),
        spark,
        former=(FormerChanges((file,), way(before, after)),),
    )
    new = "it's \\ new"
    gone, came = [1, "A", None, None, new, None], [2, "A2", "B", None, new, None]
    updated, deleted = shown(changes)
    assert list(updated["_old"].values()) == gone
    assert updated["_exact"] == {"_old.day": "infinity"}
    assert [deleted[name] for name in after.column_names] == [3, None, "C", None, new, None]
    net = {
        (row["_change_type"], *(row[name] for name in after.column_names))
        for row in changes.net().collect()
    }
    assert net == {("delete", *gone), ("insert", *came), ("delete", 3, None, "C", None, new, None)}
    assert changes.since(Lsn(15)).net().count() == 1


@pytest.mark.parametrize(
    ("value", "spark_type"),
    [
        (None, "int"),
        (True, "boolean"),
        (-(1 << 63), "bigint"),
        (0.1, "double"),
        (float("-inf"), "double"),
        (Decimal("12345678901234567890.10"), "decimal(22,2)"),
        ("a 'quoted' \\n `text`", "string"),
        (b"\x00\xff", "binary"),
        (date(1, 2, 3), "date"),
        (datetime(1582, 10, 10, 1, 2, 3, 45), "timestamp_ntz"),
        (datetime(2024, 1, 2, 3, 4, 5, 678901, UTC), "timestamp"),
        ([1, None, 3], "array<int>"),
        ([], "array<date>"),
        ([date(2024, 1, 1)], "array<date>"),
        (["it's", None], "array<string>"),
        ({"it's": "x", "n": None}, "map<string,string>"),
        ({}, "map<string,string>"),
    ],
)
def test_values_in_sql(spark: SparkSession, value: object, spark_type: str) -> None:
    given = list(value.items()) if isinstance(value, dict) else value
    found = spark.sql(f"SELECT {sql_value(given, spark_type)} AS v")
    assert found.schema["v"].dataType.simpleString() == spark_type
    row = found.first()
    assert row is not None
    if spark_type == "timestamp":
        # Python is shown one in its own time zone.
        assert row.v.astimezone(UTC) == value
    else:
        assert row.v == value
