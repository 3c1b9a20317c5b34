"""A pipeline: one source, one slot, one change log, one destination, one store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import structlog

from walflow.changelog import ChangeLog, LogIdentity
from walflow.config import Settings, load_settings
from walflow.destinations import (
    OpenDestination,
    check_catalog,
    check_named,
    open_destination,
    run_on_spark,
)
from walflow.destinations.base import Destination
from walflow.destinations.own import BasicDestination, adapted
from walflow.errors import (
    LogError,
    SourceError,
    Stopped,
    WalflowError,
)
from walflow.mapping import TableMapping
from walflow.model import Lsn, Phase, TableName
from walflow.observe.logs import configure_if_nobody_has
from walflow.observe.metrics import Metrics, PipelineMetrics
from walflow.paths import is_there
from walflow.pipeline.assembly import Opened, assemble
from walflow.pipeline.coordinator import Coordinator
from walflow.pipeline.drop import remove_leftovers
from walflow.pipeline.first_start import Made
from walflow.pipeline.publication.published import Published
from walflow.pipeline.run import PipelineEnd, PipelineRun
from walflow.pipeline.source_at_start import SourceAtStart
from walflow.pipeline.state.lease import LeaseKeeper, held_store
from walflow.pipeline.state.phases import FOLLOWED
from walflow.pipeline.state.pipeline_notes import note_stop, write_notes
from walflow.pipeline.state.retries import Retries
from walflow.pipeline.state.status import PipelineStatus
from walflow.pipeline.state.table_states import Tables
from walflow.pipeline.timing import Timing
from walflow.plugins import PYTHON
from walflow.source.connection import connect
from walflow.source.stream.slots import slot_loss
from walflow.spark.jars import telling_of_jars
from walflow.spark.session import check_given
from walflow.states import stands_at
from walflow.stores import open_store, state_file, state_file_is_there
from walflow.stores.base import Action, BasicStore, Report, Request, Store
from walflow.stores.own import check_calls, completed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Pipeline", "PipelineStatus"]

_CHECK_SECONDS = 0.1
_PATIENCE_SECONDS = 30.0
"""``wait(until_caught_up=True)`` waits so long for a table's next attempt, but not longer."""

_STOPPING = (
    "capture",  # what came is made durable and acknowledged
    "tables",  # copies are broken off, batches are finished, and all is stored
    "snapshots",
    "catalog session",
    "destination",
    "change log",
    "what was made",  # it is taken back if nothing was copied
    "lease",
    "store",
    "log folder",  # it is removed if the start has failed before anything was in it
)
"""The order in which a pipeline stops its parts and closes what it opened."""

_logger = structlog.get_logger(__name__)


