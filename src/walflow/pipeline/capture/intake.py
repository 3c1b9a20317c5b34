"""Capture: the slot, and the threads that read it into the change log."""

from __future__ import annotations

import contextlib

import structlog

from walflow.changelog import ChangeLog
from walflow.errors import SlotLost
from walflow.failpoints import failpoint
from walflow.model import Lsn
from walflow.pipeline.capture.log_writer import LogWriter, SegmentLimits
from walflow.pipeline.capture.receiver import Receiver, Source
from walflow.pipeline.capture.relation_schemas import Describer
from walflow.pipeline.run import PipelineRun
from walflow.pipeline.state.table_states import Tables
from walflow.pipeline.table_sync.snapshots import Snapshots
from walflow.source.connection import connect
from walflow.source.stream.pgoutput import Decoder
from walflow.source.stream.relation import Relation
from walflow.source.stream.slots import drop_slot

__all__ = ["Intake"]

_logger = structlog.get_logger(__name__)


class Intake:
    """Creates the slot, and reads it from ``start`` to ``stop``."""

    def __init__(
        self, run: PipelineRun, log: ChangeLog, tables: Tables, snapshots: Snapshots
    ) -> None:
        self._run = run
        self._log = log
        self._tables = tables
        self._snapshots = snapshots
        self._reading: contextlib.ExitStack | None = None
        self._receiver: Receiver | None = None
        self._writer: LogWriter | None = None
        self.made_slot = False
        """Whether the slot is new, so that it has no changes from before."""

    def make_slot(self, lost: SlotLost | None = None) -> None:
        """Create the slot, or replace one that is unusable. The log begins with it, and its
        snapshot serves the copies."""
        slot = self._run.settings.slot
        if lost is not None:
            self._run.metrics.slot_invalidations.inc()
            _logger.warning("making a new slot; tables are copied again", reason=str(lost))
            self.drop_slot()
        new = self._snapshots.make_slot(slot, failover=self._run.settings.source.failover)
        self.made_slot = True
        try:
            failpoint("slot.made", slot)
            self._log.restart(new.created.consistent_point)
        except BaseException:
            new.replication.close()
            raise
        self._snapshots.offer(new)
        _logger.info("made the slot", slot=slot, position=str(new.created.consistent_point))

    def drop_slot(self) -> None:
        with connect(self._run.uri, application_name=self._run.application) as connection:
            drop_slot(connection, self._run.settings.slot)

    def start(self) -> None:
        run, settings = self._run, self._run.settings
        describer = Describer(
            run.uri, run.application, settings.slot, self._log, settings.types, self._follows
        )
        limits = SegmentLimits(
            settings.batch.max_size, settings.batch.max_fill_ms / 1000, settings.log.segment_bytes
        )
        writer = LogWriter(self._log, Decoder(describer.describe), run.metrics, limits)
        source = Source(
            run.uri,
            settings.slot,
            settings.publication,
            run.application,
            settings.source.backlog_bytes,
        )
        self._writer = writer
        self._receiver = Receiver(source, self._log, writer, run.metrics)
        self._reading = contextlib.ExitStack()
        self._reading.callback(describer.close)
        writer.start()
        self._receiver.start()
        self._reading.callback(self._receiver.stop)

    def _follows(self, relation: Relation) -> bool:
        """Whether changes of the table are stored. A table that was renamed to a name that is not
        chosen goes on until the catalog shows it: by then it may have its old name again."""
        return self._run.settings.tables.have(relation.name) or self._tables.is_stored(relation.oid)

    def applied(self, position: Lsn) -> None:
        """All up to the position is in the destination."""
        if self._writer is not None:
            self._writer.applied = position

    def stop(self) -> None:
        """Make durable and acknowledge what was received. Repeats safely."""
        if self._reading is not None:
            self._reading.close()

    def check(self) -> None:
        """Raise the error that ended the reading, if it ended by itself."""
        if self._receiver is not None:
            self._receiver.check()

    @property
    def wal_end(self) -> Lsn:
        """How far the source's log reached at the last message."""
        heard = Lsn(0) if self._receiver is None else self._receiver.wal_end
        return max(heard, self._log.end)
