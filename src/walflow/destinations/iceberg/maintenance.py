"""Versions and maintenance of Iceberg tables, by SQL alone: it works through Spark Connect too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from walflow.destinations.iceberg.tables import CATALOG, table_identifier
from walflow.destinations.lake.format import Compaction, Version
from walflow.destinations.lake.names import folder_names
from walflow.destinations.lake.owner import POSITION
from walflow.model import Lsn, TableName
from walflow.spark.names import literal, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["compact", "expire", "read_versions", "remove_orphans", "version_at"]

_AT_ONCE = 4
"""So many times the files from which on it pays are rewritten in one go, at most."""
_ORPHANS_AGE = timedelta(days=1, minutes=1)


def read_versions(spark: SparkSession, name: TableName) -> list[Version]:
    """See LakeFormat.versions."""
    rows = spark.sql(
        f"SELECT snapshot_id, committed_at, summary[{literal(POSITION)}] AS lsn"
        f" FROM {table_identifier(name)}.snapshots ORDER BY committed_at"
    ).collect()
    return [
        Version(
            row["snapshot_id"],
            row["committed_at"].astimezone(UTC),
            None if row["lsn"] is None else Lsn.parse(row["lsn"]),
        )
        for row in rows
    ]


def version_at(versions: Sequence[Version], position: Lsn) -> int | None:
    """The first of those with the newest position up to this one."""
    found: Version | None = None
    for version in versions:
        at = version.position
        if at is not None and at <= position and (found is None or at != found.position):
            found = version
    return None if found is None else found.id


def compact(spark: SparkSession, name: TableName, policy: Compaction) -> bool:
    """See LakeFormat.compact."""
    target = policy.target_bytes
    done = _call(
        spark,
        "rewrite_data_files",
        name,
        options=_map(
            {
                "target-file-size-bytes": str(target),
                "min-file-size-bytes": str(policy.small_bytes),
                "max-file-size-bytes": str(target * 4),
                "min-input-files": str(policy.small_files),
                "max-files-to-rewrite": str(policy.small_files * _AT_ONCE),
                "max-file-group-size-bytes": str(target * _AT_ONCE),
                "delete-ratio-threshold": str(policy.worn_share),
                # The deletes of files that are no longer there.
                "remove-dangling-deletes": "true",
            }
        ),
    )
    return bool(done["rewritten_data_files_count"])


def expire(spark: SparkSession, name: TableName, versions: Sequence[int]) -> None:
    """See LakeFormat.expire."""
    _call(
        spark,
        "expire_snapshots",
        name,
        # Nothing by age: what is to go is said.
        older_than=_timestamp(datetime(1970, 1, 2, tzinfo=UTC)),
        snapshot_ids=f"array({', '.join(f'{version}L' for version in versions)})",
    )


def remove_orphans(spark: SparkSession, name: TableName, before: datetime) -> None:
    """See LakeFormat.remove_orphans. Iceberg removes nothing that is younger than a day."""
    before = min(before, datetime.now(UTC) - _ORPHANS_AGE)
    _call(spark, "remove_orphan_files", name, older_than=_timestamp(before))


def _call(
    spark: SparkSession, procedure: str, name: TableName, **arguments: str
) -> Mapping[str, int]:
    """What the procedure says that it has done."""
    table = ".".join(map(quoted, folder_names(name)))
    given = {"table": literal(table), **arguments}
    listed = ", ".join(f"{key} => {value}" for key, value in given.items())
    rows = spark.sql(f"CALL {CATALOG}.system.{procedure}({listed})").collect()
    return rows[0].asDict() if rows else {}


def _map(entries: Mapping[str, str]) -> str:
    listed = (f"{literal(key)}, {literal(value)}" for key, value in entries.items())
    return f"map({', '.join(listed)})"


def _timestamp(moment: datetime) -> str:
    return f"TIMESTAMP {literal(moment.astimezone(UTC).strftime('%Y-%m-%d %H:%M:%S.%f') + 'Z')}"
