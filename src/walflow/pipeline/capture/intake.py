"""What comes in: the slot, and those who read it into the log."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import structlog

from walflow.changelog import ChangeLog
from walflow.config import Settings
from walflow.errors import SlotLost
from walflow.failpoints import failpoint
from walflow.model import Lsn
from walflow.observe.metrics import PipelineMetrics
from walflow.pipeline.capture.log_writer import LogWriter
from walflow.pipeline.capture.receiver import Receiver, Source
from walflow.pipeline.capture.relation_schemas import Describer
from walflow.pipeline.table_sync.snapshots import Snapshots
from walflow.source.connection import connect
from walflow.source.stream.pgoutput import Decoder
from walflow.source.stream.relation import Relation
from walflow.source.stream.slots import drop_slot

__all__ = ["Intake"]

_logger = structlog.get_logger(__name__)


class Intake:
    """Makes the slot, and reads it from ``start`` to ``stop``."""

    def __init__(
        self,
        settings: Settings,
        application: str,
        log: ChangeLog,
        snapshots: Snapshots,
        metrics: PipelineMetrics,
        *,
        follows: Callable[[Relation], bool],
        waiting: Callable[[], int],
    ) -> None:
        """``follows`` says of which tables changes are kept, and ``waiting`` how many sealed
        segments have not been applied."""
        self._settings = settings
        self._uri = settings.source.uri.get_secret_value()
        self._application = application
        self._log = log
        self._snapshots = snapshots
        self._metrics = metrics
        self._follows = follows
        self._waiting = waiting
        self._reading: contextlib.ExitStack | None = None
        self._receiver: Receiver | None = None
        self.made_slot = False
        """Whether the slot is a new one, and says nothing of the time before."""

    def make_slot(self, lost: SlotLost | None = None) -> None:
        """Make the slot, in the place of one that is of no use any more; the log begins with it,
        and its snapshot serves the copies."""
        slot = self._settings.slot
        if lost is not None:
            self._metrics.slot_invalidations.inc()
            _logger.warning("making a new slot; tables are copied again", reason=str(lost))
            self.drop_slot()
        new = self._snapshots.make_slot(slot, failover=self._settings.source.failover)
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
        with connect(self._uri, application_name=self._application) as connection:
            drop_slot(connection, self._settings.slot)

    def start(self) -> None:
        settings = self._settings
        describer = Describer(
            self._uri, self._application, settings.slot, self._log, settings.types, self._follows
        )
        writer = LogWriter(
            self._log,
            Decoder(describer.describe),
            self._metrics,
            max_changes=settings.batch.max_size,
            fill_seconds=settings.batch.max_fill_ms / 1000,
            segment_bytes=settings.log.segment_bytes,
            waiting=self._waiting,
        )
        source = Source(
            self._uri,
            settings.slot,
            settings.publication,
            self._application,
            settings.source.backlog_bytes,
        )
        self._receiver = Receiver(source, self._log, writer, self._metrics)
        self._reading = contextlib.ExitStack()
        self._reading.callback(describer.close)
        writer.start()
        self._receiver.start()
        self._reading.callback(self._receiver.stop)

    def stop(self) -> None:
        """Make durable and acknowledge what came. Repeats safely."""
        if self._reading is not None:
            self._reading.close()

    def check(self) -> None:
        """Raise what ended the reading, if it ended by itself."""
        if self._receiver is not None:
            self._receiver.check()

    @property
    def wal_end(self) -> Lsn:
        """How far the source's log reached when last heard of."""
        heard = Lsn(0) if self._receiver is None else self._receiver.wal_end
        return max(heard, self._log.end)
