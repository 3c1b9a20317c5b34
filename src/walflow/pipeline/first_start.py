"""What a pipeline's first start creates, and removes again if it fails before anything was
copied."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from walflow.changelog.identity import remove_log
from walflow.config import Settings
from walflow.pipeline.state.pipeline_notes import remove_notes
from walflow.source.catalog.publication import drop_publication
from walflow.source.connection import connect
from walflow.source.stream.slots import drop_slot
from walflow.stores.base import Store

__all__ = ["Made"]

_logger = structlog.get_logger(__name__)


@dataclass(slots=True)
class Made:
    """What this start has created. Earlier starts do not count."""

    log: bool = False
    publication: bool = False
    slot: bool = False
    notes: bool = False
    """The notes beside the log: see pipeline_notes."""

    def take_back(self, settings: Settings, store: Store, application: str) -> None:
        """Remove what was created: an unread slot would hold back the source's log, and notes of a
        pipeline that does not exist would mislead. The log must be closed."""
        uri = settings.source.uri.get_secret_value()
        if self.slot or self.publication:
            with connect(uri, application_name=application) as connection:
                if self.slot:
                    drop_slot(connection, settings.slot)
                if self.publication:
                    drop_publication(connection, settings.publication)
        if self.slot:
            store.drop()
            _logger.info("nothing was copied: removed what was made for it", slot=settings.slot)
        if self.log:
            remove_log(settings.log_folder, settings.name)
        if self.notes:
            remove_notes(settings.log_folder)
