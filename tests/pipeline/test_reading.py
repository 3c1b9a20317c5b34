"""A copy is what its snapshot sees: read at once, or in parts under snapshots of different age."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Database
from tests.pipeline.capturing import Capture
from tests.pipeline.reading import Reading
from walflow.errors import FailpointReached
from walflow.failpoints import set_failpoints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DOCUMENTS = (
    "CREATE TABLE documents (tenant int, name text, pad text, doc text, amount numeric(10,2),"
    " at timestamptz DEFAULT now(), PRIMARY KEY (name, tenant))",
    "ALTER TABLE documents ALTER doc SET STORAGE EXTERNAL",
    "INSERT INTO documents SELECT n % 7, E'it''s \\\\ ' || n, repeat('x', 300),"
    " CASE WHEN n % 5 = 0 THEN repeat(md5(n::text), 100) END, n / 100.0"
    " FROM generate_series(1, 2000) n",
)
"""Rows of some hundred bytes, of which every fifth has a value that lies outside."""


@pytest.fixture
def reading(database: Database, spark: SparkSession, tmp_path: Path) -> Iterator[Reading]:
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    with Capture(database.uri, tmp_path / "log", slot=f"{database.name}_s") as capture:
        yield Reading(database, spark, capture)
    set_failpoints("")


def break_off(reading: Reading, name: str, ranges: int) -> int:
    """Read some ranges under a snapshot that is then gone; how many."""
    set_failpoints(f"copy.range[public.{name}]@{ranges}=raise")
    with reading.snapshot() as snapshot, pytest.raises(FailpointReached):
        reading.read(name, snapshot)
    set_failpoints("")
    finished = reading.finished(name)
    assert finished >= ranges
    return finished


def test_a_table_is_what_the_snapshot_sees(reading: Reading) -> None:
    reading.database.execute(*DOCUMENTS)
    with reading.snapshot() as snapshot:
        reading.database.execute(
            "UPDATE documents SET pad = 'y' WHERE tenant = 3",
            "DELETE FROM documents WHERE tenant = 4",
        )
        copy = reading.read("documents", snapshot)
        assert reading.check("documents", copy, snapshot).total() == 2000
        assert reading.progress[-1] == 2000
        assert reading.reader.finished(copy.schema.oid) == copy
        assert reading.ranges_read("documents") == reading.finished("documents") > 20
        assert reading.read("documents", snapshot) == copy
    reading.reader.drop(copy.schema.oid)
    assert reading.reader.finished(copy.schema.oid) is None
    assert not reading.copy_of("documents").folder.exists()


def test_a_copy_goes_on_under_a_newer_snapshot(reading: Reading) -> None:
    reading.database.execute(*DOCUMENTS)
    before = break_off(reading, "documents", 20)
    reading.database.execute(
        "UPDATE documents SET pad = pad || 'y' WHERE tenant = 3",
        "DELETE FROM documents WHERE tenant = 4",
    )
    with reading.snapshot() as snapshot:
        reading.database.execute("UPDATE documents SET pad = 'later'")
        copy = reading.read("documents", snapshot)
        reading.check("documents", copy, snapshot)
        plan = reading.copy_of("documents").plan()
        assert plan is not None
        assert reading.ranges_read("documents") == len(plan.ranges) > before
