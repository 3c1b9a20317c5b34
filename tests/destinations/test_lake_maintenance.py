"""Maintenance of a lake's tables: bounded, whatever happens, and unseen by their readers."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.destinations.reference import (
    Source,
    assert_same,
    copy_of,
    make_schema,
    reading_session,
    stored_rows,
)
from walflow.config import MaintenanceSettings
from walflow.destinations.iceberg import IcebergFormat
from walflow.destinations.lake import LakeDestination, Owner
from walflow.destinations.lake.format import Version
from walflow.destinations.lake.maintenance import Due, Schedule, given_up
from walflow.errors import FailpointReached
from walflow.failpoints import set_failpoints
from walflow.model import Lsn, TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWNER = Owner("shop", "7300000000000000001", 1)
SCHEMA = make_schema({"id": "bigint", "n": "int", "a": "string"}, ["id"])
NOW = 1_800_000_000.0
HOUR, DAY = 3600, 86_400
_READ_EVERY = 0.2
_WAIT_SECONDS = 240


# What is kept.


def versions_of_a_day(seconds: int = DAY, every: int = 1) -> list[Version]:
    """A version a second, the last one now."""
    return [
        Version(number, datetime.fromtimestamp(NOW - seconds + number, UTC), Lsn(number))
        for number in range(0, seconds + 1, every)
    ]


def test_a_day_of_batches_a_second_leaves_few_versions_and_all_of_the_last_minutes() -> None:
    versions = versions_of_a_day()
    gone = given_up(versions, NOW, MaintenanceSettings(), ())
    kept = sorted({version.id for version in versions} - {version.id for version in gone})
    assert len(kept) < 1200
    # Whoever began to read a quarter of an hour ago finds all that it needs.
    assert kept[-900:] == list(range(DAY - 899, DAY + 1))
    # As of any minute of the last hour, and any ten minutes of the day.
    times = [NOW - DAY + version for version in kept]
    for every, since in ((60, HOUR), (600, DAY)):
        for ago in range(every, since, every):
            wanted = (NOW - ago) // every * every
            at = max(moment for moment in times if moment <= wanted)
            assert wanted - at < 1


def test_what_a_quiet_table_was_stays_until_it_is_long_past() -> None:
    """A version's age does not count, but for how long it has not been the table."""
    times = {1: 5 * DAY, 2: 3 * DAY, 3: 2 * HOUR, 4: 60}
    versions = [
        Version(number, datetime.fromtimestamp(NOW - ago, UTC), Lsn(number))
        for number, ago in times.items()
    ]
    gone = given_up(versions, NOW, MaintenanceSettings(keep_snapshots=1), ())
    assert [version.id for version in gone] == [1]


def test_versions_that_others_need_stay_and_the_last_position_does() -> None:
    versions = versions_of_a_day(1000)
    stamped, bare = versions[:-5], [Version(v.id, v.committed, None) for v in versions[-5:]]
    maintenance = MaintenanceSettings(keep_snapshots_seconds=0, keep_snapshots=2)
    gone = given_up([*stamped, *bare], NOW, maintenance, {17})
    kept = {version.id for version in versions} - {version.id for version in gone}
    assert kept == {17, stamped[-1].id, bare[-2].id, bare[-1].id}


def test_a_table_is_due_after_many_batches_or_some_time_and_costs_nothing_until_then() -> None:
    now = [0.0]
    schedule = Schedule(MaintenanceSettings(interval_seconds=300, small_files=10), lambda: now[0])
    table = TableName("public", "t")
    assert not schedule.is_due(table)
    for _ in range(9):
        schedule.committed(table)
    assert not schedule.is_due(table)
    schedule.committed(table)
    assert schedule.is_due(table)
    # What was there before this run nobody knows.
    assert schedule.begin(table) == Due(compact=True, remove_orphans=False)
    assert not schedule.is_due(table)
    now[0] = 1000.0
    assert not schedule.is_due(table), "nothing has happened to it"
    schedule.committed(table)
    assert schedule.is_due(table)
    assert schedule.begin(table) == Due(compact=False, remove_orphans=False)
    now[0] = 4000.0
    for _ in range(5):
        schedule.committed(table)
    assert schedule.begin(table) == Due(compact=True, remove_orphans=True)
    assert schedule.begin(table) == Due(compact=False, remove_orphans=False)


def test_nothing_is_due_where_it_is_switched_off() -> None:
    schedule = Schedule(MaintenanceSettings(enabled=False, small_files=2))
    for _ in range(5):
        schedule.committed(TableName("public", "t"))
    assert not schedule.is_due(TableName("public", "t"))


# On real tables.


