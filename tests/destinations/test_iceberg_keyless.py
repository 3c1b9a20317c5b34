"""Iceberg tables without a key, by Spark: exactly the removed rows go, or none does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.destinations.modes import KEYLESS
from tests.destinations.pairs import Pair
from walflow.destinations.lake import keyless
from walflow.destinations.lake.merging import viewed
from walflow.destinations.lake.modes import mirror
from walflow.destinations.lake.small import without_key
from walflow.errors import DestinationError, TableMoved
from walflow.model import Lsn, Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def pair(spark: SparkSession, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(spark, tmp_path, KEYLESS, engine="spark")
    with pair.source.transaction():
        for number in range(6):
            pair.source.insert(a="x", n=number // 2)
    pair.copy()
    yield pair
    pair.destination.shutdown()


def test_a_removed_row_that_is_not_there(pair: Pair) -> None:
    """Of several such rows, one is told of."""
    source, before = pair.source, list(pair.source.rows)
    with source.transaction():
        source.insert(a="never")
        source.insert(a="never")
    source.events(pair.spark)
    with source.transaction():
        source.delete(source.find(n=0))
        source.delete(source.find(a="never"))
        source.delete(source.find(a="never"))
    events, applied = source.events(pair.spark), pair.destination.applied(source.schema)
    assert applied is not None
    (commit,) = {row["_lsn"] for row in events.changes.collect()}
    with pytest.raises(DestinationError) as raised:
        # As if nothing was missing in between.
        pair.destination.apply(replace(events, span=Span(applied, events.span.upto)))
    assert str(raised.value) == (
        f"{source.schema.name} lacks a row that was removed from its source by the transaction at "
        f"{Lsn(commit)}"
    )
    source.rows = before
    pair.check()


@pytest.mark.parametrize("small", [True, False], ids=["small", "large"])
def test_rows_that_somebody_moves_meanwhile(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    """Where the removed rows are was looked up, and the MERGE has not begun."""
    monkeypatch.setattr(mirror, "is_small", lambda changes: small)
    writer = without_key if small else keyless

    @contextmanager
    def moved(frame: DataFrame) -> Iterator[str]:
        table = pair.format.identifier(pair.source.schema.name)
        catalog, _, name = table.partition(".")
        pair.session.sql(
            f"CALL {catalog}.system.rewrite_data_files(table => '{name}',"
            " options => map('rewrite-all', 'true'))"
        ).collect()
        with viewed(frame) as view:
            yield view

    source = pair.source
    with source.transaction():
        source.delete(source.find(n=0))
        source.update(source.find(n=1), a="y")
        source.insert(a="z")
    events, before = source.events(pair.spark), pair.rows()
    with monkeypatch.context() as patched:
        patched.setattr(writer, "viewed", moved)
        with pytest.raises(TableMoved):
            pair.destination.apply(events)
    assert pair.rows() == before
    pair.destination.apply(events)
    pair.check()
