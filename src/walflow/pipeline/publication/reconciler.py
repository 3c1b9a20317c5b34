"""Compares the published tables with the followed ones, and adds, changes or removes tables.

The catalog is read every few seconds. Work on one table is left to its worker. Decisions are made
here: what each worker is asked for, and what concerns several tables, such as exchanged names.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

import structlog

from walflow.config import TablesSettings
from walflow.errors import SourceError
from walflow.mapping import NamedTables
from walflow.model import Lsn, Phase, TableName, TableSchema
from walflow.pipeline.apply.applier import SeenSchema
from walflow.pipeline.publication.comparison import (
    PublicationComparison,
    followed_publications,
    in_conflict,
    is_passing,
)
from walflow.pipeline.publication.departures import Departures
from walflow.pipeline.publication.first_states import FirstStates
from walflow.pipeline.publication.published import News, Published
from walflow.pipeline.state.phases import COPYING
from walflow.pipeline.state.table_states import TableState
from walflow.pipeline.table_events import CopyAgain, Refused, Renamed, Retry
from walflow.pipeline.table_workers import TableWorkers
from walflow.pipeline.timing import Timing
from walflow.source.catalog.publication import publication_loss
from walflow.source.catalog.published_tables import PublishedTable
from walflow.states import stands_at

__all__ = ["Chosen", "PublicationReconciler"]

_ANSWER_SECONDS = 0.05
"""The source mostly answers at once. If it does not, the answer is used in a later turn."""

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which tables the settings choose, and which they name."""

    tables: TablesSettings
    named: tuple[NamedTables, ...]
    drop_removed: bool
    """Whether tables that the source gives up are dropped in the destination."""


@dataclass(slots=True)
class _Leaving:
    upto: Lsn
    """All changes of the table that are still to be applied were made before this position."""
    goes: bool = False
    """No more changes are applied to it."""
    complete: bool = False
    """Nothing is missing, because all its changes are applied."""


