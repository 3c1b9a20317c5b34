"""Schemas for the relation messages of the stream, from the catalog and the log."""

from __future__ import annotations

import contextlib

import psycopg

from walflow.changelog import ChangeLog
from walflow.config import TypeSettings
from walflow.errors import SourceError
from walflow.model import Lsn, TableSchema
from walflow.source.catalog import describe_relation
from walflow.source.connection import Session, connect
from walflow.source.relation import Relation
from walflow.source.types import TypeCatalog

__all__ = ["Describer"]


class Describer:
    """Answers the decoder, with a session on the source that is opened when first needed."""

    def __init__(self, uri: str, application: str, log: ChangeLog, types: TypeSettings) -> None:
        self._uri = uri
        self._application = application
        self._log = log
        self._settings = types
        self._session: tuple[Session, TypeCatalog] | None = None

    def describe(self, relation: Relation, lsn: Lsn) -> TableSchema:
        """The schema; the one that the log knows already if the form is the same.

        Does not wait for a source that is away: one that shuts down lets nobody in any more, and
        waits itself until all it has sent is acknowledged.
        """
        try:
            described = self._ask(relation, lsn, fresh=False)
        except SourceError as error:
            if not error.retry:
                raise
            # The session may have been dead for long.
            described = self._ask(relation, lsn, fresh=True)
        known = self._log.latest_schema(relation.oid)
        return known if known is not None and known.same_form(described) else described

    def _ask(self, relation: Relation, lsn: Lsn, *, fresh: bool) -> TableSchema:
        if fresh:
            self.close()
        if self._session is None:
            connection = connect(self._uri, application_name=f"{self._application} catalog")
            self._session = connection, TypeCatalog(connection)
        connection, types = self._session
        return describe_relation(connection, relation, types, self._settings, version=lsn)

    def close(self) -> None:
        """Repeats safely."""
        if self._session is not None:
            with contextlib.suppress(psycopg.Error):
                self._session[0].close()
            self._session = None
