"""The source, as a start finds it: it is checked, and gets a publication if it has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog
import tenacity

from walflow.config import Settings
from walflow.errors import ConfigError, PublicationChanged, Stopped, TableLocked, WalflowError
from walflow.model import Phase, TableName
from walflow.pipeline.first_start import Made
from walflow.pipeline.publication.comparison import followed_publications
from walflow.pipeline.retrying import call_again
from walflow.pipeline.run import PipelineEnd
from walflow.pipeline.state.pipeline_notes import with_chosen_publication
from walflow.source.catalog.preflight import Preflight, preflight, require_followable
from walflow.source.catalog.publication import (
    create_publication,
    publication_loss,
    publication_oids,
)
from walflow.source.catalog.published_tables import PublishedTable, published_tables
from walflow.source.connection import Session, connect, source_errors
from walflow.source.stream.slots import slot_loss
from walflow.stores.base import Store
from walflow.stores.sql_tables import ALL

__all__ = ["SourceAtStart", "check_store_not_followed"]

_LOCKED_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 0.5

_logger = structlog.get_logger(__name__)


class SourceAtStart:
    """Used by the thread that starts the pipeline."""

    def __init__(
        self, settings: Settings, store: Store, application: str, end: PipelineEnd
    ) -> None:
        self.settings = settings
        """With the publication's name, once ``check`` has returned."""
        self._store = store
        self._uri = settings.source.uri.get_secret_value()
        self._application = application
        self._end = end

    @property
    def begun(self) -> bool:
        """Whether copies have begun, so that changes may be missing."""
        states = self._store.get_table_replication_states().values()
        return any(state.phase is not Phase.INIT for state in states)

    @property
    def resyncs(self) -> bool:
        """Whether everything is copied again if changes are lost."""
        return self.settings.source.on_slot_lost == "resync"

    def check(self) -> Preflight:
        """Check whether the source can be followed. Asks again while a table is locked (a large one
        may be being rewritten) or altered."""
        try:
            return call_again(
                self._preflight,
                stop=self._end.asked,
                can_retry=lambda error: isinstance(error, PublicationChanged | TableLocked),
                wait=_until_unlocked,
                tell=_tell_of_lock,
            )
        except (PublicationChanged, TableLocked) as error:
            raise Stopped("asked to stop while reading the tables") from error

    def _preflight(self) -> Preflight:
        source = self.settings.source
        with connect(self._uri, application_name=self._application) as connection:
            self.settings = with_chosen_publication(connection, self.settings, begun=self.begun)
            found = preflight(
                connection,
                publication=self.settings.publication,
                slot=self.settings.slot,
                create_publication=source.create_publication,
                tables=self.settings.tables,
                types=self.settings.types,
                strict=self._strict,
                failover=source.failover,
                resync_lost_slot=self.resyncs,
            )
            states = self._store.get_table_replication_states().values()
            lost = publication_loss(
                self.settings.publication,
                followed_publications(states),
                publication_oids(connection),
            )
            self._require_followable(connection, found.tables)
        for warning in found.warnings:
            _logger.warning(warning)
        if self.begun and not found.slot.exists:
            lost = slot_loss(found.slot)
        if lost is None:
            return found
        if not self.resyncs:
            raise lost
        return replace(found, lost=lost)

    def publish(self, found: Preflight, made: Made) -> None:
        """Create the publication, if it is missing, and note that in ``made``."""
        publication = self.settings.publication
        with connect(self._uri, application_name=self._application) as connection:
            if found.publication is None:
                create_publication(
                    connection, publication, found.create_tables, pipeline=self.settings.name
                )
                made.publication = True
                _logger.info("made the publication", publication=publication)
                tables = published_tables(
                    connection, publication, self.settings.types, chosen=self.settings.tables
                )
                self._require_followable(connection, tables)
            check_store_not_followed(connection, self.settings)

    @property
    def _strict(self) -> bool:
        """Whether a table that cannot be followed keeps the pipeline from starting."""
        return self.settings.on_table_refused == "error" and not self.begun

    def _require_followable(self, connection: Session, tables: Sequence[PublishedTable]) -> None:
        """At the first start, an error that concerns all tables is raised at once. Later, each of
        these tables is set aside."""
        if not self.begun:
            require_followable(connection, tables, all_of_them=self._strict)


def check_store_not_followed(connection: Session, settings: Settings) -> None:
    """Raise ConfigError if the tables of a Postgres store are published and followed: each note of
    a change would be another change, without end."""
    uri, schema = settings.store.uri, settings.store.postgres_schema
    if uri is None or not uri.get_secret_value().lower().startswith("postgres"):
        return
    publication = settings.publication
    with source_errors("see whether the store is published"):
        published = connection.execute(
            "SELECT schemaname, tablename FROM pg_publication_tables"
            " WHERE pubname = %s AND schemaname = %s AND tablename = ANY(%s)",
            [publication, schema, [table.name for table in ALL]],
        ).fetchall()
    if any(settings.tables.have(TableName(*row)) for row in published):
        raise ConfigError(
            f'The publication "{publication}" has the tables of the pipeline\'s store in it '
            f"(schema {schema}): every note of a change would be another change to follow.",
            hint="Keep the store elsewhere (store.uri), or leave its tables out "
            f"(tables.exclude: [{schema}.*]).",
        )


def _until_unlocked(state: tenacity.RetryCallState) -> float:
    locked = state.outcome is not None and isinstance(state.outcome.exception(), TableLocked)
    return _LOCKED_SECONDS if locked else _LOOK_AGAIN_SECONDS


def _tell_of_lock(error: BaseException, attempt: int, seconds: float) -> None:
    _logger.warning(
        "the tables cannot be read yet; trying again",
        error=str(error),
        hint=error.hint if isinstance(error, WalflowError) else None,
    )
