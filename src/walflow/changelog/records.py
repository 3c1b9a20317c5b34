"""What the change log says about itself: its identity, its segments and their files."""

from __future__ import annotations

from dataclasses import dataclass, replace

from walflow.model import ChangeStats, Lsn, Span

__all__ = ["LogFile", "LogIdentity", "Segment"]


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Which pipeline's log it is. A log never continues under another identity."""

    pipeline: str
    system_id: str
    """The source's system identifier. Positions of another server have no meaning here."""
    slot: str

    def __str__(self) -> str:
        return f"pipeline {self.pipeline!r} (slot {self.slot!r} of system {self.system_id})"


@dataclass(frozen=True, slots=True)
class LogFile:
    """A Parquet file of the log: changes of one table in one schema version."""

    path: str
    """Relative to the log's folder."""
    table: int
    version: Lsn
    bytes: int
    stats: ChangeStats
    checksum: int
    """Of its content."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Whole transactions, durable together: all changes whose commits end in the span."""

    span: Span
    commit_time: int
    """Of the last commit, in microseconds since 1970."""
    transactions: int
    files: tuple[LogFile, ...]
    """A table's files are in the order of its changes."""
    sequence: int = -1
    """Counts the sealed segments of a log. -1 for a span without changes, which is not stored."""
    sealed: float = 0.0
    """When it became durable, in seconds since 1970."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def of_table(self, table: int) -> Segment:
        """The same segment with this table's files only."""
        return replace(self, files=tuple(file for file in self.files if file.table == table))
