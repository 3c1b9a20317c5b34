"""A pipeline: one source, one slot, one change log, one destination."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import structlog
import tenacity

from walflow.changelog import ChangeLog, LogIdentity
from walflow.config import Settings
from walflow.destinations import OpenDestination, open_destination
from walflow.errors import DestinationError, Stopped, WalflowError
from walflow.model import Lsn
from walflow.observe.metrics import Metrics, PipelineMetrics
from walflow.pipeline.applying import Applier
from walflow.pipeline.describing import Describer
from walflow.pipeline.joining import Joiner, NewSlot
from walflow.pipeline.receiving import Receiver, Source
from walflow.pipeline.syncing import Copier
from walflow.pipeline.tables import Tables, TableState
from walflow.pipeline.writing import LogWriter
from walflow.source.catalog import published_tables
from walflow.source.connection import connect
from walflow.source.pgoutput import Decoder
from walflow.source.preflight import Preflight, preflight
from walflow.source.publication import create_publication
from walflow.source.slots import drop_slot
from walflow.source.wire import Replication
from walflow.spark.session import jvm_ended, jvm_ended_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Pipeline", "PipelineStatus"]

_ATTEMPTS = 5
_IDLE_SECONDS = 0.5
_CHECK_SECONDS = 0.1
_JVM_SECONDS = 2.0

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """The whole pipeline, as of now."""

    tables: tuple[TableState, ...]
    wal_end: Lsn
    """How far the source's log reached when last heard of."""
    log_end: Lsn
    """All up to here is durable in the change log."""
    applied: Lsn
    """All up to here is in the destination, of every table."""
    lag_seconds: float
    """The age of the oldest transaction in the log that is not applied; 0 if there is none."""

    @property
    def lag_bytes(self) -> int:
        return max(0, self.wal_end - self.applied)


