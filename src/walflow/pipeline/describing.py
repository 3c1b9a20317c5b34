"""Schemas for the relation messages of the stream, from the catalog and the log."""

from __future__ import annotations

import contextlib

import psycopg
import tenacity

from walflow.changelog import ChangeLog
from walflow.config import TypeSettings
from walflow.errors import SourceError
from walflow.model import Lsn, TableSchema
from walflow.source.catalog import describe_relation
from walflow.source.connection import Session, connect
from walflow.source.relation import Relation
from walflow.source.types import TypeCatalog

__all__ = ["Describer"]

_PATIENCE_SECONDS = 120


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

        The decoder cannot go on without it, so a source that is away is waited for.
        """
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda error: isinstance(error, SourceError) and error.retry
            ),
            wait=tenacity.wait_exponential(0.2, 5) + tenacity.wait_random(0, 0.2),
            stop=tenacity.stop_after_delay(_PATIENCE_SECONDS),
            reraise=True,
        )
        described: TableSchema = retrying(self._ask, relation, lsn)
        known = self._log.latest_schema(relation.oid)
        return known if known is not None and known.same_form(described) else described

    def _ask(self, relation: Relation, lsn: Lsn) -> TableSchema:
        if self._session is None:
            connection = connect(self._uri, application_name=f"{self._application} catalog")
            self._session = connection, TypeCatalog(connection)
        connection, types = self._session
        try:
            return describe_relation(connection, relation, types, self._settings, version=lsn)
        except SourceError:
            self.close()
            raise

    def close(self) -> None:
        """Repeats safely."""
        if self._session is not None:
            with contextlib.suppress(psycopg.Error):
                self._session[0].close()
            self._session = None
