"""Schemas for the relation messages of the stream, from the catalog and the log."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import psycopg

from walflow.changelog import ChangeLog
from walflow.config import TypeSettings
from walflow.errors import SourceError
from walflow.model import Lsn, TableSchema
from walflow.source.catalog.published_tables import describe_relation
from walflow.source.catalog.types import TypeCatalog
from walflow.source.connection import Session, connect
from walflow.source.stream.relation import Relation

__all__ = ["Describer"]


class Describer:
    """Answers the decoder. The session on the source is opened when it is first needed."""

    def __init__(
        self,
        uri: str,
        application: str,
        slot: str,
        log: ChangeLog,
        types: TypeSettings,
        follows: Callable[[Relation], bool] = lambda _: True,
    ) -> None:
        """``follows`` says whether changes of a table are stored."""
        self._uri = uri
        self._application = application
        self._slot = slot
        self._log = log
        self._settings = types
        self._follows = follows
        self._session: tuple[Session, TypeCatalog] | None = None

    def describe(
        self, relation: Relation, lsn: Lsn, last: TableSchema | None
    ) -> TableSchema | None:
        """The schema for a relation message, or the newest stored one if they are the same.
        ``last`` is the stream's previous one. None: the table is not followed.

        Does not wait for a source that is away: a server that shuts down accepts no connections,
        and itself waits until everything it sent is acknowledged.
        """
        if not self._follows(relation):
            if self._log.latest_schema(relation.oid) is not None:
                # It may be followed again under another name: not from where the log has it.
                self._log.break_off(relation.oid, lsn)
            return None
        logged = self._log.latest_schema(relation.oid, lsn)
        schemas = [schema for schema in (last, logged) if schema is not None]
        numbered = [schema for schema in schemas if schema.numbered]
        before = max(numbered, key=lambda schema: schema.version, default=None)
        try:
            described = self._ask(relation, lsn, before, fresh=False)
        except SourceError as error:
            if not error.retry:
                raise
            # The session may have been dead for long.
            described = self._ask(relation, lsn, before, fresh=True)
        newest = max(schemas, key=lambda schema: schema.version, default=None)
        return described if newest is None or _is_new(described, newest) else newest

    def _ask(
        self, relation: Relation, lsn: Lsn, before: TableSchema | None, *, fresh: bool
    ) -> TableSchema:
        if fresh:
            self.close()
        if self._session is None:
            connection = connect(self._uri, application_name=f"{self._application} catalog")
            self._session = connection, TypeCatalog(connection)
        connection, types = self._session
        return describe_relation(
            connection, relation, types, self._settings, lsn, before=before, slot=self._slot
        )

    def close(self) -> None:
        """Repeats safely."""
        if self._session is not None:
            with contextlib.suppress(psycopg.Error):
                self._session[0].close()
            self._session = None


def _is_new(described: TableSchema, newest: TableSchema) -> bool:
    """Whether the log needs another version of the schema: because of its columns (without
    attribute numbers they might be others), or because of its files, which later show that rows
    were rewritten."""
    if not newest.numbered or not newest.same_columns(described):
        return True
    files = described.filenodes
    return bool(files) and not (newest.filenodes and newest.filenodes <= files)
