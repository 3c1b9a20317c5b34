"""Versions of Delta tables, and the upkeep of their files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from walflow.destinations.delta.commits import readable_commits
from walflow.destinations.delta.tables import identifier_of
from walflow.destinations.lake.format import Compaction, Version
from walflow.model import Lsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["compact", "expire", "remove_orphans", "version_at", "versions"]

_OPTIMIZE = "spark.databricks.delta.optimize."
_LOG_RETENTION = "delta.logRetentionDuration"
# Files below this part of the target are small.
_SMALL = 4
# A VACUUM looks through the folder before it says when it was: what it kept must not look removed.
_SLACK = timedelta(seconds=10)


def versions(folder: Path) -> list[Version]:
    return [Version(c.version, c.committed, c.position) for c in readable_commits(folder)]


def version_at(folder: Path, position: Lsn) -> int | None:
    """The first version that has the newest position up to this one."""
    known = [(v.position, v.id) for v in versions(folder) if v.position is not None]
    reached = max((at for at, _ in known if at <= position), default=None)
    return next((number for at, number in known if at == reached), None)


def compact(spark: SparkSession, folder: Path, policy: Compaction) -> bool:
    """Rewrites also files of which more than a twentieth is deleted, as Delta chooses itself."""
    limit = policy.target_bytes // _SMALL
    if sum(size < limit for size in _file_sizes(spark, folder)) < policy.small_files:
        return False
    sizes = {"maxFileSize": policy.target_bytes, "minFileSize": limit}
    with _told(spark, {_OPTIMIZE + name: str(size) for name, size in sizes.items()}):
        done = spark.sql(f"OPTIMIZE {identifier_of(folder)}").collect()
    return any(row["metrics"]["numFilesAdded"] > 0 for row in done)


def _file_sizes(spark: SparkSession, folder: Path) -> list[int]:
    files = spark.table(identifier_of(folder)).inputFiles()
    return [Path(unquote(urlsplit(file).path)).stat().st_size for file in files]


def expire(spark: SparkSession, folder: Path, given_up: Sequence[int]) -> None:
    """All versions before the oldest one that is not given up."""
    known = versions(folder)
    kept = next((version for version in known if version.id not in set(given_up)), None)
    if kept is None or kept is known[0]:
        return
    _keep_log(spark, folder, kept.committed)
    # LITE would look at the log instead of the folder, but gives up where the log has been cleared.
    _vacuum(spark, folder, kept.committed)


def remove_orphans(spark: SparkSession, folder: Path, before: datetime) -> None:
    """Nothing that a version needs which can be read."""
    oldest = versions(folder)[0].committed
    _vacuum(spark, folder, min(before, oldest))


def _keep_log(spark: SparkSession, folder: Path, since: datetime) -> None:
    """Let Delta clear its log away up to the day before; otherwise it keeps it for a month, which
    is very many files."""
    wanted = f"interval {math.ceil((datetime.now(UTC) - since) / timedelta(days=1)) + 1} days"
    identifier = identifier_of(folder)
    shown = spark.sql(f"SHOW TBLPROPERTIES {identifier}").where(f"key = '{_LOG_RETENTION}'")
    if [row["value"] for row in shown.collect()] != [wanted]:
        spark.sql(f"ALTER TABLE {identifier} SET TBLPROPERTIES ('{_LOG_RETENTION}' = '{wanted}')")


def _vacuum(spark: SparkSession, folder: Path, before: datetime) -> None:
    """Remove files that have been out of use, or are of no use, since before that time."""
    retained = datetime.now(UTC) - before + _SLACK
    hours = retained / timedelta(hours=1)
    spark.sql(f"VACUUM {identifier_of(folder)} RETAIN {hours:.6f} HOURS").collect()


@contextmanager
def _told(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in conf:
            spark.conf.unset(name)
