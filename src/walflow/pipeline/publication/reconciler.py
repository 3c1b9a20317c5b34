"""How tables come in and go: what the source publishes, against what the pipeline knows."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

import structlog

from walflow.changelog import ChangeLog
from walflow.config import TablesSettings
from walflow.destinations.base import Destination
from walflow.errors import SourceError
from walflow.mapping import NamedTables, TableMapping, check_apart, conflict
from walflow.model import Lsn, Phase, TableName, TableSchema
from walflow.pipeline.apply.schema_changes import SchemaChanger
from walflow.pipeline.dispatcher import Dispatcher
from walflow.pipeline.publication.comparison import (
    PublicationComparison,
    followed_publications,
    in_conflict,
    is_passing,
)
from walflow.pipeline.publication.departures import Departures
from walflow.pipeline.publication.first_states import FirstStates
from walflow.pipeline.publication.published import News, Published
from walflow.pipeline.state.phases import FOLLOWED
from walflow.pipeline.state.table_states import Tables, TableState
from walflow.pipeline.table_sync.table_copy import CopyReader
from walflow.pipeline.table_sync.table_sync import SYNCED_PHASES
from walflow.pipeline.timing import Timing
from walflow.source.catalog.publication import publication_loss
from walflow.source.catalog.published_tables import PublishedTable
from walflow.states import TableReplicationState, stands_at
from walflow.stores.base import Store

__all__ = ["PublicationReconciler"]

_ANSWER_SECONDS = 0.05
"""The source mostly answers at once; when it does not, the answer is taken at a later turn."""

_logger = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Leaving:
    upto: Lsn
    """Whatever is still to be applied to the table was done before this position."""
    goes: bool = False
    """Nothing more is applied to it."""
    complete: bool = False
    """Because nothing is missing."""


class PublicationReconciler:
    """Used by the coordinating thread, but for ``outgrown``. It waits neither for the source nor
    for the destination there, but for ``begin``."""

    def __init__(
        self,
        published: Published,
        mapping: TableMapping,
        named: Collection[NamedTables],
        store: Store,
        log: ChangeLog,
        destination: Destination,
        tables: Tables,
        reader: CopyReader,
        schema_changer: SchemaChanger,
        dispatcher: Dispatcher,
        *,
        chosen: TablesSettings,
        drop_removed: bool,
        timing: Timing,
    ) -> None:
        self._published = published
        self._chosen = chosen
        self._timing = timing
        self._mapping = mapping
        self._named = named
        self._store = store
        self._log = log
        self._destination = destination
        self._tables = tables
        self._reader = reader
        self._dispatcher = dispatcher
        self._comparison = PublicationComparison(
            mapping,
            tables,
            schema_changer,
            destination,
            trust_rewrites=schema_changer.trust_rewrites,
        )
        self._first = FirstStates(mapping, store, log, destination)
        self._looked = self._compared = 0.0
        self._fingerprint = ""
        self._news: Future[News] | None = None
        self._lock = threading.Lock()
        self._outgrown: dict[int, str] = {}
        """Tables that have to be copied again, and why."""
        self._withdrawn: set[int] = set()
        """Tables that were taken away from whoever had them, for a reason that may be gone."""
        self._leaving: dict[int, _Leaving] = {}
        """Tables that are no longer published, or chosen."""
        self._overtaken = False
        """Whether what was last seen is known to be old."""
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="walflow-join")
        self._departures = Departures(destination, self._pool, drop_removed=drop_removed)

    # At the start.

    def begin(self, *, new_slot: bool) -> None:
        """Take over what the store knows, and go on with each table where it stands.

        A new slot says nothing of the time before it, so with one everything is copied. Raises
        MappingConflict if two tables would share one of the destination, and which of them was
        there first is not known.
        """
        self._news = None
        self._leaving.clear()
        news = self._published.news(None)
        tables = news.tables or []
        published = {table.schema.oid: table for table in tables}
        stored = self._store.get_table_replication_states()
        self._check_apart(published, stored)
        mapped = self._store.get_table_mappings()
        for oid, state in stored.items():
            self._tables.take_over(
                self._first.stored(oid, state, mapped.get(oid), published.get(oid))
            )
        new = [table for oid, table in published.items() if oid not in stored]
        known = frozenset(mapped.values())
        unknown = self._first.unknown(new, known, new_slot=new_slot)
        if not stored:
            self._first.warn_of_loss(unknown, new_slot=new_slot)
        self._tables.add(*unknown)
        self._drop_used_copies()
        outgrown = published.keys() & stored.keys() if new_slot else ()
        with self._lock:
            self._outgrown = dict.fromkeys(outgrown, "the slot is a new one")
        self._compare_and_note(news)
        for oid, table in published.items():
            state_now = self._tables.get(oid)
            if state_now is None or self._dispatcher.has(oid) or self._departures.has(oid):
                continue
            if state_now.phase is Phase.INIT:
                self._admit(table, tables)
            else:
                self._dispatcher.dispatch(oid, table.bytes)
        for oid in self._leaving:
            if not self._dispatcher.has(oid):
                self._dispatcher.dispatch(oid)

    def _drop_used_copies(self) -> None:
        """Who is killed after a table's copy was handed over leaves it behind."""
        for copy in self._log.copies():
            state = self._tables.get(copy.table)
            if state is None or stands_at(state) not in SYNCED_PHASES:
                copy.drop()

    def _check_apart(
        self,
        published: Mapping[int, PublishedTable],
        stored: Mapping[int, TableReplicationState],
    ) -> None:
        """Whom a name belongs to is for the settings to say. But a table that was set aside for it,
        or came while nobody ran, does not keep those that are followed from going on."""
        check_apart(
            {
                table.name: self._mapping.destination(table.name)
                for oid, table in published.items()
                if not stored or (oid in stored and not in_conflict(stored[oid]))
            }
        )

    # What others ask for.

    def outgrown(self, oid: int, reason: str) -> None:
        """The table has to be copied again. From the threads that work."""
        with self._lock:
            self._outgrown[oid] = reason

    def overtaken(self, oid: int) -> None:
        """What was seen of the table's form is not sure to be the newest: look again. From the
        threads that work."""
        with self._lock:
            self._overtaken = True
        _logger.debug("a table's form is looked at again", table=oid)

    def resync(self, oid: int) -> None:
        """Copy the table again. Nobody may be working on it."""
        self._check_rivals(oid)
        self._reader.drop(oid)
        self._forget_reasons(oid)
        self._tables.start_over(oid)
        self._dispatcher.dispatch(oid)

    def retry(self, oid: int) -> TableState:
        """Try a table that was set aside again. Nobody may be working on it."""
        self._check_rivals(oid)
        return self._dispatcher.retry(oid)

    def roll_back(self, oid: int) -> TableState:
        """Put the table into its state before, and go on from there if it can be gone on from.
        Nobody may be working on it. Raises NothingToRollBack."""
        self._check_rivals(oid)
        # At the next look: the table may have been another one then.
        self._withdrawn.add(oid)
        self._fingerprint = ""
        *earlier, now = map(stands_at, self._store.get_table_replication_history(oid))
        leaves_copy = earlier and earlier[-1] in FOLLOWED and now in SYNCED_PHASES
        if leaves_copy and not self._destination.capabilities.keeps_position:
            # Nobody knows how much of the copy the destination's table has got.
            return self._tables.start_over(oid)
        return self._tables.roll_back(oid)

    def _check_rivals(self, oid: int) -> None:
        state = self._tables.get(oid)
        assert state is not None
        rivals = [
            other.name
            for other in self._tables.all()
            if other.schema.oid != oid
            and other.destination == state.destination
            and not in_conflict(other)
        ]
        if rivals:
            raise conflict((state.name, *rivals), state.destination)

    # What the source publishes now.

    def look(self, *, hurry: bool = False) -> None:
        """Every few seconds: has the publication changed? ``hurry``: there is a reason to think
        so."""
        now = time.monotonic()
        if self._news is None:
            if any(not self._stays(oid) for oid in self._leaving):
                self._fingerprint = ""
            again = any(map(self._dispatcher.withdraw, self._pending()))
            patience = self._timing.publication / (10 if hurry or again else 1)
            if now - self._looked < patience:
                return
            self._looked = now
            with self._lock:
                overtaken, self._overtaken = self._overtaken, False
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

    def _pending(self) -> set[int]:
        """Tables that someone may have to let go of before they are seen to."""
        with self._lock:
            return self._withdrawn | self._outgrown.keys()

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
        """Bring what is followed in line with what is published; False: not all of it, yet.

        ``began`` and ``ended``: between which positions the tables were looked at (see News).
        """
        for named in self._named:
            named.warn_of_unused(table.name for table in tables)
        published = {table.schema.oid: table for table in tables}
        states = {state.schema.oid: state for state in self._tables.all()}
        with self._lock:
            reasons = {oid: why for oid, why in self._outgrown.items() if oid in published}
        for oid, table in published.items():
            if oid in states and oid not in reasons:
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
        working = {oid for oid in (gone | reasons.keys() | renamed) if not self._withdraw(oid)}
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
                done &= self._follow(states[oid], table.schema, began, ended)
            elif self._mapping.destination(table.name) in taken:
                done = False
            elif oid in states:
                self._change(states[oid], table, tables, reasons[oid])
            else:
                _logger.info("a table was published", table=str(table.name))
                self._tables.add(self._first.fresh(table))
                self._admit(table, tables)
        return done

    def _rename(self, state: TableState, table: PublishedTable) -> str | None:
        """Why the table has to be copied after all. None: it has its name, or will have it, or
        has got one that it had meanwhile."""
        name, destination = table.name, self._mapping.destination(table.name)
        if destination != state.destination:
            ended = self._departures.rename(state, name, destination)
            if ended is None:
                return None
            if not ended.succeeded:
                return f"it was {state.name}"
            name, destination = ended.name, ended.destination
        self._tables.rename(state.schema.oid, name, destination)
        _logger.info(
            "a table was renamed", table=str(name), before=str(state.name), here=str(destination)
        )
        return None

    def _withdraw(self, oid: int) -> bool:
        self._withdrawn.add(oid)
        return self._dispatcher.withdraw(oid)

    def _forget_reasons(self, oid: int) -> None:
        self._withdrawn.discard(oid)
        with self._lock:
            self._outgrown.pop(oid, None)

    def _go_on(
        self, state: TableState, table: PublishedTable, tables: Collection[PublishedTable]
    ) -> bool:
        """See to a table that need not be copied again; False if that has to wait."""
        oid = table.schema.oid
        if state.membership != table.membership:
            # A partition more: it must be known, for the day that it goes.
            self._tables.update(oid, membership=table.membership)
        if oid in self._withdrawn:
            if not self._dispatcher.withdraw(oid):
                return False
            self._withdrawn.discard(oid)
            self._dispatcher.dispatch(oid, table.bytes)
        elif is_passing(state) and self._comparison.refusal(table, tables) is None:
            if self._dispatcher.has(oid):
                return False
            self._dispatcher.retry(oid, mended=True)
        return True

    def _follow(self, state: TableState, form: TableSchema, began: Lsn, ended: Lsn) -> bool:
        """Have the table brought to the form that it has now, also if no change shows it. False if
        the form is not sure to be newer than the one that is known."""
        since = state.schema.version
        if (
            stands_at(state) in (Phase.INIT, Phase.DATA_SYNC)
            or replace(form, name=state.name, version=since) == state.schema
        ):
            return True
        if since >= began:
            return False
        # Just before the position, as has every form of which there are rows.
        form = replace(form, name=state.name, version=Lsn(ended - 1))
        self._dispatcher.follow(form.oid, form, ended, since)
        return True

    def _change(
        self,
        state: TableState,
        table: PublishedTable,
        tables: Collection[PublishedTable],
        reason: str,
    ) -> None:
        if not state.membership.continues(table.membership):
            # What was read of it may be of a time ahead of the log, which cannot tell.
            self._log.break_off(table.schema.oid)
            self._reader.drop(table.schema.oid)
        self._start_over(table, tables, reason)

    def _start_over(
        self, table: PublishedTable, tables: Collection[PublishedTable], reason: str
    ) -> None:
        oid = table.schema.oid
        _logger.info("a table is copied again", table=str(table.name), reason=reason)
        self._forget_reasons(oid)
        self._tables.start_over(
            oid,
            schema=table.schema,
            destination=self._mapping.destination(table.name),
            membership=table.membership,
        )
        self._admit(table, tables)

    def _admit(self, table: PublishedTable, tables: Collection[PublishedTable]) -> None:
        oid = table.schema.oid
        refusal = self._comparison.refusal(table, tables)
        if refusal is not None:
            self._dispatcher.failed(oid, refusal)
            return
        state = self._tables.get(oid)
        if state is not None and state.error is not None and state.error.passing:
            # It was copied again for what mended it.
            self._tables.update(oid, error=None, attempts=0)
        self._dispatcher.dispatch(oid, table.bytes)

    def _leave(self, state: TableState, tables: Collection[PublishedTable]) -> bool:
        """The table is no longer published, or chosen; if it comes back, it must be copied. False:
        ask again."""
        oid = state.schema.oid
        if not self._chosen.have(state.name):
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
        self._log.break_off(oid)
        self._reader.drop(oid)
        self._tables.forget(oid)
        self._forget_reasons(oid)
        return True

    def _stays(self, oid: int, needed: Collection[TableName] = ()) -> bool:
        """Whether a table that is leaving is to be followed up to where it left. Not if that
        cannot be, or would be for nothing; ``needed``: tables of the destination that others will
        have."""
        leaving, state = self._leaving[oid], self._tables.get(oid)
        if state is None or leaving.goes:
            return False
        leaving.complete = self._dispatcher.is_through(oid, leaving.upto)
        with self._lock:
            outgrown = oid in self._outgrown
        leaving.goes = (
            leaving.complete
            or outgrown
            or oid in self._withdrawn
            or state.waits_for_operator
            or stands_at(state) in (Phase.INIT, Phase.DATA_SYNC)
            or state.destination in needed
            or (self._departures.drops and self._chosen.have(state.name))
        )
        return not leaving.goes

    def _moved_out(
        self, state: TableState, table: PublishedTable, tables: Collection[PublishedTable]
    ) -> bool:
        """See to the destination's table that it had under another name; False: ask again."""
        if state.destination == self._mapping.destination(table.name):
            return not self._departures.is_dropping(state.schema.oid)
        return self._dropped(state, tables)

    def _dropped(self, state: TableState, tables: Collection[PublishedTable]) -> bool:
        """Have the destination's table dropped, if that is wanted; False while it is under way."""
        needed = {self._mapping.destination(table.name) for table in tables}
        if not self._departures.has(state.schema.oid) and (
            state.destination in needed or in_conflict(state)
        ):
            return True
        return self._departures.drop(state)

    def close(self) -> None:
        """Wait for what is under way. Repeats safely."""
        self._pool.shutdown()
