"""Rows of Spark's as Arrow batches: all of them, in order, however they are fetched."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from walflow.spark.batches import AtMost, arrow_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("streamed", [False, True])
def test_batches_are_in_order_and_of_one_size(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    if streamed:
        monkeypatch.setattr("walflow.spark.batches._AT_ONCE", 0)
        monkeypatch.setattr("walflow.spark.batches._PART_ROWS", 30)
    frame = spark.range(100).selectExpr(
        "(id * 37) % 100 AS n", "array(timestamp_micros(id)) AS times", "named_struct('t', id) AS s"
    )
    batches = list(arrow_batches(frame, 30, order=("n",), at_most=AtMost(100, 1000)))
    assert [batch.num_rows for batch in batches] == [30, 30, 30, 10]
    table = pa.Table.from_batches(batches)
    assert table["n"].to_pylist() == list(range(100))
    assert table.schema.field("times").type.value_type == pa.timestamp("us", "UTC")
    of_one = table.slice(37, 1).to_pylist()[0]
    assert of_one["s"] == {"t": 1}
    assert of_one["times"] == [datetime.datetime(1970, 1, 1, 0, 0, 0, 1, datetime.UTC)]


def test_no_rows_are_one_batch_with_the_columns(spark: SparkSession) -> None:
    (batch,) = arrow_batches(spark.range(0).selectExpr("id", "'x' AS t"), 10)
    assert (batch.num_rows, batch.schema.names) == (0, ["id", "t"])


def test_wide_rows_make_small_batches(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walflow.spark.batches._PIECE_BYTES", 10_000)
    frame = spark.range(20).selectExpr("id", "repeat('x', 4000) AS t")
    # Few rows, but too large to be fetched at once.
    batches = list(arrow_batches(frame, 30, order=("id",), at_most=AtMost(20, 1 << 30)))
    assert [batch.num_rows for batch in batches] == [2] * 10
    assert pa.Table.from_batches(batches)["id"].to_pylist() == list(range(20))