class Lake:
    def __init__(self, spark: SparkSession, folder: Path, maintenance: MaintenanceSettings) -> None:
        (folder / "log").mkdir()
        self.spark = spark
        self.folder = folder / "ware house%20#?"
        self.source = Source(SCHEMA, folder / "log")
        self.format = IcebergFormat(str(self.folder))
        self.destination = LakeDestination(spark, self.format, OWNER, maintenance=maintenance)
        self.session = reading_session(spark, self.folder)
        with self.source.transaction():
            for number in range(20):
                self.source.insert(id=number, n=0, a="from the beginning")
        self.source.events(spark)
        files = [self.source.copy_file()]
        self.destination.copy(copy_of(SCHEMA, files, self.source.position, False))

    def batch(self, number: int) -> None:
        with self.source.transaction():
            self.source.update(self.source.find(id=number % 20), n=number)
            self.source.insert(id=1000 + number, n=number, a="later")
            if number % 3 == 2:
                self.source.delete(self.source.find(id=1000 + number - 1))
        self.destination.apply(self.source.events(self.spark))

    def check(self) -> None:
        assert_same(stored_rows(self.session, SCHEMA), self.source.rows)
        again = LakeDestination(self.spark, self.format, OWNER)
        assert again.applied(SCHEMA) == self.source.position
        again.shutdown()

    def counts(self) -> dict[str, int]:
        table = "lake.public.t"
        counted = {
            "data files": f"SELECT count(*) FROM {table}.files WHERE content = 0",
            "delete files": f"SELECT count(*) FROM {table}.files WHERE content <> 0",
            "manifests": f"SELECT count(*) FROM {table}.manifests",
            "snapshots": f"SELECT count(*) FROM {table}.snapshots",
        }
        found = {name: self.session.sql(query).collect()[0][0] for name, query in counted.items()}
        data, metadata = self.folder / "public/t/data", self.folder / "public/t/metadata"
        found["metadata files"] = len(list(metadata.glob("*.json")))
        found["files on disk"] = sum(
            file.suffix != ".crc" for one in (data, metadata) for file in one.iterdir()
        )
        return found


@pytest.mark.spark
@pytest.mark.long
def test_batches_without_end_leave_a_bounded_table_and_readers_see_nothing_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A long time of small batches, compressed."""
    maintenance = MaintenanceSettings(
        interval_seconds=DAY, small_files=6, keep_snapshots_seconds=0, keep_snapshots=15
    )
    lake = Lake(spark, tmp_path, maintenance)
    reader = Reader(lake)
    reader.start()
    seen = []
    maintained = 0
    for number in range(60):
        lake.batch(number)
        if lake.destination.maintenance_due(SCHEMA):
            # What it began to read longer ago than the last versions go back may be gone.
            reader.wait_for_another()
            lake.destination.maintain(SCHEMA)
            assert not lake.destination.maintenance_due(SCHEMA)
            maintained += 1
            if maintained % 3 == 1:
                seen.append(lake.counts())
                lake.check()
    reader.end()
    print(*seen, sep="\n")
    assert maintained == 10
    for counts in seen:
        assert counts["data files"] <= 3
        assert counts["delete files"] <= 3
        assert counts["manifests"] <= 25
        assert counts["snapshots"] <= maintenance.keep_snapshots + 1
        assert counts["metadata files"] <= 22
        # No more after ten times than after four.
        assert counts["files on disk"] <= 1.5 * seen[1]["files on disk"]
    lake.destination.shutdown()


class Reader(threading.Thread):
    """Reads the table all the time, and remembers what went wrong."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(daemon=True)
        self._session = reading_session(lake.spark, lake.folder)
        self._stop_asked = threading.Event()
        self._error: Exception | None = None
        self._reads = threading.Semaphore(0)

    def run(self) -> None:
        try:
            while not self._stop_asked.wait(_READ_EVERY):
                rows = self._session.sql("SELECT id, n FROM lake.public.t").collect()
                assert len({row["id"] for row in rows}) == len(rows)
                self._reads.release()
        except Exception as error:
            self._error = error

    def wait_for_another(self) -> None:
        """Until it has read the table once more: what it reads then, it has begun since."""
        while self._reads.acquire(blocking=False):
            pass
        deadline = time.monotonic() + _WAIT_SECONDS
        while not self._reads.acquire(timeout=0.1):
            if self._error is not None:
                raise self._error
            assert time.monotonic() < deadline, "it reads for ever"

    def end(self) -> None:
        self._stop_asked.set()
        self.join()
        if self._error is not None:
            raise self._error


@pytest.mark.spark
def test_maintenance_that_is_broken_off_leaves_the_table_as_it_was(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    maintenance = MaintenanceSettings(small_files=3, keep_snapshots_seconds=0, keep_snapshots=1)
    lake = Lake(spark, tmp_path, maintenance)
    for point in ("maintain.compacted", "maintain.expire"):
        for number in range(4):
            lake.batch(10 * len(point) + number)
        assert lake.destination.maintenance_due(SCHEMA)
        set_failpoints(f"{point}=raise")
        try:
            with pytest.raises(FailpointReached):
                lake.destination.maintain(SCHEMA)
        finally:
            set_failpoints("")
        lake.check()
    for number in range(4):
        lake.batch(number)
    lake.destination.maintain(SCHEMA)
    lake.check()
    assert lake.counts()["snapshots"] == 1, "and it has the position"
    lake.destination.shutdown()


@pytest.mark.spark
def test_litter_goes_when_it_is_old(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, MaintenanceSettings())
    data = lake.folder / "public/t/data"
    litter = [data / "copy-of-a-process-that-was-killed/range.parquet", data / "part.parquet"]
    for file in litter:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"")
        old = time.time() - 3 * DAY
        os.utime(file, (old, old))
    fresh = data / "being-written.parquet"
    fresh.write_bytes(b"")
    lake.format.remove_orphans(lake.session, SCHEMA.name, datetime.now(UTC) - timedelta(days=2))
    assert [file.exists() for file in (*litter, fresh)] == [False, False, True]
    lake.check()
    lake.destination.shutdown()
