"""What a table's worker is asked for, beside the changes that wait for it."""

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
    """Changes alone do not bring the table up to date any more."""

    reason: str
    published: PublishedTable | None = None
    """As the source publishes it now; None: as it is when the copy begins."""
    destination: TableName | None = None
    """The destination's name for it; None: the one that it has."""
    refusal: WalflowError | None = None
    """Why it cannot be copied as things are: it is set aside then."""


@dataclass(frozen=True, slots=True)
class Renamed:
    """The table, and what the destination has of it, have other names."""

    name: TableName
    destination: TableName


@dataclass(frozen=True, slots=True)
class Refused:
    """The table cannot be followed as things are: it is set aside."""

    error: WalflowError


@dataclass(frozen=True, slots=True)
class Retry:
    """The table was set aside, and goes on where it failed."""

    resolved: bool = False
    """The cause is known to be gone."""


@dataclass(frozen=True, slots=True)
class SnapshotPassed:
    """The log reaches as far as the snapshot that the table was copied under."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An operator asks for something."""

    action: Action
    outcome: Future[str]
    """What came of it, in words."""


Event = CopyAgain | Renamed | Refused | Retry | SnapshotPassed | Asked
