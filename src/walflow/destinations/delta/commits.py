"""What a Delta table's commits say of themselves, from the files of its log.

SQL has it too (DESCRIBE HISTORY), for several jobs of Spark's each time; a commit is a small file
of JSON, and the newest ones are all that is mostly asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from walflow.destinations.lake.owner import POSITION, SINCE, Place, position_of
from walflow.model import Lsn

__all__ = [
    "LOG",
    "Commit",
    "carried_on",
    "is_table",
    "newest_position",
    "newest_version",
    "readable_commits",
]

LOG = "_delta_log"
_COMMIT_FILE = re.compile(r"(\d{20})\.json")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Commit:
    version: int
    committed: datetime
    operation: str
    parameters: Mapping[str, Any]
    said: str | None
    """What its writer let it say."""

    @property
    def place(self) -> Place | None:
        """None if it is not one of ours."""
        try:
            said = json.loads(self.said or "null")
        except ValueError:
            return None
        return Place.of(said) if isinstance(said, dict) else None

    @property
    def position(self) -> Lsn | None:
        return None if (place := self.place) is None else place.position


def is_table(folder: Path) -> bool:
    return bool(_versions(folder))


def newest_version(folder: Path) -> str | None:
    """See LakeFormat.version."""
    versions = _versions(folder)
    if not versions:
        return None
    try:
        file = (folder / LOG / f"{versions[-1]:020}.json").stat()
    except FileNotFoundError:
        return None
    # Another table in its place may have as many versions.
    return f"{versions[-1]}-{file.st_ino}-{file.st_mtime_ns}"


def newest_position(folder: Path) -> Lsn | None:
    """Of the newest commit of ours that the table still is of: others commit without a position."""
    return position_of(None if commit is None else commit.place for commit in _stamped(folder))


def carried_on(folder: Path) -> str | None:
    """What a commit says by which the table stays where it is."""
    commit = next(_stamped(folder), None)
    if commit is None or commit.said is None:
        return None
    said = json.loads(commit.said)
    return json.dumps({**said, SINCE: said[POSITION]})


def _stamped(folder: Path) -> Iterator[Commit | None]:
    """Those of ours, the newest first; None: what the table was before is not known."""
    restored: int | None = None
    for commit in _newest_first(folder):
        if restored is not None and commit.version > restored:
            continue
        if commit.place is not None:
            yield commit
        elif commit.operation == "RESTORE":
            # Somebody has made the table again what it was: it is where it was then.
            version = commit.parameters.get("version")
            if version is None:
                yield None
                return
            restored = int(version)


def readable_commits(folder: Path) -> list[Commit]:
    """Those whose files are still there, oldest first."""
    commits = list(_newest_first(folder))[::-1]
    removed = max((_vacuumed(c) for c in commits if c.operation == "VACUUM START"), default=_EPOCH)
    # What a version consists of goes when it has been out of use for long enough.
    until = [commit.committed for commit in commits[1:]]
    return [c for c, end in zip(commits, until, strict=False) if end >= removed] + commits[-1:]


def _vacuumed(commit: Commit) -> datetime:
    """Files that were out of use before this time were removed."""
    millis = commit.parameters.get("specifiedRetentionMillis")
    if millis is None:
        millis = commit.parameters.get("defaultRetentionMillis", 0)
    return commit.committed - timedelta(milliseconds=int(millis))


def _versions(folder: Path) -> list[int]:
    try:
        names = [file.name for file in (folder / LOG).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(found[1]) for name in names if (found := _COMMIT_FILE.fullmatch(name)))


def _newest_first(folder: Path) -> Iterator[Commit]:
    for version in reversed(_versions(folder)):
        try:
            yield _read(folder / LOG / f"{version:020}.json", version)
        except FileNotFoundError:
            # Delta clears its log away from the old end on.
            return


def _read(file: Path, version: int) -> Commit:
    info: dict[str, Any] = {}
    with file.open(encoding="utf-8") as lines:
        # It is the first, as Spark writes it.
        for line in lines:
            if "commitInfo" in (action := json.loads(line)):
                info = action["commitInfo"]
                break
    return Commit(
        version,
        _EPOCH + timedelta(milliseconds=info.get("timestamp", 0)),
        info.get("operation", ""),
        info.get("operationParameters", {}),
        info.get("userMetadata"),
    )
