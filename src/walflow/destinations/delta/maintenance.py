"""Versions of Delta tables, and maintenance of their files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from walflow.destinations.delta.commits import readable_commits
from walflow.destinations.delta.tables import identifier_of
from walflow.destinations.lake.format import Compaction, Version
from walflow.model import Lsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["compact", "expire", "remove_orphans", "version_at", "versions"]

_OPTIMIZE = "spark.databricks.delta.optimize."
_FILES_STAY = "delta.deletedFileRetentionDuration"
_LOG_STAYS = "delta.logRetentionDuration"
# Files below this part of the target are small.
_SMALL = 4


def versions(folder: Path) -> list[Version]:
    return [Version(c.version, c.committed, c.position) for c in readable_commits(folder)]


def version_at(folder: Path, position: Lsn) -> int | None:
    """See LakeFormat.versions_at."""
    found: Version | None = None
    # From the newest: before a copy that set the table back, the same positions mean other rows.
    for version in reversed(versions(folder)):
        if version.position is None:
            continue
        if found is not None and version.position != found.position:
            break
        if version.position <= position:
            found = version
    return None if found is None else found.id


def compact(spark: SparkSession, folder: Path, policy: Compaction) -> bool:
    """Rewrites also files of which more than a twentieth is deleted, as Delta chooses itself."""
    limit = policy.target_bytes // _SMALL
    if sum(size < limit for size in _file_sizes(spark, folder)) < policy.small_files:
        return False
    sizes = {"maxFileSize": policy.target_bytes, "minFileSize": limit}
    with _with_conf(spark, {_OPTIMIZE + name: str(size) for name, size in sizes.items()}):
        done = spark.sql(f"OPTIMIZE {identifier_of(folder)}").collect()
    return any(row["metrics"]["numFilesAdded"] > 0 for row in done)


def _file_sizes(spark: SparkSession, folder: Path) -> list[int]:
    files = spark.table(identifier_of(folder)).inputFiles()
    # "file:" and the path as it is: Spark does not encode it.
    return [Path(file.removeprefix("file:")).stat().st_size for file in files]


def expire(spark: SparkSession, folder: Path, given_up: Sequence[int]) -> None:
    """All versions before the oldest one that is not given up, but for those of the last hour."""
    found = versions(folder)
    oldest = next((version for version in found if version.id not in set(given_up)), None)
    if oldest is not None and oldest is not found[0]:
        _vacuum(spark, folder, oldest.committed)


def remove_orphans(spark: SparkSession, folder: Path, before: datetime) -> None:
    """Nothing that a version needs which can be read."""
    _vacuum(spark, folder, min(before, versions(folder)[0].committed))


def _vacuum(spark: SparkSession, folder: Path, before: datetime) -> None:
    """Remove files that have been out of use, or are of no use, since before that time.

    The table's properties say how long files stay, not RETAIN: RETAIN takes a small part of an hour
    for none at all, and is not always in the log. The log stays a day longer. Its default is a
    month, which is very many files.
    """
    hours = math.ceil((datetime.now(UTC) - before) / timedelta(hours=1))
    needed = {_FILES_STAY: f"interval {hours} hours", _LOG_STAYS: f"interval {hours + 24} hours"}
    identifier = identifier_of(folder)
    shown = {
        row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {identifier}").collect()
    }
    if not needed.items() <= shown.items():
        said = ", ".join(f"'{name}' = '{value}'" for name, value in needed.items())
        spark.sql(f"ALTER TABLE {identifier} SET TBLPROPERTIES ({said})")
    spark.sql(f"VACUUM {identifier}").collect()


@contextmanager
def _with_conf(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in conf:
            spark.conf.unset(name)
