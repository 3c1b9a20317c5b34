"""Maintenance of a lake's tables: few files, few versions, no orphan files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from walflow.config import MaintenanceSettings
from walflow.destinations.lake.engines import Engines
from walflow.destinations.lake.format import Compaction, LakeFormat, Turn, Version
from walflow.destinations.lake.retention import kept_by_age
from walflow.failpoints import failpoint
from walflow.model import TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Due", "Schedule", "given_up", "maintain"]

_FIRST_ORPHANS_SECONDS = 3600.0
_ORPHANS_SECONDS = 86_400.0
"""How often orphan files are looked for: all files of the table are listed for it."""


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be done for a table."""

    compact: bool
    remove_orphans: bool


@dataclass(slots=True)
class _Since:
    maintained: float
    orphans_due: float
    batches: int = 0
    """Since its last maintenance."""
    uncompacted: int | None = None
    """Batches since its last compaction; None: since before this run of the pipeline."""


class Schedule:
    """When tables are due. In memory: it is asked after each batch, and must cost nothing."""

    def __init__(
        self, maintenance: MaintenanceSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._maintenance = maintenance
        self._clock = clock
        self._lock = threading.Lock()
        self._tables: dict[TableName, _Since] = {}

    def committed(self, name: TableName) -> None:
        """A batch of the table has been written."""
        with self._lock:
            now = self._clock()
            since = self._tables.setdefault(name, _Since(now, now + _FIRST_ORPHANS_SECONDS))
            since.batches += 1
            if since.uncompacted is not None:
                since.uncompacted += 1

    def is_due(self, name: TableName) -> bool:
        if not self._maintenance.enabled:
            return False
        with self._lock:
            since = self._tables.get(name)
            if since is None or not since.batches:
                return False
            # A batch makes at least one file.
            many = since.batches >= self._maintenance.small_files
            return many or self._clock() - since.maintained >= self._maintenance.interval_seconds

    def begin(self, name: TableName) -> Due:
        """Maintenance of the table begins now. If it fails, it is not due again at once."""
        with self._lock:
            now = self._clock()
            since = self._tables.setdefault(name, _Since(now, now + _FIRST_ORPHANS_SECONDS))
            enough = self._maintenance.small_files // 2
            compact = since.uncompacted is None or since.uncompacted >= enough
            orphans = now >= since.orphans_due
            since.maintained, since.batches = now, 0
            if compact:
                since.uncompacted = 0
            if orphans:
                since.orphans_due = now + _ORPHANS_SECONDS
        return Due(compact, orphans)


def maintain(
    spark: SparkSession,
    format: LakeFormat,
    engines: Engines,
    name: TableName,
    maintenance: MaintenanceSettings,
    due: Due,
    needed: Callable[[], Collection[int]],
    turn: Turn,
    clock: Callable[[], float],
) -> None:
    """Do what is due. ``needed`` says which versions others need."""
    if due.compact:
        policy = Compaction(maintenance.small_files, maintenance.target_file_bytes)
        engines.compact(spark, name, policy, turn)
    if format.expires_beside:
        _expire(spark, format, name, maintenance, due, needed, clock)
        return
    with turn() as stamp, format.stamped(spark, stamp):
        _expire(spark, format, name, maintenance, due, needed, clock)


def _expire(
    spark: SparkSession,
    format: LakeFormat,
    name: TableName,
    maintenance: MaintenanceSettings,
    due: Due,
    needed: Callable[[], Collection[int]],
    clock: Callable[[], float],
) -> None:
    failpoint("maintain.expire", name)
    versions = format.versions(spark, name)
    if len(versions) > maintenance.keep_snapshots:
        gone = given_up(versions, clock(), maintenance, needed())
        if gone:
            format.expire(spark, name, [version.id for version in gone], gone[-1].committed)
    if due.remove_orphans:
        age = timedelta(seconds=maintenance.orphans_seconds)
        format.remove_orphans(spark, name, datetime.now(UTC) - age)


def given_up(
    versions: Sequence[Version],
    now: float,
    maintenance: MaintenanceSettings,
    needed: Collection[int],
) -> list[Version]:
    """Of a table's versions, oldest to newest, those that can go."""
    positioned = [version for version in versions if version.position is not None]
    stay = {version.id for version in (*versions[-maintenance.keep_snapshots :], *positioned[-1:])}
    stay |= kept_by_age(versions, now, maintenance.keep_snapshots_seconds) | set(needed)
    return [version for version in versions if version.id not in stay]
