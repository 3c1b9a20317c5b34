"""What is published now, asked for again and again over one session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import psycopg

from walflow.config import TypeSettings
from walflow.errors import SourceError
from walflow.source.catalog import PublishedTable, published_tables
from walflow.source.closing import Closing
from walflow.source.connection import Session, connect
from walflow.source.watch import publication_fingerprint

__all__ = ["News", "Published"]

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class News:
    fingerprint: str
    tables: list[PublishedTable] | None
    """What is published, not older than the fingerprint; None: as it was."""


class Published(Closing):
    """All calls may come from several threads; each may find the source away."""

    def __init__(self, uri: str, application: str, publication: str, types: TypeSettings) -> None:
        self._uri = uri
        self._application = f"{application} catalog"
        self._publication = publication
        self._types = types
        self._lock = threading.Lock()
        self._session: Session | None = None

    def read(self) -> list[PublishedTable]:
        return self._ask(lambda session: published_tables(session, self._publication, self._types))

    def fingerprint(self) -> str:
        """Changes when anything but the sizes in ``read`` does; cheap."""
        return self._ask(lambda session: publication_fingerprint(session, self._publication))

    def news(self, since: str | None) -> News:
        """What is published, if that has changed since this fingerprint (None: in any case)."""
        fingerprint = self.fingerprint()
        return News(fingerprint, None if fingerprint == since else self.read())

    def _ask(self, question: Callable[[Session], _Answer]) -> _Answer:
        with self._lock:
            if self._session is not None:
                try:
                    return question(self._session)
                except (SourceError, psycopg.Error) as error:
                    self._hang_up()
                    if isinstance(error, SourceError) and not error.retry:
                        raise
            # The session may have been dead for long: only a fresh one knows.
            self._session = connect(self._uri, application_name=self._application)
            try:
                return question(self._session)
            except BaseException:
                self._hang_up()
                raise

    def _hang_up(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def close(self) -> None:
        """Repeats safely."""
        with self._lock:
            self._hang_up()
