"""Delta tables without a key: equal rows cannot be told apart there, only counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.destinations.modes import KEYLESS, OWNER, Lake, _as_in_models, begun
from tests.destinations.pairs import FOREVER, LAST_DAY, Pair
from tests.destinations.reference import Row, Source, assert_same, copy_of, make_schema
from tests.destinations.test_lake_modes import _tell, copies_story
from walflow.config.lake import Mode
from walflow.destinations.delta import DeltaFormat, table_folder
from walflow.destinations.delta.commits import readable_commits
from walflow.destinations.lake import LakeDestination, TablePlan
from walflow.destinations.lake.sessions import lake_session
from walflow.errors import DestinationError
from walflow.evolution import Evolution
from walflow.model import Span, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class DeltaLake(Lake):
    def destination(self, plan: TablePlan, name: str) -> LakeDestination:
        format = DeltaFormat(str(self.folder / name))
        self.open.append(LakeDestination(self.spark, format, OWNER, lambda table: plan))
        return self.open[-1]

    def session(self, name: str) -> SparkSession:
        if name not in self.sessions:
            format = DeltaFormat(str(self.folder / name))
            self.sessions[name] = lake_session(self.spark, format.session_conf)
        return self.sessions[name]

    def rows(self, schema: TableSchema, name: str) -> list[Row]:
        identifier = DeltaFormat(str(self.folder / name)).identifier(schema.name)
        table = self.session(name).table(identifier).toArrow()
        return [_as_in_models(row) for row in table.to_pylist()]

    def commits(self, schema: TableSchema, name: str) -> int:
        return len(readable_commits(table_folder(self.folder / name, schema.name)))


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    lake = DeltaLake(spark, tmp_path)
    yield lake
    for destination in lake.open:
        destination.shutdown()


@pytest.mark.parametrize("mode", ["mirror", "soft_delete"])
def test_a_story_with_what_rows_tell_of_their_changes(lake: Lake, mode: Mode) -> None:
    """Also those that had to come again."""
    told = begun(lake, KEYLESS, mode, "told")
    commits = lake.commits(KEYLESS, "told")
    # Some without a truncate, then some with one.
    batches = _tell(told, copies_story, every=2)
    told.check()
    for events in batches:
        told.destination.apply(events)
    told.check()
    assert lake.commits(KEYLESS, "told") == commits + 2


def test_rows_of_all_kinds_come_and_go_copy_by_copy(spark: SparkSession, tmp_path: Path) -> None:
    columns = {
        "a": "string",
        "f": "double",
        "at": "timestamp",
        "l": "array<int>",
        "m": "map<string,string>",
    }
    pair = Pair(spark, tmp_path, make_schema(columns, []), "delta")
    source = pair.source
    twin = {"a": "x", "f": float("nan"), "l": [1, None], "m": [("k", "v"), ("j", None)]}
    with source.transaction():
        for at in (LAST_DAY, LAST_DAY, None, LAST_DAY, None):
            source.insert(**twin, at=at)
        source.insert()
        source.insert()
    pair.copy()
    with source.transaction():
        # The table has no column for the exact text yet, and then the same row but for that.
        source.insert(**twin, at=FOREVER)
        source.insert(**twin, at=FOREVER)
        source.delete(source.find(at=LAST_DAY))
        source.delete(next(row for row in source.rows if row["a"] is None))
    pair.batch()
    with source.transaction():
        source.update(source.find(at=FOREVER), a="y")
        source.update(source.find(at=LAST_DAY), m=[("j", None)])
        source.insert(a="z", f=-1.0)
        source.delete(source.rows[-1])
    pair.batch(pieces=2)
    before = list(source.rows)
    with source.transaction():
        source.insert(a="never")
    source.events(pair.spark)
    with source.transaction():
        source.delete(source.find(a="never"))
        source.delete(source.find(a="y"))
    events, applied = source.events(pair.spark), pair.destination.applied(source.schema)
    assert applied is not None
    with pytest.raises(DestinationError, match=r"lacks a row that was removed from its source"):
        # As if nothing was missing in between.
        pair.destination.apply(replace(events, span=Span(applied, events.span.upto)))
    source.rows = before
    pair.check()
    pair.destination.shutdown()


def test_values_that_the_source_has_no_longer_stay(lake: Lake) -> None:
    before = make_schema({"a": "string", "n": "int", "gone": "int"}, [])
    after = replace(before, columns=before.columns[:2])
    destination = lake.destination(TablePlan(on_column_dropped="keep"), "kept")
    (lake.folder / "log").mkdir()
    source = Source(before, lake.folder / "log")
    with source.transaction():
        for gone in (1, 1, 2):
            source.insert(a="x", n=1, gone=gone)
    source.events(lake.spark)
    destination.copy(copy_of(before, [source.copy_file()], source.position, overflow=False))
    destination.evolve(Evolution(before, after, dropped=(before.column("gone"),)))
    source.schema = after
    with source.transaction():
        source.delete(source.rows[0])
        source.insert(a="x", n=1)
    destination.apply(source.events(lake.spark))
    rows = lake.rows(after, "kept")
    assert_same([{"a": r["a"], "n": r["n"]} for r in rows], [{"a": "x", "n": 1}] * 3)
    left = Counter(row["gone"] for row in rows)
    assert left[None] == 1
    assert left in (Counter([None, 1, 2]), Counter([None, 1, 1]))
