"""The events that a table's worker handles, beside changes."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from walflow.errors import WalflowError
from walflow.model import TableName
from walflow.source.catalog.published_tables import PublishedTable
from walflow.stores.base import Action

__all__ = ["Asked", "CopyAgain", "Event", "Refused", "Renamed", "Retry", "SnapshotPassed"]


@dataclass(frozen=True, slots=True)
class CopyAgain:
    """The table cannot be brought up to date by changes alone."""

    reason: str
    published: PublishedTable | None = None
    """The table as it is published now. None: it is read when the copy begins."""
    destination: TableName | None = None
    """Its name in the destination. None: unchanged."""
    refusal: WalflowError | None = None
    """Why it cannot be copied now: it is set aside."""


@dataclass(frozen=True, slots=True)
class Renamed:
    """The table and its destination have other names."""

    name: TableName
    destination: TableName


@dataclass(frozen=True, slots=True)
class Refused:
    """The table cannot be followed as it is: it is set aside."""

    error: WalflowError


@dataclass(frozen=True, slots=True)
class Retry:
    """A table that was set aside continues where it failed."""

    resolved: bool = False
    """The cause is gone for certain."""


@dataclass(frozen=True, slots=True)
class SnapshotPassed:
    """The log reaches the position of the snapshot that the table was copied under."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An operator's request."""

    action: Action
    outcome: Future[str]
    """The answer, in words."""


Event = CopyAgain | Renamed | Refused | Retry | SnapshotPassed | Asked