class Pipeline:
    """Use as a context manager, or ``start``, ``wait``, ``shutdown``.

    After ``start`` three threads work: one receives, one writes the log, one copies and applies.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics | None = None,
        *,
        spark: SparkSession | None = None,
        debug: bool = False,
    ) -> None:
        """``spark`` is used if given, and left running; it must have the destination's jars."""
        self._given_spark = spark
        self.settings = settings
        self.tables = Tables()
        self.stage = "waiting to start"
        """What the start is busy with, for people to read."""
        self._metrics: PipelineMetrics = (metrics or Metrics()).pipeline(settings.name)
        self._uri = settings.source.uri.get_secret_value()
        self._application = f"walflow {settings.name}"
        self._debug = debug
        self._stop = threading.Event()
        self._following = threading.Event()
        self._error: BaseException | None = None
        self._worker = threading.Thread(target=self._work, name="walflow-apply", daemon=True)
        self._cleanup = ExitStack()
        self._new_slot: NewSlot | None = None
        self._joiner: Joiner
        self._log: ChangeLog
        self._receiver: Receiver
        self._destination: OpenDestination
        self._copier: Copier
        self._applier: Applier

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    # Starting.

    def start(self) -> None:
        """Check everything, then make what is missing (publication, slot), then run.

        What fails before anything was copied leaves nothing behind.
        """
        self._metrics.started()
        try:
            self._start()
        except BaseException as error:
            self._metrics.failed(error)
            self._cleanup.close()
            raise

    def _start(self) -> None:
        settings = self.settings
        self.stage = "checking the source"
        found = self._preflight()
        identity = LogIdentity(settings.name, str(found.server.system_identifier), settings.slot)
        confirmed = found.slot.confirmed_flush
        self.stage = "opening the change log"
        if not settings.log_folder.exists():
            self._cleanup.callback(self._remove_unused_log)
        self._log = ChangeLog.open(
            settings.log_folder,
            identity,
            start=confirmed or Lsn(0),
            max_bytes=settings.log.max_bytes,
            file_bytes=settings.log.file_bytes,
        )
        self._cleanup.callback(self._log.close)
        self.stage = "starting Spark"
        self._destination = open_destination(
            settings,
            f"{identity.system_id}/{found.server.database}",
            spark=self._given_spark,
            debug=self._debug,
        )
        self._cleanup.callback(self._destination.close)
        self._check_stopped()
        if found.publication is None:
            self._make_publication(found)
        if confirmed is None:
            self.stage = "making the slot"
            self._make_slot()
        elif confirmed > self._log.end:
            _logger.warning(
                "the change log was lost or is old; tables will be copied again",
                log_end=str(self._log.end),
                slot=str(confirmed),
            )
            self._log.restart(confirmed)
        self._start_threads()
        self.stage = "running"

    def _preflight(self) -> Preflight:
        source = self.settings.source
        with connect(self._uri, application_name=self._application) as connection:
            found = preflight(
                connection,
                publication=source.publication,
                slot=self.settings.slot,
                create_publication=source.create_publication,
                tables=source.tables,
                types=self.settings.types,
            )
        for warning in found.warnings:
            _logger.warning(warning)
        return found

    def _make_publication(self, found: Preflight) -> None:
        with connect(self._uri, application_name=self._application) as connection:
            create_publication(connection, self.settings.source.publication, found.create_tables)
        _logger.info("made the publication", publication=self.settings.source.publication)

    def _make_slot(self) -> None:
        with connect(self._uri, application_name=self._application) as connection:
            published = published_tables(
                connection, self.settings.source.publication, self.settings.types
            )
        replication = Replication(self._uri, application_name=self._application)
        self._cleanup.callback(replication.close)
        created = replication.create_slot(self.settings.slot, cancelled=self._stop.is_set)
        self._cleanup.callback(self._drop_unused_slot)
        before = frozenset(table.schema.oid for table in published)
        self._new_slot = NewSlot(replication, created, before)
        self._log.restart(created.consistent_point)
        _logger.info(
            "made the slot", slot=self.settings.slot, position=str(created.consistent_point)
        )
        self._check_stopped()

    def _check_stopped(self) -> None:
        if self._stop.is_set():
            raise Stopped("told to stop while starting")

    def _drop_unused_slot(self) -> None:
        """A slot that this start made and that no copied table needs would only hold the
        source's log back."""
        if self._something_copied:
            return
        with connect(self._uri, application_name=self._application) as connection:
            drop_slot(connection, self.settings.slot)

    def _remove_unused_log(self) -> None:
        """A log that this start made and that no copied table needs."""
        if not self._something_copied:
            shutil.rmtree(self.settings.log_folder, ignore_errors=True)

    @property
    def _something_copied(self) -> bool:
        return any(state.position for state in self.tables.all())

    def _start_threads(self) -> None:
        settings = self.settings
        describer = Describer(self._uri, self._application, self._log, settings.types)
        self._cleanup.callback(describer.close)
        writer = LogWriter(
            self._log,
            Decoder(describer.describe),
            self._metrics,
            fill_seconds=settings.log.fill_ms / 1000,
            segment_bytes=settings.log.segment_bytes,
            waiting=lambda: self._log.waiting(self.tables.applied() or self._log.start),
        )
        source = Source(
            self._uri,
            settings.slot,
            settings.source.publication,
            self._application,
            settings.source.backlog_bytes,
        )
        self._receiver = Receiver(source, self._log, writer, self._metrics)
        spark, destination = self._destination.spark, self._destination.destination
        self._copier = Copier(
            self._uri,
            self._application,
            spark,
            self._log,
            destination,
            self.tables,
            self._metrics,
            settings.copying,
            settings.max_copy_connections,
        )
        self._applier = Applier(spark, self._log, destination, self.tables, self._metrics)
        self._joiner = Joiner(
            self._uri,
            self._application,
            settings.slot,
            settings.source.publication,
            settings.types,
            self._log,
            destination,
            self.tables,
            self._copier,
            self._metrics,
            self._stop,
        )
        writer.start()
        self._receiver.start()
        self._cleanup.callback(self._receiver.stop)
        self._worker.start()

    # Running.

    def wait(self, *, until_caught_up: bool = False, poll: float = _CHECK_SECONDS) -> None:
        """Wait until the pipeline ends; raises what ended it.

        ``until_caught_up``: also return when everything that the source had committed when the
        copy was finished is in the destination.
        """
        target: Lsn | None = None
        while not self._stop.wait(poll):
            self.check()
            if not until_caught_up or not self._following.is_set():
                continue
            if target is None:
                target = self.source_position()
            if self.status().applied >= target:
                return
        self.check()

    def wait_until(self, position: Lsn, seconds: float) -> bool:
        """Wait until all up to the position is in the destination; False if not in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check()
            if self._following.is_set() and self.status().applied >= position:
                return True
            self._stop.wait(_CHECK_SECONDS)
        return False

    def source_position(self) -> Lsn:
        """How far the source's log reaches now."""
        with connect(self._uri, application_name=self._application) as connection:
            row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        return Lsn.parse(row[0])

    def check(self) -> None:
        """Raise what ended the pipeline, if anything did."""
        if self._error is not None:
            raise self._error
        self._receiver.check()

    def status(self) -> PipelineStatus:
        states = self.tables.all()
        applied = self.tables.applied()
        if applied is None:
            applied = self._log.end if self._following.is_set() else self._log.start
        waiting = self._log.segments(applied)
        lag = max(0.0, time.time() - waiting[0].commit_time / 1e6) if waiting else 0.0
        status = PipelineStatus(
            tuple(states),
            max(self._receiver.wal_end, self._log.end),
            self._log.end,
            applied,
            lag,
        )
        self._metrics.end_to_end_lag_bytes.set(status.lag_bytes)
        self._metrics.end_to_end_lag_seconds.set(status.lag_seconds)
        self._metrics.set_phases({state.name: state.phase for state in states})
        return status

    @property
    def spark(self) -> SparkSession:
        """The session that the destination's tables can be read with, while the pipeline runs."""
        return self._destination.spark

    def stop(self) -> None:
        """Ask for the end and return at once: ``wait`` returns, ``shutdown`` does the rest."""
        self._stop.set()

    def shutdown(self) -> None:
        """Finish the round, make durable what was received, let go of everything.

        A copy that is under way is broken off: it may take hours. Repeats safely.
        """
        self._stop.set()
        while self._worker.is_alive():
            if self._joiner.copying.is_set():
                # A JVM that is gone has no jobs; what it was asked for fails by itself.
                with contextlib.suppress(Exception):
                    self.spark.sparkContext.cancelAllJobs()
            self._worker.join(_IDLE_SECONDS)
        self._cleanup.close()
        if self._error is None:
            self._metrics.stopped()
        else:
            self._metrics.failed(self._error)

    def _work(self) -> None:
        try:
            self._joiner.begin(self._new_slot)
            position = self.tables.applied() or self._log.start
            self._following.set()
            while not self._stop.is_set():
                self._receiver.check()
                self._log.wait_for_change(position, _IDLE_SECONDS)
                if self._log.end > position:
                    position = self._round(position)
                self._retire(position)
                self._joiner.look()
                self.status()  # for the metrics, whether or not anyone looks
        except BaseException as error:  # raised again by check() in the caller's thread
            # A copy that shutdown breaks off fails in whatever way it was in.
            broken_off = self._stop.is_set() and self._joiner.copying.is_set()
            if not broken_off and (not self._stop.is_set() or isinstance(error, WalflowError)):
                self._error = self._cause(error)
        finally:
            self._stop.set()

    def _cause(self, error: BaseException) -> BaseException:
        """What Spark could not do because its JVM has ended is not the error to tell."""
        if self._given_spark is not None or not isinstance(error, Exception):
            return error
        code = jvm_ended(_JVM_SECONDS)
        return error if code is None else jvm_ended_error(code)

    def _round(self, position: Lsn) -> Lsn:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda error: (
                    isinstance(error, DestinationError) and error.retry and jvm_ended() is None
                )
            ),
            stop=tenacity.stop_any(
                tenacity.stop_after_attempt(_ATTEMPTS), tenacity.stop_when_event_set(self._stop)
            ),
            wait=tenacity.wait_exponential(0.5, 30) + tenacity.wait_random(0, 0.5),
            sleep=self._sleep,
            before_sleep=self._tell,
            reraise=True,
        )
        done = retrying(self._applier.apply, position)
        if done.outgrown:
            self._joiner.rejoin(done.outgrown)
        return done.upto

    def _retire(self, position: Lsn) -> None:
        """Let go of applied segments by age, or at once when they keep new ones out."""
        age = self.settings.log.retain_seconds if self._log.has_room else 0
        self._log.retire(position, age)

    def _sleep(self, seconds: float) -> None:
        self._stop.wait(seconds)

    def _tell(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if error is not None:
            self._metrics.worker_failed("apply", error)
        _logger.warning("a round failed; trying again", error=str(error))
