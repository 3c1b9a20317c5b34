"""The comparison itself: it finds every kind of difference, and only differences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Database
from walflow.demo.compare import TableComparison, compare_table
from walflow.destinations.iceberg import catalog_conf
from walflow.model import TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NAME = TableName("shop", "t")

SOURCE = (
    "CREATE SCHEMA shop",
    "CREATE TABLE shop.t (a int, b text, price numeric(8,2), free numeric, at timestamptz,"
    " day date, f float8, tags text[], doc jsonb, raw bytea, ok boolean, PRIMARY KEY (a, b))",
    """
    INSERT INTO shop.t VALUES
        (1, '', 1.50, 0, '2024-02-29 12:00:00.000001+00', '2024-02-29', 0.1, '{}', '{"a": 1}',
            '\\x00ff', true),
        (2, 'x, "y"', NULL, 'NaN', 'infinity', '-infinity', 'NaN', '{{a,b},{c,NULL}}', NULL,
            '', false),
        (3, E'line\\nbreak', -0.01, 1e-18, '0001-01-01 00:00:00+00', '9999-12-31', '-0',
            '{"a,b",NULL,"é\U0001f600"}', '[]', NULL, NULL),
        (4, 'NULL', 0, 1e25, '0044-03-15 12:00:00+00 BC', '12000-01-01', 1e300, '[5:5]={z}',
            '"NULL"', NULL, NULL)
    """,
)

# What the destination must then have, written by hand.
ROWS = """
    SELECT 1 a, '' b, 1.50BD price, 0BD free, timestamp '2024-02-29 12:00:00.000001' at,
        date '2024-02-29' day, 0.1D f, cast(array() AS array<string>) tags, '{"a": 1}' doc,
        X'00ff' raw, true ok, cast(null AS map<string, string>) _EXACT
    UNION ALL SELECT 2, 'x, "y"', NULL, NULL, timestamp '9999-12-31 23:59:59.999999',
        date '0001-01-01', double('NaN'), array('a', 'b', 'c', NULL), NULL, X'', false,
        map('free', 'NaN', 'at', 'infinity', 'day', '-infinity', 'tags', '{{a,b},{c,NULL}}')
    UNION ALL SELECT 3, 'line\\nbreak', -0.01BD, 0.000000000000000001BD,
        timestamp '0001-01-01 00:00:00', date '9999-12-31', -0.0D,
        array('a,b', NULL, 'é\U0001f600'), '[]', NULL, NULL, NULL
    UNION ALL SELECT 4, 'NULL', 0BD, NULL, timestamp '0001-01-01 00:00:00', date '9999-12-31',
        1e300D, array('z'), '"NULL"', NULL, NULL,
        map('free', '10000000000000000000000000', 'at', '0044-03-15 12:00:00+00 BC',
            'day', '12000-01-01', 'tags', '[5:5]={z}')
"""


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> SparkSession:
    session = spark.newSession()
    for name, value in catalog_conf(str(tmp_path / "lake"), {}).items():
        if name.startswith("spark.sql.catalog."):
            session.conf.set(name, value)
    session.sql(
        "CREATE TABLE lake.shop.t (a int, b string, price decimal(8,2), free decimal(38,18),"
        " at timestamp, day date, f double, tags array<string>, doc string, raw binary,"
        " ok boolean, _EXACT map<string, string>) USING iceberg"
    )
    return session


def compared(database: Database, lake: SparkSession) -> TableComparison:
    with database.connect() as connection:
        return compare_table(connection, lake, NAME)


def test_equal_tables_are_equal_and_each_difference_is_named(
    database: Database, lake: SparkSession
) -> None:
    database.execute(*SOURCE)
    lake.sql(f"INSERT INTO lake.shop.t {ROWS}")
    same = compared(database, lake)
    assert same.different == ()
    assert (same.equal, same.source_rows, same.destination_rows) == (True, 4, 4)

    # One value of each column, in turn.
    for column, value, shown in (
        ("price", "1.51BD", "1.51"),
        ("free", "0.000000000000000001BD", "0.000000000000000001"),
        ("at", "timestamp '2024-02-29 12:00:00'", "2024-02-29 12:00:00.000000"),
        ("day", "NULL", None),
        ("f", "0.10000000000000002D", "4591870180066957723"),
        ("tags", "NULL", None),
        ("doc", "'{\"a\":1}'", '{"a":1}'),
        ("raw", "X'00fe'", "00fe"),
        ("ok", "false", "false"),
    ):
        lake.sql(f"UPDATE lake.shop.t SET {column} = {value} WHERE a = 1")
        wrong = compared(database, lake)
        assert not wrong.equal
        assert [(one.key, one.column, one.destination) for one in wrong.different] == [
            ("a=1, b=", column, shown)
        ]
        lake.sql("DELETE FROM lake.shop.t WHERE a = 1")
        lake.sql(f"INSERT INTO lake.shop.t SELECT * FROM ({ROWS}) WHERE a = 1")
    assert compared(database, lake).equal

    # A clamped value whose exact text is gone, or is another.
    lake.sql("UPDATE lake.shop.t SET _EXACT = map_concat(_EXACT, map()) WHERE a = 2")
    lake.sql("UPDATE lake.shop.t SET _EXACT = map_filter(_EXACT, (k, v) -> k <> 'at') WHERE a = 2")
    assert [one.column for one in compared(database, lake).different] == ["at"]


def test_rows_that_only_one_side_has_and_rows_twice(database: Database, lake: SparkSession) -> None:
    database.execute(*SOURCE)
    lake.sql(f"INSERT INTO lake.shop.t {ROWS}")
    lake.sql("UPDATE lake.shop.t SET b = 'else' WHERE a = 4")
    lake.sql(f"INSERT INTO lake.shop.t SELECT * FROM ({ROWS}) WHERE a = 1")
    found = compared(database, lake)
    assert not found.equal
    assert (found.missing, found.missing_count) == (("a=4, b=NULL",), 1)
    assert (found.surplus, found.surplus_count) == (("a=4, b=else",), 1)
    assert found.repeated == ("a=1, b=",)
    assert found.different == ()

    lake.sql("DROP TABLE lake.shop.t")
    gone = compared(database, lake)
    assert (gone.missing_count, gone.destination_rows, gone.equal) == (4, 0, False)


def test_keys_that_are_one_list_and_have_another_shape(
    database: Database, lake: SparkSession
) -> None:
    database.execute(
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.t (k text[] PRIMARY KEY)",
        "INSERT INTO shop.t VALUES ('{a,b}'), ('{{a,b}}')",
    )
    lake.sql("DROP TABLE lake.shop.t")
    lake.sql("CREATE TABLE lake.shop.t (k array<string>, _EXACT map<string, string>) USING iceberg")
    lake.sql("INSERT INTO lake.shop.t VALUES (array('a', 'b'), map('k', '{{a,b}}'))")
    lacks = compared(database, lake)
    assert (lacks.missing_count, lacks.surplus_count, lacks.repeated) == (1, 0, ())
    lake.sql("INSERT INTO lake.shop.t VALUES (array('a', 'b'), NULL)")
    assert compared(database, lake).equal


def test_two_empty_tables_are_equal(database: Database, lake: SparkSession) -> None:
    database.execute(*SOURCE[:2])
    assert compared(database, lake).equal