class PublicationReconciler:
    """Used by the coordinating thread. Only ``begin`` waits for the source or the destination."""

    def __init__(
        self,
        published: Published,
        workers: TableWorkers,
        comparison: PublicationComparison,
        first_states: FirstStates,
        chosen: Chosen,
        timing: Timing,
    ) -> None:
        self._published = published
        self._workers = workers
        self._tables = workers.tables
        self._comparison = comparison
        self._mapping = comparison.mapping
        self._first_states = first_states
        self._chosen = chosen
        self._timing = timing
        self._looked = self._compared = 0.0
        self._fingerprint = ""
        self._news: Future[News] | None = None
        self._leaving: dict[int, _Leaving] = {}
        """Tables that are no longer published or chosen."""
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="walflow-catalog")
        self._departures = Departures(
            comparison.destination, self._pool, drop_removed=chosen.drop_removed
        )

    # At the start.

    def begin(self, *, new_slot: bool) -> None:
        """Load the store's states, and continue each table from its phase. A new slot has no
        earlier changes, so with a new slot all tables are copied. Raises MappingConflict if two
        tables would share a table of the destination, and it is not known which of them was first.
        """
        self._news = None
        self._leaving.clear()
        news = self._published.news(None)
        tables = news.tables or []
        self._first_states.take_over(tables, new_slot=new_slot)
        for state in self._tables.all():
            self._workers.add(state.schema.oid)
        self._drop_used_copies()
        self._compare_and_note(news)
        for table in tables:
            oid = table.schema.oid
            worker, state_now = self._workers.get(oid), self._tables.get(oid)
            if worker is None or state_now is None or worker.held or self._departures.has(oid):
                continue
            if state_now.phase is Phase.INIT:
                self._admit(table, tables)
            else:
                worker.go_on(table.bytes)
        for oid in self._leaving:
            if not self._workers[oid].held:
                self._workers[oid].go_on()

    def _drop_used_copies(self) -> None:
        """Remove copies that are already loaded. A process that was killed after loading leaves
        them."""
        for copy in self._workers.work.log.copies():
            state = self._tables.get(copy.table)
            if state is None or stands_at(state) not in COPYING:
                copy.drop()

    # What the source publishes now.

    def look(self, *, hurry: bool = False) -> None:
        """Called every few seconds: has the publication changed? ``hurry``: there is a reason to
        expect it."""
        now = time.monotonic()
        if self._news is None:
            if any(not self._stays(oid) for oid in self._leaving):
                self._fingerprint = ""
            again = any(worker.held and not worker.busy for worker in self._workers.all())
            patience = self._timing.publication / (10 if hurry or again else 1)
            if now - self._looked < patience:
                return
            self._looked = now
            look_again = self._comparison.schema_changer.look_again
            overtaken = look_again.is_set()
            look_again.clear()
            all_of_it = (
                again
                or overtaken
                or (
                    now - self._compared >= self._timing.set_aside
                    and any(is_passing(state) for state in self._tables.all())
                )
            )
            since = None if all_of_it else self._fingerprint
            self._news = self._pool.submit(self._published.news, since)
        wait([self._news], _ANSWER_SECONDS)
        if self._news.done():
            news, self._news = self._news, None
            self._take_in(news)

    def _take_in(self, answer: Future[News]) -> None:
        try:
            news = answer.result()
        except SourceError as error:
            if not error.retry:
                raise
            # Receiving meets the same trouble, and tells it.
            _logger.debug("the publication cannot be read just now", error=str(error))
            return
        if news.tables is not None:
            lost = publication_loss(
                self._published.publication,
                followed_publications(self._tables.all()),
                news.publications,
            )
            if lost is not None:
                raise lost
            self._compared = time.monotonic()
            self._compare_and_note(news)

    def _compare_and_note(self, news: News) -> None:
        assert news.tables is not None
        done = self._compare(news.tables, news.began, news.ended)
        self._fingerprint = news.fingerprint if done else ""

    def _compare(self, tables: Collection[PublishedTable], began: Lsn, ended: Lsn) -> bool:
        """Bring the followed tables in line with the published ones. False: some of it has to wait.
        ``began`` and ``ended``: the positions between which the catalog was read (see News)."""
        for named in self._chosen.named:
            named.warn_of_unused(table.name for table in tables)
        published = {table.schema.oid: table for table in tables}
        states = {state.schema.oid: state for state in self._tables.all()}
        reasons: dict[int, str] = {}
        for oid, table in published.items():
            if oid in states:
                reason = self._comparison.why_copied_again(states[oid], table, began)
                if reason is not None:
                    reasons[oid] = reason
        for oid in (self._departures.dropping | self._leaving.keys()) & published.keys():
            # It is published again; what it had in the destination may be gone, or soon will be.
            reasons.setdefault(oid, "it was not published for a time")
            self._leaving.pop(oid, None)
        renamed = {
            oid
            for oid in states.keys() & published.keys() - reasons.keys()
            if self._comparison.has_other_name(states[oid], published[oid])
        }
        gone = states.keys() - published.keys()
        for oid in gone:
            self._leaving.setdefault(oid, _Leaving(ended))
        for oid in self._leaving.keys() - states.keys():
            del self._leaving[oid]
        needed = {self._mapping.destination(table.name) for table in tables}
        gone = {oid for oid in gone if not self._stays(oid, needed)}
        # All of them first: tables may have exchanged their names, and no two may be at work on
        # one table of the destination.
        concerned = gone | reasons.keys() | renamed
        working = {oid for oid in concerned if not self._workers[oid].pause()}
        for oid in renamed - working:
            reason = self._rename(states[oid], published[oid])
            states[oid] = self._tables.get(oid) or states[oid]
            if reason is not None:
                reasons[oid] = reason
            elif self._comparison.has_other_name(states[oid], published[oid]):
                working.add(oid)
        working |= {
            oid
            for oid in reasons.keys() - working
            if not self._moved_out(states[oid], published[oid], tables)
        }
        working |= {oid for oid in gone - working if not self._leave(states[oid], tables)}
        taken = {states[oid].destination for oid in working}
        done = not working
        for oid, table in published.items():
            if oid in working:
                continue
            if oid in states and oid not in reasons:
                done &= self._go_on(states[oid], table, tables)
                done &= self._see(states[oid], table.schema, began, ended)
            elif self._mapping.destination(table.name) in taken:
                done = False
            elif oid in states:
                self._copy_again(table, tables, reasons[oid])
            else:
                _logger.info("a table was published", table=str(table.name))
                self._tables.add(self._first_states.fresh(table))
                self._workers.add(oid)
                self._admit(table, tables)
        return done

    def _rename(self, state: TableState, table: PublishedTable) -> str | None:
        """Why the table has to be copied after all. None: it has its name already, or will get it,
        or has got another one meanwhile."""
        name, destination = table.name, self._mapping.destination(table.name)
        if destination != state.destination:
            ended = self._departures.rename(state, name, destination)
            if ended is None:
                return None
            if not ended.succeeded:
                return f"it was {state.name}"
            name, destination = ended.name, ended.destination
        self._workers[state.schema.oid].post(Renamed(name, destination))
        _logger.info(
            "a table was renamed", table=str(name), before=str(state.name), here=str(destination)
        )
        return None

    def _go_on(
        self, state: TableState, table: PublishedTable, tables: Collection[PublishedTable]
    ) -> bool:
        """Update a table that need not be copied again. False if that has to wait."""
        oid = table.schema.oid
        worker = self._workers[oid]
        if state.membership != table.membership:
            # One more partition: it is noted, so that its removal is noticed.
            self._tables.update(oid, membership=table.membership)
        if worker.held:
            if not worker.pause():
                return False
            worker.go_on(table.bytes)
        elif is_passing(state) and self._comparison.refusal(table, tables) is None:
            worker.post(Retry(resolved=True))
        return True

    def _see(self, state: TableState, schema: TableSchema, began: Lsn, ended: Lsn) -> bool:
        """Have the table brought to its current schema, even if no change of the table shows it.
        False if that schema may be older than the one that the table has."""
        since = state.schema.version
        if (
            stands_at(state) in (Phase.INIT, Phase.DATA_SYNC)
            or replace(schema, name=state.name, version=since) == state.schema
        ):
            return True
        if since >= began:
            return False
        # Just before the position, as has every schema of which there are rows.
        schema = replace(schema, name=state.name, version=Lsn(ended - 1))
        self._workers[schema.oid].see(SeenSchema(schema, ended, since))
        return True

    def _copy_again(
        self, table: PublishedTable, tables: Collection[PublishedTable], reason: str
    ) -> None:
        worker, refusal = self._workers[table.schema.oid], self._comparison.refusal(table, tables)
        destination = self._mapping.destination(table.name)
        worker.post(CopyAgain(reason, table, destination, refusal))

    def _admit(self, table: PublishedTable, tables: Collection[PublishedTable]) -> None:
        oid = table.schema.oid
        refusal = self._comparison.refusal(table, tables)
        if refusal is not None:
            self._workers[oid].post(Refused(refusal))
            return
        state = self._tables.get(oid)
        if state is not None and state.error is not None and state.error.passing:
            # The cause is gone, or the table would be refused.
            self._tables.update(oid, error=None, attempts=0)
        self._workers[oid].go_on(table.bytes)

    def _leave(self, state: TableState, tables: Collection[PublishedTable]) -> bool:
        """The table is no longer published or chosen. If it comes back, it has to be copied. False:
        call again."""
        oid = state.schema.oid
        if not self._chosen.tables.have(state.name):
            # A pattern may be a mistake: it does not cost the destination's table.
            why = "a table is left out by tables.include or exclude"
        elif self._dropped(state, tables):
            why = "a table is no longer published"
        else:
            return False
        if self._leaving.pop(oid).complete or self._departures.drops:
            _logger.info(why, table=str(state.name))
        else:
            _logger.warning(
                f"{why}; its last changes are not in the destination",
                table=str(state.name),
                position=str(state.position),
            )
        self._workers.forget(oid)
        return True

    def _stays(self, oid: int, needed: Collection[TableName] = ()) -> bool:
        """Whether a leaving table should still be applied up to where it left. False if that is
        impossible or useless. ``needed``: tables of the destination that other tables will get."""
        leaving, state = self._leaving[oid], self._tables.get(oid)
        if state is None or leaving.goes:
            return False
        worker = self._workers[oid]
        leaving.complete = worker.is_through(leaving.upto)
        leaving.goes = (
            leaving.complete
            or worker.held
            or state.waits_for_operator
            or stands_at(state) in (Phase.INIT, Phase.DATA_SYNC)
            or state.destination in needed
            or (self._departures.drops and self._chosen.tables.have(state.name))
        )
        return not leaving.goes

    def _moved_out(
        self, state: TableState, table: PublishedTable, tables: Collection[PublishedTable]
    ) -> bool:
        """Drop the destination's table that it had under another name, if needed. False: call
        again."""
        if state.destination == self._mapping.destination(table.name):
            return not self._departures.is_dropping(state.schema.oid)
        return self._dropped(state, tables)

    def _dropped(self, state: TableState, tables: Collection[PublishedTable]) -> bool:
        """Have the destination's table dropped, if the settings say so. False while that is
        running."""
        needed = {self._mapping.destination(table.name) for table in tables}
        if not self._departures.has(state.schema.oid) and (
            state.destination in needed or in_conflict(state)
        ):
            return True
        return self._departures.drop(state)

    def close(self) -> None:
        """Wait for running calls. Repeats safely."""
        self._pool.shutdown()
