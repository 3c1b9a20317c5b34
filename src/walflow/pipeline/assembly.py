"""Putting the parts of a pipeline together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from walflow.changelog import ChangeLog
from walflow.config import Settings
from walflow.destinations import OpenDestination
from walflow.mapping import NamedTables, TableMapping
from walflow.observe.metrics import PipelineMetrics
from walflow.pipeline.apply.batches import Batches
from walflow.pipeline.apply.consistent_cuts import Progress
from walflow.pipeline.apply.lanes import Lanes
from walflow.pipeline.apply.maintenance import Maintenance
from walflow.pipeline.apply.schema_changes import SchemaChanger
from walflow.pipeline.capture.intake import Intake
from walflow.pipeline.coordinator import Parts
from walflow.pipeline.dispatcher import Dispatcher
from walflow.pipeline.publication.published import Published
from walflow.pipeline.publication.reconciler import PublicationReconciler
from walflow.pipeline.state.lease import LeaseKeeper
from walflow.pipeline.state.requests import Requests
from walflow.pipeline.state.table_states import Tables
from walflow.pipeline.table_sync.copy_connections import Connections
from walflow.pipeline.table_sync.snapshots import Snapshots
from walflow.pipeline.table_sync.table_copy import CopyReader
from walflow.pipeline.table_sync.table_sync import TableSync
from walflow.pipeline.timing import Timing
from walflow.source.stream.relation import Relation
from walflow.spark.session import cores
from walflow.stores.base import Store

__all__ = ["Ground", "assemble"]


@dataclass(frozen=True, slots=True)
class Ground:
    """What all parts stand on."""

    settings: Settings
    application: str
    """What the source calls our sessions."""
    store: Store
    lease: LeaseKeeper
    tables: Tables
    log: ChangeLog
    destination: OpenDestination
    mapping: TableMapping
    metrics: PipelineMetrics
    stop: threading.Event
    timing: Timing


def assemble(
    ground: Ground,
    cleanup: ExitStack,
    *,
    failed: Callable[[int, Exception], None],
    fatal: Callable[[BaseException], None],
    waiting: Callable[[], int],
) -> Parts:
    """The parts, none of them at work yet; what they hold is let go of by ``cleanup``.

    ``failed`` is told of tables, ``fatal`` of what ends the pipeline, both from the threads that
    work; ``waiting`` says how many sealed segments have not been applied.
    """
    settings, log, tables = ground.settings, ground.log, ground.tables
    spark, destination = ground.destination.spark, ground.destination.destination
    uri, application = settings.source.uri.get_secret_value(), ground.application
    published = Published(uri, application, settings.publication, settings.types, settings.tables)
    cleanup.callback(published.close)
    snapshots = Snapshots(uri, application, settings.slot, published, ground.stop)
    cleanup.callback(snapshots.close)
    connections = Connections(min(settings.max_copy_connections, cores(spark)))
    range_bytes = settings.copying.range_bytes
    reader = CopyReader(
        uri,
        application,
        spark,
        log,
        connections,
        ground.metrics,
        range_bytes,
        timing=ground.timing,
    )
    table_sync = TableSync(
        spark,
        log,
        ground.store,
        destination,
        tables,
        snapshots,
        reader,
        ground.metrics,
        workers=settings.max_table_sync_workers,
        failed=failed,
        fatal=fatal,
    )
    schema_changer = SchemaChanger(
        ground.store,
        log,
        destination,
        tables,
        ground.metrics,
        trust_rewrites=settings.apply.on_rewrite == "trust",
    )
    ending = threading.Event()
    progress = Progress(spark, destination, ground.metrics, timing=ground.timing)
    maintenance = Maintenance(spark, destination, ground.metrics)
    batches = Batches(
        spark,
        log,
        ground.store,
        destination,
        tables,
        schema_changer,
        progress,
        ground.metrics,
        ending,
    )
    lanes = Lanes(
        log,
        destination,
        tables,
        batches,
        schema_changer,
        maintenance,
        stop=ending,
        catching_up_at_once=settings.max_table_sync_workers,
        outgrown=lambda oid, reason: reconciler.outgrown(oid, reason),
        overtaken=lambda oid: reconciler.overtaken(oid),
        failed=failed,
        fatal=fatal,
        timing=ground.timing,
    )
    dispatcher = Dispatcher(log, destination, tables, table_sync, lanes)
    reconciler = PublicationReconciler(
        published,
        ground.mapping,
        (
            NamedTables("tables.include", settings.tables.named),
            NamedTables("mapping.tables", settings.mapping.tables),
            NamedTables("apply.tables", settings.apply.tables),
        ),
        ground.store,
        log,
        destination,
        tables,
        reader,
        schema_changer,
        dispatcher,
        chosen=settings.tables,
        drop_removed=settings.on_table_removed == "drop",
        timing=ground.timing,
    )
    intake = Intake(
        settings,
        application,
        log,
        snapshots,
        ground.metrics,
        follows=lambda relation: _follows(ground, relation),
        waiting=waiting,
    )
    return Parts(
        lease=ground.lease,
        log=log,
        tables=tables,
        intake=intake,
        snapshots=snapshots,
        connections=connections,
        table_sync=table_sync,
        lanes=lanes,
        maintenance=maintenance,
        progress=progress,
        dispatcher=dispatcher,
        reconciler=reconciler,
        requests=Requests(ground.store, tables, dispatcher, reconciler),
    )


def _follows(ground: Ground, relation: Relation) -> bool:
    """Whether changes of the table are kept. One that has got a name that is not chosen goes on
    until that is seen: it may have its old name again by then, and nobody would have noticed."""
    return (
        ground.settings.tables.have(relation.name)
        or ground.store.get_table_replication_state(relation.oid) is not None
    )
