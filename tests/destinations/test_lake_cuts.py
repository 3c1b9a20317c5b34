"""Consistent cuts of a lake's tables, and how long they are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.destinations.reference import Source, copy_of, make_schema, reading_session
from tests.destinations.test_spark_batches import GENERATING, compiled
from walflow.config import MaintenanceSettings
from walflow.destinations.base import ConsistentCut, CutTable
from walflow.destinations.iceberg import IcebergFormat
from walflow.destinations.lake import LakeDestination, Owner
from walflow.destinations.lake.retention import Retention
from walflow.model import Lsn, TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWNER = Owner("shop", "7300000000000000001", 1)
HOUR, DAY = 3600.0, 86_400.0


def test_fewer_cuts_are_kept_the_older_they_get() -> None:
    keeping = Retention(10 * DAY)
    kept = [(now, keeping.seconds(now)) for now in range(1_800_000_000, 1_800_007_200)]
    assert kept[0][1] == 10 * DAY
    # Of two hours of cuts, after a quarter of an hour, an hour, and a day.
    assert [sum(seconds > age for _, seconds in kept) for age in (0, 900, HOUR, DAY)] == [
        7200,
        120,
        12,
        2,
    ]


def test_none_is_kept_for_longer_than_the_settings_say() -> None:
    keeping = Retention(60)
    assert {keeping.seconds(now) for now in range(1000)} == {60}


class Shop:
    """Two tables."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        maintenance: MaintenanceSettings,
        clock: Callable[[], float] = time.time,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self.spark = spark
        self.sources = []
        for name in ("orders", "lines"):
            (folder / name).mkdir(parents=True)
            schema = make_schema({"id": "bigint", "n": "int"}, ["id"], name)
            self.sources.append(Source(schema, folder / name))
        self.format = IcebergFormat(str(folder / "lake"))
        self.format.session_conf = {**self.format.session_conf, **(conf or {})}
        self.destination = LakeDestination(
            spark,
            self.format,
            OWNER,
            maintenance=maintenance,
            clock=clock,
        )
        self.reader = reading_session(spark, folder / "lake")
        for source in self.sources:
            with source.transaction():
                source.insert(id=1, n=0)
            source.events(spark)
            files = [source.copy_file()]
            self.destination.copy(copy_of(source.schema, files, source.position, False))

    def batch(self, number: int) -> None:
        for source in self.sources:
            with source.transaction():
                source.update(source.find(id=1), n=number)
                source.insert(id=number + 1, n=number)
            self.destination.apply(source.events(self.spark))

    def record(self, commit_time: int | None = None) -> Lsn:
        """The tables have the same positions here."""
        position = self.sources[0].position
        tables = tuple(
            CutTable(source.schema.name, source.schema.name, source.position)
            for source in self.sources
        )
        upto = Lsn(position + 3)
        self.destination.keep_cut(ConsistentCut(position, upto, commit_time, tables))
        return position

    def maintain(self) -> None:
        for source in self.sources:
            assert self.destination.maintenance_due(source.schema)
            self.destination.maintain(source.schema)

    def shown_at(self, position: Lsn) -> list[list[tuple[int, int]]]:
        found = self.destination.as_of(position)
        assert found is not None
        assert found.cut.since <= position <= found.cut.upto
        assert None not in found.queries
        return [sorted(self.rows(query)) for query in found.queries if query]

    def rows(self, query: str) -> list[tuple[int, int]]:
        return [(row["id"], row["n"]) for row in self.reader.sql(query).collect()]


def rows_after(number: int) -> list[tuple[int, int]]:
    return [(1, number), *((later + 1, later) for later in range(1, number + 1))]


