"""The snapshots that copies read: one for all tables that are there, others for those that come
later."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from walflow.changelog import ChangeLog
from walflow.errors import PublicationChanged, SourceError, TableRewritten
from walflow.model import Lsn
from walflow.pipeline.publication.published import Published
from walflow.source.catalog.published_tables import PublishedTable
from walflow.source.copy.snapshot import OpenSnapshot, keep_snapshot
from walflow.source.stream.replication_connection import CreatedSlot, Replication

__all__ = ["NewSlot", "Snapshots"]

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NewSlot:
    """A slot that has just been made, with its snapshot."""

    replication: Replication
    """Holds the snapshot until its next command."""
    created: CreatedSlot
    published: Mapping[int, PublishedTable]
    """The tables that were published before the slot was made."""


@dataclass(slots=True, eq=False)
class _Held:
    snapshot: OpenSnapshot
    published: Mapping[int, PublishedTable]
    """Before it was taken."""
    seen: tuple[str, Mapping[int, PublishedTable]]
    """What was published after it was taken, and the fingerprint of that."""
    users: int = 0
    rewritten: set[int] = field(default_factory=set)
    """Oids of tables that it serves no more."""


class Snapshots:
    """Makes snapshots as they are needed, and holds each while it is read.

    A snapshot serves a table if the table was published before the snapshot was taken, in the way
    that it is published now, and with its schema. Otherwise rows of the time in between would be in
    neither copy nor log, or there with a schema that is not the copy's. All calls may come from
    several threads.
    """

    def __init__(
        self,
        uri: str,
        application: str,
        slot: str,
        published: Published,
        stop: threading.Event,
    ) -> None:
        self._uri = uri
        self._application = application
        self._slot = slot
        self._published = published
        self._stop = stop
        self._finding = threading.Lock()
        """Held while a snapshot is made, which may take long: others that need one wait for it."""
        self._lock = threading.Lock()
        """Guards what follows; taken after ``_finding``, never held for long."""
        self._held: list[_Held] = []

    def make_slot(self, name: str, *, temporary: bool = False, failover: bool = False) -> NewSlot:
        """A new slot, with what was published before it was made."""
        before = self._read()
        replication = Replication(self._uri, application_name=self._application)
        try:
            created = replication.create_slot(
                name, temporary=temporary, failover=failover, cancelled=self._stop.is_set
            )
        except BaseException:
            replication.close()
            raise
        return NewSlot(replication, created, before)

    def offer(self, new: NewSlot) -> None:
        """Take over the snapshot of a slot that was made for other reasons."""
        with self._finding:
            self._take_over(new)

    @contextmanager
    def use(self, oid: int, log: ChangeLog) -> Iterator[tuple[OpenSnapshot, PublishedTable]]:
        """A snapshot that serves the table and that the log goes on from, and the table as it is
        published now.

        Raises PublicationChanged if it is not published any more.
        """
        with self._finding:
            held, table = self._find(oid, log)
        try:
            yield held.snapshot, table
        except TableRewritten:
            # Its rows are no longer where this snapshot could see them.
            held.rewritten.add(oid)
            raise
        except SourceError as error:
            if not error.retry and self._published.fingerprint() != held.seen[0]:
                raise PublicationChanged(f"{table.name} was altered while it was read") from error
            raise
        finally:
            with self._lock:
                held.users -= 1
                self._close_unused(keep_newest=True)

    def oldest(self) -> Lsn | None:
        """The log must keep what is after this position; None: no snapshot is held."""
        with self._lock:
            return min((held.snapshot.position for held in self._held), default=None)

    def release(self) -> None:
        """No table waits for a snapshot: let go of those that are not read."""
        with self._lock:
            self._close_unused(keep_newest=False)

    def close(self) -> None:
        with self._lock:
            for held in self._held:
                held.snapshot.keeper.close()
            self._held.clear()

    def _find(self, oid: int, log: ChangeLog) -> tuple[_Held, PublishedTable]:
        """Counts the caller as a user."""
        with self._lock:
            newest_first = self._held[::-1]
        for held in newest_first:
            table = self._described(held, oid)
            serves = _serves(held, table) and log.covers(oid, held.snapshot.position)
            if serves and held.snapshot.keeper.alive() and self._count(held):
                return held, table
        held = self._make()
        table = self._described(held, oid)
        if not _serves(held, table) or not self._count(held):
            raise PublicationChanged(f"{table.name} was published again while its copy began")
        return held, table

    def _count(self, held: _Held) -> bool:
        """One user more; False if it was let go meanwhile."""
        with self._lock:
            held.users += 1
            return held in self._held

    def _described(self, held: _Held, oid: int) -> PublishedTable:
        """The table as it is now. Sizes may be older, but not older than the snapshot: pages with
        rows that it sees are all counted."""
        fingerprint = self._published.fingerprint()
        table = held.seen[1].get(oid)
        # The fingerprint says nothing of rights.
        if held.seen[0] != fingerprint or table is None or table.problem is not None:
            held.seen = fingerprint, self._read()
            table = held.seen[1].get(oid)
        if table is None:
            raise PublicationChanged(f"the table with oid {oid} is not published any more")
        return table

    def _read(self) -> dict[int, PublishedTable]:
        return {table.schema.oid: table for table in self._published.read()}

    def _make(self) -> _Held:
        name = f"{self._slot[:40]}_copy_{time.time_ns() % 10**9}"
        return self._take_over(self.make_slot(name, temporary=True))

    def _take_over(self, new: NewSlot) -> _Held:
        try:
            keeper = keep_snapshot(
                self._uri, new.created.snapshot, application_name=f"{self._application} snapshot"
            )
        finally:
            new.replication.close()
        snapshot = OpenSnapshot(keeper, new.created.consistent_point)
        try:
            held = _Held(snapshot, new.published, (self._published.fingerprint(), self._read()))
        except BaseException:
            keeper.close()
            raise
        with self._lock:
            self._held.append(held)
        _logger.info("took a snapshot", position=str(held.snapshot.position))
        return held

    def _close_unused(self, *, keep_newest: bool) -> None:
        kept = []
        for held in self._held:
            newest = held is self._held[-1]
            if held.users or (keep_newest and newest):
                kept.append(held)
            else:
                held.snapshot.keeper.close()
        self._held = kept


def _serves(held: _Held, table: PublishedTable) -> bool:
    then = held.published.get(table.schema.oid)
    return (
        then is not None
        and table.schema.oid not in held.rewritten
        and then.membership.continues(table.membership)
        and then.schema.same_columns(table.schema)
    )
