"""How tables come in and go: those that the destination has go on, the others are copied."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

import structlog
import tenacity

from walflow.changelog import ChangeLog
from walflow.config import TypeSettings
from walflow.destinations.base import Destination, Positioned
from walflow.errors import DestinationError, SourceError
from walflow.model import Lsn, Phase
from walflow.observe.metrics import PipelineMetrics
from walflow.pipeline.syncing import Copier
from walflow.pipeline.tables import Tables, TableState
from walflow.source.catalog import PublishedTable, published_tables
from walflow.source.connection import connect
from walflow.source.snapshot import keep_snapshot
from walflow.source.wire import CreatedSlot, Replication

__all__ = ["Joiner", "NewSlot", "worth_retrying"]

_ATTEMPTS = 20
_LOOK_SECONDS = 5.0

_Result = TypeVar("_Result")
_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NewSlot:
    """A slot that has just been made, with its snapshot."""

    replication: Replication
    """Holds the snapshot until its next command."""
    created: CreatedSlot
    published: frozenset[int]
    """Oids of the tables that were published before the slot was made."""


class Joiner:
    """Used by the applying thread."""

    def __init__(
        self,
        uri: str,
        application: str,
        slot: str,
        publication: str,
        types: TypeSettings,
        log: ChangeLog,
        destination: Destination,
        tables: Tables,
        copier: Copier,
        metrics: PipelineMetrics,
        stop: threading.Event,
    ) -> None:
        self._uri = uri
        self._application = application
        self._slot = slot
        self._publication = publication
        self._types = types
        self._log = log
        self._destination = destination
        self._tables = tables
        self._copier = copier
        self._metrics = metrics
        self._stop = stop
        self._filters: dict[int, str | None] = {}
        self._looked = time.monotonic()
        self.copying = threading.Event()
        """Set while tables are copied, and left so by an error."""

    def begin(self, new: NewSlot | None) -> None:
        """Take over what the destination has, and copy the rest.

        A new slot says nothing of the time before it, so with one everything is copied.
        """
        for table in self._published():
            self._filters[table.schema.oid] = table.row_filter
            state = TableState(table.schema) if new is not None else self._known(table)
            self._tables.put(state)
        self._copy_missing(new)

    def rejoin(self, outgrown: Collection[int]) -> None:
        """Tables that appeared or changed their form start over with a copy."""
        published = {table.schema.oid: table for table in self._published()}
        for oid in outgrown:
            if oid in published:
                _logger.info("copying a new or changed table", table=str(published[oid].name))
                self._tables.put(TableState(published[oid].schema))
            else:
                self._leave(oid)
        self._copy_missing(None)

    def look(self) -> None:
        """Every few seconds: has the publication changed?"""
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        published = {table.schema.oid: table for table in self._published()}
        for state in self._tables.all():
            if state.schema.oid not in published:
                self._leave(state.schema.oid)
        joining = [
            oid
            for oid, table in published.items()
            if self._tables.get(oid) is None or self._filters.get(oid) != table.row_filter
        ]
        if joining:
            self.rejoin(joining)
        self._looked = time.monotonic()

    def _leave(self, oid: int) -> None:
        """The table is no longer published; if it comes back, it must be copied."""
        state = self._tables.get(oid)
        if state is not None:
            _logger.info("a table is no longer published", table=str(state.name))
        self._tables.forget(oid)
        self._filters.pop(oid, None)
        self._log.break_off(oid)

    def _known(self, table: PublishedTable) -> TableState:
        """The table's state by what the destination says."""
        missing = TableState(table.schema)
        if not isinstance(self._destination, Positioned):
            return missing
        position = self._destination.applied(table.schema)
        if position is None:
            return missing
        # The form that the destination's table has is the last one before its position.
        schema = self._log.latest_schema(table.schema.oid, Lsn(position - 1))
        if schema is None or schema.name != table.schema.name:
            return missing
        if not self._log.covers(table.schema.oid, position):
            _logger.warning(
                "changes are missing in the log; the table is copied again",
                table=str(table.name),
                position=str(position),
            )
            return missing
        return TableState(schema, Phase.CATCHUP, position)

    def _published(self) -> list[PublishedTable]:
        return self._retried(self._read_published)

    def _read_published(self) -> list[PublishedTable]:
        with connect(self._uri, application_name=self._application) as connection:
            return published_tables(connection, self._publication, self._types)

    def _copy_missing(self, new: NewSlot | None) -> None:
        """Copy every table that is not followed yet, under new snapshots as long as it takes."""
        slots = iter([new]) if new is not None else iter(())
        self.copying.set()
        while not self._stop.is_set() and not self._all_followed():
            self._retried(lambda: self._copy_once(next(slots, None)))
        self.copying.clear()

    def _all_followed(self) -> bool:
        return all(state.followed for state in self._tables.all())

    def _copy_once(self, new: NewSlot | None) -> None:
        if new is None:
            new = self._temporary_slot()
        try:
            keeper = keep_snapshot(
                self._uri, new.created.snapshot, application_name=f"{self._application} snapshot"
            )
        finally:
            new.replication.close()
        with keeper:
            published = self._read_published()
            self._keep_to(published)
            # Of a table that was published after the snapshot was taken, rows of the time in
            # between are in neither; it has its turn under the next snapshot.
            ready = [
                table
                for table in published
                if table.schema.oid in new.published and not self._followed(table)
            ]
            self._copier.copy(ready, keeper, new.created.consistent_point)

    def _keep_to(self, published: Collection[PublishedTable]) -> None:
        """Follow what is published, and nothing else."""
        for table in published:
            if self._tables.get(table.schema.oid) is None:
                self._tables.put(TableState(table.schema))
            self._filters[table.schema.oid] = table.row_filter
        oids = {table.schema.oid for table in published}
        for state in self._tables.all():
            if state.schema.oid not in oids:
                self._leave(state.schema.oid)

    def _followed(self, table: PublishedTable) -> bool:
        state = self._tables.get(table.schema.oid)
        return state is not None and state.followed

    def _temporary_slot(self) -> NewSlot:
        before = frozenset(table.schema.oid for table in self._read_published())
        replication = Replication(self._uri, application_name=self._application)
        try:
            created = replication.create_slot(
                f"{self._slot[:40]}_copy_{time.time_ns() % 10**9}",
                temporary=True,
                cancelled=self._stop.is_set,
            )
        except BaseException:
            replication.close()
            raise
        return NewSlot(replication, created, before)

    def _retried(self, work: Callable[[], _Result]) -> _Result:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(worth_retrying),
            stop=tenacity.stop_any(
                tenacity.stop_after_attempt(_ATTEMPTS), tenacity.stop_when_event_set(self._stop)
            ),
            wait=tenacity.wait_exponential(0.5, 30) + tenacity.wait_random(0, 0.5),
            sleep=self._sleep,
            before_sleep=self._tell,
            reraise=True,
        )
        result: _Result = retrying(work)
        return result

    def _sleep(self, seconds: float) -> None:
        self._stop.wait(seconds)

    def _tell(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if error is not None:
            self._metrics.worker_failed("copy", error)
        _logger.warning("a copy failed; trying again", error=str(error))


def worth_retrying(error: BaseException) -> bool:
    return isinstance(error, SourceError | DestinationError) and error.retry
