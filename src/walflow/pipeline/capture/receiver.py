"""Reads the source's log: first a backlog in bulk, then the walsender's stream, and both again
after every lost connection."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import psycopg
import structlog
import tenacity

from walflow.changelog import ChangeLog
from walflow.errors import NoFreeSlot, PublicationMissing, SlotLost, SourceError
from walflow.model import Lsn
from walflow.observe.metrics import PipelineMetrics
from walflow.pipeline.capture.log_writer import LogWriter
from walflow.source.catalog.publication import find_publication, read_publication
from walflow.source.catalog.server import read_timeline, switch_points, timeline_loss
from walflow.source.connection import Session, connect
from walflow.source.stream.backlog import Backlog, advance_slot, backlog_bytes
from walflow.source.stream.replication_connection import Replication
from walflow.source.stream.slots import read_slot, slot_loss

__all__ = ["Receiver", "Source"]

_HAND_OVER_BYTES = 4 << 20
_LIVE_SECONDS = 0.05
_BUSY_BYTES = 512 << 10
_BUSY_SECONDS = 0.2
"""While much arrives, larger hand-overs save more time than they delay."""
_ASK_SECONDS = 1.0
_PAUSE_SECONDS = 0.05
_ADVANCE_BULK_BYTES = 1 << 30
_LONG_SECONDS = 60.0

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """What is read, as the receiving end needs it."""

    uri: str = field(repr=False)
    slot: str
    publication: str
    application_name: str
    backlog_bytes: int


class Receiver:
    """The receiving thread."""

    def __init__(
        self, source: Source, log: ChangeLog, writer: LogWriter, metrics: PipelineMetrics
    ) -> None:
        self._source = source
        self._log = log
        self._writer = writer
        self._metrics = metrics
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="walflow-receive", daemon=True)
        self.error: BaseException | None = None
        self.wal_end = log.end
        """How far the source's log reached at the last message."""
        self.streaming = threading.Event()
        """Set while the walsender's stream is being read."""
        self._asked = 0.0
        self._streamed = False
        """Whether the last stream received anything."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop reading, make durable what was received, and acknowledge it. Repeats safely."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._writer.stop()

    def check(self) -> None:
        """Raise the error that ended the thread, if it ended by itself."""
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            retrying = tenacity.Retrying(
                retry=tenacity.retry_if_exception(self._can_retry),
                wait=tenacity.wait_exponential(0.2, 30) + tenacity.wait_random(0, 0.2),
                sleep=self._sleep,
                before_sleep=self._tell,
                stop=tenacity.stop_when_event_set(self._stop),
                reraise=True,
            )
            while not self._stop.is_set():
                retrying(self._attempt)
        except BaseException as error:  # raised again by check() in the caller's thread
            if not self._stop.is_set():
                self.error = self._writer.error or error

    def _can_retry(self, error: BaseException) -> bool:
        if self._writer.error is not None:
            return False  # its thread is gone: another connection would have no thread that writes
        if isinstance(error, psycopg.OperationalError):
            return True
        return isinstance(error, SourceError) and error.retry

    def _sleep(self, seconds: float) -> None:
        self._stop.wait(seconds)

    def _tell(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if error is not None:
            self._metrics.worker_failed("receive", error)
        _logger.warning(
            "the source cannot be read; trying again",
            error=str(error),
            attempt=state.attempt_number,
            seconds=round(state.next_action.sleep, 1) if state.next_action else None,
        )

    def _attempt(self) -> None:
        """Read until the stream ends. A stream that received something counts as a success, however
        it ended: waiting times then start anew. Connecting alone is not enough, because the same
        error may end each stream."""
        before, self._streamed = self._log.end, False
        try:
            self._follow_published()
        except (SourceError, psycopg.OperationalError) as error:
            came_on = self._streamed or self._log.end > before
            if not (came_on and self._can_retry(error)):
                raise
            self._metrics.worker_failed("receive", error)
            _logger.warning("the source's stream ended; connecting again", error=str(error))

    def _follow_published(self) -> None:
        try:
            self._connect_and_follow()
        except PublicationMissing as error:
            source = self._source
            with connect(source.uri, application_name=source.application_name) as connection:
                if find_publication(connection, source.publication) is None:
                    raise
            # The server decodes changes with the catalog of their time.
            raise SlotLost(
                f'There is a publication "{source.publication}" now, but there was none of that '
                f'name at the position where the slot "{source.slot}" is: the server refuses to '
                "read its log from there on, and what changed at that time is missing.",
                hint="Let the pipeline make a new slot and copy all tables again "
                "(source.on_slot_lost: resync).",
            ) from error

    def _connect_and_follow(self) -> None:
        self._writer.reset()
        self._read_backlog()
        if self._stop.is_set():
            return
        source = self._source
        replication = Replication(source.uri, application_name=source.application_name)
        try:
            replication.start(source.slot, self._log.end, source.publication)
            with connect(source.uri, application_name=source.application_name) as connection:
                # Again, now that nobody else can read it: if someone just has, Postgres begins
                # later than it was asked to, and does not say so.
                self._check_timeline(connection)
                self._check_slot(connection)
            self.streaming.set()
            began = time.monotonic()
            try:
                self._follow(replication)
            finally:
                # An idle server answers when it is asked. Without room nothing is read.
                heard = replication.heard_at - began >= _ASK_SECONDS
                self._streamed = heard or time.monotonic() - began > _LONG_SECONDS
            self._writer.reset()
            replication.durable = self._writer.durable
            replication.stop()
        finally:
            self.streaming.clear()
            replication.close()

    def _follow(self, replication: Replication) -> None:
        writer = self._writer
        patience = _LIVE_SECONDS
        while not self._stop.is_set():
            writer.check()
            replication.durable = writer.durable
            if not self._has_room():
                # Not reading is what makes the source wait; saying so keeps the connection.
                self._metrics.memory_backpressure.set(1)
                replication.keep_alive()
                self._stop.wait(_PAUSE_SECONDS)
                continue
            self._metrics.memory_backpressure.set(0)
            frames = replication.read(_HAND_OVER_BYTES, patience)
            busy = frames is not None and frames.size >= _BUSY_BYTES
            patience = _BUSY_SECONDS if busy else _LIVE_SECONDS
            self.wal_end = max(self.wal_end, replication.wal_end, replication.received)
            if frames is not None:
                writer.put(frames)
            elif writer.idle and not replication.pending:
                self._advance_idle(replication)
            self._count(replication)

    def _count(self, replication: Replication) -> None:
        self._metrics.status_updates.inc(replication.status_updates)
        replication.status_updates = 0
        self._metrics.received_lag_bytes.set(max(0, self.wal_end - replication.received))
        self._metrics.flush_lag_bytes.set(max(0, self.wal_end - self._writer.durable))

    def _advance_idle(self, replication: Replication) -> None:
        """Let the slot advance without changes of ours: otherwise it would hold back the log of a
        busy server."""
        if replication.wal_end > self._writer.durable and replication.reply_asked:
            replication.reply_asked = False
            self._writer.advance(replication.wal_end)
        elif time.monotonic() - self._asked >= _ASK_SECONDS:
            # The answer says how far the server has looked without finding anything for us.
            self._asked = time.monotonic()
            replication.send_status(ask_for_reply=True)
            self._writer.advance(replication.wal_end)

    def _check_slot(self, connection: Session) -> None:
        lost = slot_loss(read_slot(connection, self._source.slot), self._log.end)
        if lost is not None:
            raise lost

    def _check_timeline(self, connection: Session) -> None:
        """Check that the server continues the log. Positions mean nothing on a server that took
        over without all of the log before them."""
        before, now = self._log.timeline, read_timeline(connection)
        if before == now:
            return
        if before is not None:
            lost = timeline_loss(before, now, self._switch_points(now), self._log.end)
            if lost is not None:
                raise lost
            _logger.info("another server has taken over", timeline=now)
        self._log.go_on_with(now)

    def _switch_points(self, timeline: int) -> dict[int, Lsn]:
        if timeline == 1:
            return {}  # the first has no history
        source = self._source
        with Replication(source.uri, application_name=source.application_name) as replication:
            return switch_points(replication.timeline_history(timeline))

    def _check_source(self, connection: Session, backlog_size: int) -> None:
        """Check the source again: between two connections another server may have taken its
        place."""
        read_publication(connection, self._source.publication)
        self._check_timeline(connection)
        self._check_slot(connection)
        if backlog_size < 0:
            raise SlotLost(
                f"The server's log ends before {self._log.end}, which was read already: it was "
                "restored, or another server took over without all that its predecessor had.",
                hint="Let the pipeline make a new slot and copy the tables again "
                "(source.on_slot_lost: resync).",
            )

    def _has_room(self) -> bool:
        return self._writer.has_room and self._log.has_room

    def _read_backlog(self) -> None:
        source = self._source
        with connect(source.uri, application_name=source.application_name) as connection:
            backlog_size = backlog_bytes(connection, self._log.end)
            self._check_source(connection, backlog_size)
            if backlog_size < source.backlog_bytes:
                return
            advance_slot(connection, source.slot, self._log.end)
            try:
                backlog = Backlog(
                    source.uri,
                    slot=source.slot,
                    publication=source.publication,
                    application_name=source.application_name,
                )
            except NoFreeSlot as error:
                _logger.warning("the backlog is read without the bulk path", error=str(error))
                return
            with backlog:
                _logger.info("reading the backlog in bulk", position=str(self._log.end))
                acknowledged = self._log.end
                while not (self._stop.is_set() or backlog.exhausted):
                    self.wal_end = _current_position(connection)
                    for frames in backlog.chunk(self.wal_end, _HAND_OVER_BYTES, self._stop.is_set):
                        self._writer.put(frames)
                        while not self._has_room() and not self._stop.is_set():
                            self._writer.check()
                            self._stop.wait(_PAUSE_SECONDS)
                        if self._stop.is_set():
                            break
                    if self._writer.durable - acknowledged > _ADVANCE_BULK_BYTES:
                        acknowledged = self._writer.durable
                        advance_slot(connection, source.slot, acknowledged)
            # The walsender continues exactly where the bulk path became durable.
            self._writer.reset()
            advance_slot(connection, source.slot, self._writer.durable)


def _current_position(connection: psycopg.Connection) -> Lsn:
    row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])