@pytest.mark.spark
def test_cuts_outlive_batches_maintenance_and_the_process(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    maintenance = MaintenanceSettings(small_files=2, keep_snapshots_seconds=HOUR, keep_snapshots=1)
    shop = Shop(spark, tmp_path, maintenance)
    assert shop.destination.as_of() is None
    assert shop.destination.oldest_cut() is None
    kept: dict[int, Lsn] = {}
    for number in range(1, 5):
        shop.batch(number)
        if number != 2:
            kept[number] = shop.record(commit_time=number * 1_000_000)
        if number % 2 == 0:
            shop.maintain()
    for number, position in kept.items():
        assert shop.shown_at(position) == [rows_after(number)] * 2
    newest = shop.destination.as_of()
    assert newest is not None
    assert newest.cut.commit_time == datetime.fromtimestamp(4, UTC)
    in_time = shop.destination.as_of(moment=datetime.fromtimestamp(3.5, UTC))
    assert in_time is not None
    assert in_time.cut.since == kept[3]
    # Between two cuts: the one before, as its end says.
    between = shop.destination.as_of(Lsn(kept[3] - 1))
    assert between is not None
    assert between.cut.upto == kept[1] + 3 < kept[3] - 1
    assert shop.destination.as_of(Lsn(kept[1] - 1)) is None
    oldest = shop.destination.oldest_cut()
    assert oldest is not None
    assert oldest.since == kept[1]
    # Another process goes on with the same table, and a drop finds it.
    shop.destination.shutdown()
    again = LakeDestination(spark, shop.format, OWNER)
    assert TableName("_walflow", "consistent_cuts_shop") in again.own_tables()
    tables = tuple(
        CutTable(source.schema.name, source.schema.name, source.position) for source in shop.sources
    )
    assert again.keep_cut(ConsistentCut(Lsn(5000), Lsn(5000), None, tables))
    last = again.as_of()
    assert last is not None
    assert (last.cut.since, last.cut.commit_time) == (Lsn(5000), None)
    # Another table of the same name has versions of its own, none of them from before it.
    first = shop.sources[0]
    again.drop(first.schema)
    again.copy(copy_of(first.schema, [first.copy_file()], first.position, overflow=False))
    assert again.keep_cut(ConsistentCut(Lsn(6000), Lsn(6000), None, tables))
    last = again.as_of()
    assert last is not None
    assert None not in last.queries
    before = tuple(replace(table, position=Lsn(1)) for table in tables)
    assert not again.keep_cut(ConsistentCut(Lsn(7000), Lsn(7000), None, before))
    again.shutdown()


@pytest.mark.spark
def test_cuts_that_are_past_go_and_their_versions_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walflow.destinations.lake.consistent_cuts._TIDY_EVERY", 3)
    # It must not depend on how long things take here.
    hours = 0
    maintenance = MaintenanceSettings(small_files=2, keep_snapshots_seconds=HOUR, keep_snapshots=1)
    shop = Shop(spark, tmp_path, maintenance, clock=lambda: time.time() + hours * HOUR)
    for number in range(1, 4):
        shop.batch(number)
        shop.record()
        hours += 2
    rows = shop.reader.sql("SELECT DISTINCT lsn FROM lake._walflow.consistent_cuts_shop").collect()
    assert len(rows) == 1, "the others were tidied away"
    shop.maintain()
    # It is past too, by now, but nothing newer is there, and the tables are as it shows them.
    last = shop.destination.as_of()
    assert last is not None
    assert None not in last.queries
    assert shop.destination.oldest_cut() == last.cut
    versions = shop.format.versions(shop.reader, TableName("public", "orders"))
    # Of six: the last batch, what compaction made of it, and its stamp.
    assert len(versions) <= 3
    assert versions[-1].position == shop.sources[0].position
    assert versions[0].committed > datetime.now(UTC) - timedelta(days=1)
    shop.destination.shutdown()


@pytest.mark.spark
def test_maintenance_compiles_nothing_anew(spark: SparkSession, tmp_path: Path) -> None:
    """As it comes every minute, a pipeline would otherwise take more and more memory."""
    now = [time.time()]
    often = MaintenanceSettings(interval_seconds=1, keep_snapshots_seconds=1, keep_snapshots=1)
    shop = Shop(spark, tmp_path, often, lambda: now[0], GENERATING)
    seen = []
    for number in range(6):
        for batch in (1, 2):
            shop.batch(2 * number + batch)
            shop.record()
            now[0] += 1
        now[0] += 70
        for source in shop.sources:
            shop.destination.maintain(source.schema)
        seen.append(compiled(spark))
    assert 0 < seen[2] == seen[-1]
