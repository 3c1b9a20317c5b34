"""Reads the published tables from the catalog repeatedly, over one session."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import psycopg
import structlog

from walflow.config import TablesSettings, TypeSettings
from walflow.errors import (
    ConnectionLost,
    PublicationChanged,
    SourceError,
    Stopped,
    TableLocked,
    WalflowError,
)
from walflow.model import Lsn
from walflow.source.catalog.publication import publication_oids
from walflow.source.catalog.publication_watch import publication_fingerprint
from walflow.source.catalog.published_tables import PublishedTable, published_tables
from walflow.source.closing import Closing
from walflow.source.connection import Session, connect, source_errors

__all__ = ["News", "Published"]

_CANCEL_SECONDS = 5.0
_PAUSE_SECONDS = 0.1
_LOOKS = 10
_HEADER, _LONG_HEADER = 24, 40
"""The size of the header of a WAL page, and of a WAL segment's first page."""

_Answer = TypeVar("_Answer")

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class News:
    fingerprint: str
    tables: list[PublishedTable] | None
    """The published tables, not older than the fingerprint. None: nothing has changed."""
    began: Lsn = Lsn(0)
    """Changes to the tables before this position of the source's log are visible in them."""
    ended: Lsn = Lsn(0)
    """Everything that is visible in them was done before this position."""
    publications: frozenset[str] = frozenset()
    """The oids of all publications at that time."""


@source_errors("see how far the source's log reaches")
def _log_position(session: Session) -> Lsn:
    # What is seen may not have been flushed yet (synchronous_commit = off).
    row = session.execute(
        "SELECT pg_current_wal_insert_lsn()::text, current_setting('wal_block_size')::int8,"
        " pg_size_bytes(current_setting('wal_segment_size'))"
    ).fetchone()
    assert row is not None
    position, page, segment = Lsn.parse(row[0]), row[1], row[2]
    # Just behind a page's header: nothing was written since the page before, where the stream of an
    # idle server ends.
    if position % segment == _LONG_HEADER:
        return Lsn(position - _LONG_HEADER)
    return Lsn(position - _HEADER) if position % page == _HEADER else position


class Published(Closing):
    """All calls may come from several threads. Each call may find the source away, a table locked
    (``TableLocked``), or a table being altered (``PublicationChanged``). All of these are worth
    another attempt."""

    def __init__(
        self,
        uri: str,
        application: str,
        publication: str,
        types: TypeSettings,
        chosen: TablesSettings | None = None,
    ) -> None:
        """``chosen``: read only these tables; otherwise all."""
        self._uri = uri
        self._application = f"{application} catalog"
        self.publication = publication
        self._types = types
        self._chosen = chosen
        self._lock = threading.Lock()
        """Held during each query."""
        self._session: Session | None = None
        self._closed = False
        self._warned_of_lock = False

    def read(self) -> list[PublishedTable]:
        return self._ask(
            lambda session: published_tables(
                session, self.publication, self._types, chosen=self._chosen
            )
        )

    def fingerprint(self) -> str:
        """A text that changes when anything but sizes in ``read`` changes. Cheap."""
        return self._ask(lambda session: publication_fingerprint(session, self.publication))

    def news(self, since: str | None) -> News:
        """The published tables, if they have changed since this fingerprint (None: in any case)."""
        fingerprint = self.fingerprint()
        if fingerprint == since:
            return News(fingerprint, None)
        for _ in range(_LOOKS):
            began = self._ask(_log_position)
            tables = self.read()
            publications = self._ask(publication_oids)
            ended = self._ask(_log_position)
            before, fingerprint = fingerprint, self.fingerprint()
            # ALTER TABLE keeps the table locked until all sessions see what it did. So if that was
            # in the log before `read` began, `read` met the lock, or there is something new now.
            if fingerprint == before:
                return News(fingerprint, tables, began, ended, publications)
        raise PublicationChanged(
            "Could not see what is published, because tables are altered all the time",
            hint="It is read again.",
        )

    def _ask(self, question: Callable[[Session], _Answer]) -> _Answer:
        with self._lock:
            try:
                answer = self._answer(question)
            except BaseException as error:
                self._hang_up()
                if self._closed and isinstance(error, SourceError):
                    raise Stopped("asked to stop while reading what is published") from error
                if isinstance(error, TableLocked):
                    self._warn_of_lock(error)
                raise
            self._warned_of_lock = False
            if self._closed:
                self._hang_up()
            return answer

    def _answer(self, question: Callable[[Session], _Answer]) -> _Answer:
        if self._session is not None:
            try:
                return question(self._session)
            except ConnectionLost:
                # It may have been dead for long: only a fresh one knows.
                self._hang_up()
        if self._closed:
            raise ConnectionLost("the session was closed")
        self._session = connect(self._uri, application_name=self._application)
        return question(self._session)

    def _warn_of_lock(self, error: TableLocked) -> None:
        """Warn once for each lock: the catalog is read every few seconds."""
        if not self._warned_of_lock:
            self._warned_of_lock = True
            _logger.warning(
                "the published tables cannot be read while a table is locked; trying again",
                error=error.message,
                hint=error.hint,
            )

    def _hang_up(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _cancel(self, session: Session) -> None:
        try:
            session.cancel_safe(timeout=_CANCEL_SECONDS)
        except psycopg.errors.CancellationTimeout:
            raise
        except psycopg.OperationalError:
            # By TLS, libpq reads the certificates again. Those that were given as text are in files
            # only while we connect: so another session does it.
            with connect(self._uri, application_name=self._application) as another:
                another.execute("SELECT pg_cancel_backend(%s)", [session.info.backend_pid])

    def close(self) -> None:
        """Close the session. A call that is running raises ``Stopped``, as do later ones. Repeats
        safely."""
        self._closed = True
        deadline = time.monotonic() + _CANCEL_SECONDS
        while not self._lock.acquire(timeout=_PAUSE_SECONDS):
            session = self._session
            if session is not None:
                # Again, until one meets a query: an answer takes several.
                with suppress(psycopg.Error, WalflowError):
                    self._cancel(session)
            if time.monotonic() > deadline:
                return  # the source is out of reach; the call that asks closes the session
        try:
            self._hang_up()
        finally:
            self._lock.release()