class Pipeline:
    """Use as a context manager, or ``start``, ``wait``, ``shutdown``.

    After ``start`` one thread receives, one writes the log, and one coordinates those that copy
    tables and those that apply changes to them.
    """

    def __init__(
        self,
        config: Settings | Mapping[str, Any],
        store: BasicStore | None = None,
        destination: Destination | BasicDestination | None = None,
        *,
        spark: SparkSession | None = None,
        metrics: Metrics | None = None,
        debug: bool = False,
        timing: Timing = Timing(),
    ) -> None:
        """``config`` are settings, or a mapping that ``load_settings`` takes, such as
        ``{"source.uri": …}``. It overrides the environment. A given store, destination or session
        is used instead of the one that the settings name.

        A given store and session are left open. A given destination is started and shut down with
        the pipeline. ``spark`` must have the jars of the destination that the settings name.
        """
        configure_if_nobody_has()
        settings = config if isinstance(config, Settings) else _settings(config, destination)
        self._given_spark = spark
        self._given_destination = None if destination is None else adapted(destination)
        self._given_store = None if store is None else check_calls(store)
        self.settings = settings
        self.stage = "waiting to start"
        """What the start is doing, as text for people."""
        self._metrics: PipelineMetrics = (Metrics() if metrics is None else metrics).pipeline(
            settings.name
        )
        self._uri = settings.source.uri.get_secret_value()
        self._application = f"walflow {settings.name}"
        self._debug = debug
        self._timing = timing
        self._end = PipelineEnd(owns_jvm=spark is None)
        self._thread = threading.Thread(target=self._work, name="walflow-coordinate", daemon=True)
        self._opened: dict[str, Callable[[], None]] = {}
        """How to close what the start has opened so far. The keys are from _STOPPING."""
        self._mapping = TableMapping(settings.mapping)
        self._tables: Tables | None = None
        self._made = Made()
        self._store: Store
        self._lease: LeaseKeeper
        self._log: ChangeLog
        self._destination: OpenDestination
        self._coordinator: Coordinator | None = None

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
        """Check everything, then create what is missing (publication, slot), then run.

        A start that fails before anything was copied leaves nothing behind.
        """
        self._metrics.started()
        try:
            self._start()
        except BaseException as error:
            self._metrics.failed(error)
            self._let_go(error)
            raise

    def _start(self) -> None:
        settings = self.settings
        if self._given_destination is None:
            check_named(settings)
        new_folder = not is_there(settings.log_folder)
        if new_folder or not (state_file(settings) is None or state_file_is_there(settings)):
            self._opened["log folder"] = partial(remove_leftovers, settings)
        self.stage = "opening the store"
        self._open_store()
        self._made.log = new_folder
        self.stage = "checking the source"
        source = SourceAtStart(settings, self._store, self._application, self._end)
        found = source.check()
        settings = self.settings = source.settings
        identity = LogIdentity(settings.name, str(found.server.system_identifier), settings.slot)
        self.stage = "opening the change log"
        confirmed = found.slot.confirmed_flush if found.lost is None else None
        self._log = ChangeLog.open(
            settings.log_folder,
            identity,
            start=confirmed or Lsn(0),
            max_bytes=settings.log.max_bytes,
            file_bytes=settings.log.file_bytes,
        )
        self._opened["change log"] = self._log.close
        source_id = f"{identity.system_id}/{found.server.database}"
        self._made.notes = write_notes(settings, source_id)
        if confirmed is not None and source.begun and not source.resyncs:
            lost = slot_loss(found.slot, self._log.end)
            if lost is not None:
                raise lost
        self.stage = "starting Spark"
        with telling_of_jars(self._tell_of_jars):
            self._destination = self._open_destination(source_id, found.timeline)
        self._opened["destination"] = self._destination.close
        self._check_stopped()
        self.stage = "opening the catalog"
        check_catalog(
            self._destination, settings, begun=source.begun, patience=self._timing.catalog
        )
        self._check_stopped()
        source.publish(found, self._made)
        coordinator = self._make_parts()
        intake = coordinator.intake
        if confirmed is None:
            self.stage = "making the slot"
            if found.lost is not None:
                coordinator.workers.tables.forget_positions()
            try:
                intake.make_slot(found.lost)
            finally:
                self._made.slot = intake.made_slot and found.lost is None
            self._check_stopped()
        elif confirmed > self._log.end:
            _logger.warning(
                "changes are missing in the change log; tables are copied again",
                log_end=str(self._log.end),
                slot=str(confirmed),
            )
            self._log.restart(confirmed)
        coordinator.workers.restart()
        intake.start()
        self._opened["capture"] = intake.stop
        self._thread.start()
        self.stage = "running"

    def _open_store(self) -> None:
        settings = self.settings
        if self._given_store is not None:
            store = completed(self._given_store, settings.name, settings.log_folder)
        else:
            store = open_store(settings)
            self._opened["store"] = store.close
        self._lease = LeaseKeeper(store, self._report, self._end.fail, timing=self._timing)
        self._lease.acquire(self._end.asked.is_set)
        self._opened["lease"] = self._lease.release
        self._opened["what was made"] = self._take_back_if_unused
        self._store = held_store(store, self._lease, self._end.asked, self._timing.store_pause)
        # Until now another process may have changed what is there.
        self._store.load_table_schemas()
        self._store.load_table_replication_states()
        self._store.load_table_mappings()
        self._check_stopped()
        retries = Retries(
            settings.table_error_retry_delay_ms / 1000, settings.table_error_retry_max_attempts
        )
        self._tables = Tables(self._store, retries)

    def _tell_of_jars(self, text: str) -> None:
        self.stage = f"starting Spark, {text}"

    def _open_destination(self, source_id: str, timeline: int) -> OpenDestination:
        settings, spark = self.settings, self._given_spark
        if spark is not None:
            check_given(spark)
        if self._given_destination is None:
            return open_destination(
                settings, source_id, timeline=timeline, spark=spark, debug=self._debug
            )
        return run_on_spark(self._given_destination, settings, spark, debug=self._debug)

    def _check_stopped(self) -> None:
        self.check()
        if self._end.asked.is_set():
            raise Stopped("asked to stop while starting")

    def _take_back_if_unused(self) -> None:
        if self._lease.error is None and not self._something_copied:
            self._made.take_back(self.settings, self._store, self._application)

    @property
    def _something_copied(self) -> bool:
        """Whether the next start can go on from anything."""
        states = [] if self._tables is None else self._tables.all()
        phases = {stands_at(state) for state in states}
        return bool(phases & (FOLLOWED | {Phase.SYNC_WAIT})) or any(
            state.rows_copied for state in states
        )

    def _make_parts(self) -> Coordinator:
        assert self._tables is not None
        settings = self.settings
        run = PipelineRun(
            settings, self._application, self._lease, self._metrics, self._timing, self._end
        )
        published = Published(
            run.uri, run.application, settings.publication, settings.types, settings.tables
        )
        self._opened["catalog session"] = published.close
        opened = Opened(self._store, self._tables, self._log, self._destination, self._mapping)
        self._coordinator = coordinator = assemble(run, opened, published)
        self._opened["snapshots"] = coordinator.workers.work.sync.snapshots.close
        self._opened["tables"] = self._end_work
        return coordinator

    # Running.

    def wait(self, *, until_caught_up: bool = False, poll: float = _CHECK_SECONDS) -> None:
        """Wait until the pipeline ends, and raise its error, if any.

        ``until_caught_up``: also return when everything is in the destination that the source had
        committed when the copies finished. If only tables that were set aside are missing, and they
        wait for an operator or for an attempt that is not due within 30 seconds, raises
        TablesSetAside.
        """
        target: Lsn | None = None
        while not self._end.asked.wait(poll):
            self.check()
            if not until_caught_up or not self._coordinating.begun:
                continue
            status, by = self.status(), time.time() + _PATIENCE_SECONDS
            if target is None and not status.under_way(by):
                target = self._position_if_there()
            if target is not None and status.reached(target, by):
                status.check_none_set_aside(by)
                return
        self.check()

    def wait_until(self, position: Lsn, seconds: float) -> bool:
        """Wait until everything up to the position is in the destination. Returns False if the time
        is over. Does not wait for tables that wait for an operator."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check()
            if self._coordinating.begun and self.status().reached(position):
                return True
            self._end.asked.wait(_CHECK_SECONDS)
        return False

    def source_position(self) -> Lsn:
        """The end of the source's log now."""
        with connect(self._uri, application_name=self._application) as connection:
            row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        return Lsn.parse(row[0])

    def _position_if_there(self) -> Lsn | None:
        """None: the source is away for a while."""
        try:
            return self.source_position()
        except SourceError as error:
            if not error.retry:
                raise
            return None

    def check(self) -> None:
        """Raise the error that ended the pipeline, if any."""
        self._end.check()

    def status(self) -> PipelineStatus:
        return self._coordinating.status()

    @property
    def _coordinating(self) -> Coordinator:
        assert self._coordinator is not None, "the pipeline was not started"
        return self._coordinator

    def _report(self) -> Report | None:
        """Called by the lease's thread, which starts before all others."""
        last = None if self._coordinator is None else self._coordinator.last
        return None if last is None else last.report()

    @property
    def spark(self) -> SparkSession:
        """The session that the destination's tables can be read with, while the pipeline runs."""
        return self._destination.spark

    # Steering. Done by the coordinating thread within about a second.

    def retry(self, table: TableName) -> None:
        """Try a table that was set aside again now."""
        self._ask(Action.RETRY, table)

    def rollback(self, table: TableName) -> None:
        """Put a table back into its previous state."""
        self._ask(Action.ROLLBACK, table)

    def resync(self, table: TableName) -> None:
        """Copy a table again. The destination's table stays as it is until the copy is finished."""
        self._ask(Action.RESYNC, table)

    def _ask(self, action: Action, table: TableName) -> None:
        self._store.put_request(Request.new(table, action))

    # Ending.

    def stop(self) -> None:
        """Ask the pipeline to end, and return at once: ``wait`` returns, and ``shutdown`` does the
        rest."""
        self._end.asked.set()

    def shutdown(self) -> None:
        """Finish batches, make durable what was received, and close everything.

        A running copy is interrupted, because it may take hours. The next start continues it.
        Repeats safely.
        """
        self._end.asked.set()
        if self._thread.ident is not None:
            self._thread.join()
        error = self._end.error
        self._let_go(error)
        # Only the list of pipelines tells it.
        with suppress(LogError):
            note_stop(self.settings.log_folder)
        if error is None:
            self._metrics.stopped()
        else:
            self._metrics.failed(error)

    def _let_go(self, error: BaseException | None) -> None:
        """Close everything that the start has opened so far, in the order of _STOPPING."""
        opened, self._opened = self._opened, {}
        assert opened.keys() <= set(_STOPPING)
        try:
            with ExitStack() as last_first:
                for name in reversed(_STOPPING):
                    if name in opened:
                        last_first.callback(opened[name])
        except Exception as another:
            if error is None:
                raise
            # What ended the pipeline is the error to tell; this is most often its consequence.
            _logger.warning("the pipeline could not be closed completely", error=str(another))

    def _end_work(self) -> None:
        coordinator, destination = self._coordinating, self._destination.destination
        try:
            destination.break_off()
        except Exception as error:
            # It only takes longer then; what is being written must have ended before all else.
            _logger.warning("the destination did not stop early", error=str(error))
        workers = coordinator.workers
        workers.close()
        status = coordinator.status() if self._end.error is None else None
        workers.work.batches.cuts.close(status)
        coordinator.requests.answer()
        workers.tables.save()

    def _work(self) -> None:
        try:
            self._coordinating.run()
        except BaseException as error:  # raised again by check() in the caller's thread
            if not self._end.asked.is_set() or isinstance(error, WalflowError):
                self._end.fail(error)
        finally:
            self._end.asked.set()


def _settings(
    config: Mapping[str, Any], destination: Destination | BasicDestination | None
) -> Settings:
    if destination is None:
        return load_settings(None, config)
    # One that is given need not be named, but messages and the store's entries name it.
    kind = type(destination)
    return load_settings(
        None, {"destination.uri": f"{PYTHON}:{kind.__module__}:{kind.__qualname__}", **config}
    )
