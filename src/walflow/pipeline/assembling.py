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
from walflow.pipeline.connections import Connections
from walflow.pipeline.coordinating import Parts
from walflow.pipeline.dispatching import Dispatcher
from walflow.pipeline.evolving import Evolver
from walflow.pipeline.intake import Intake
from walflow.pipeline.joining import Joiner
from walflow.pipeline.lanes import Lanes
from walflow.pipeline.leasing import LeaseKeeper
from walflow.pipeline.progress import Progress
from walflow.pipeline.published import Published
from walflow.pipeline.reading import CopyReader
from walflow.pipeline.requests import Requests
from walflow.pipeline.rounds import Rounds
from walflow.pipeline.snapshots import Snapshots
from walflow.pipeline.syncing import Syncer
from walflow.pipeline.tables import Tables
from walflow.pipeline.timing import Timing
from walflow.pipeline.upkeep import Upkeep
from walflow.source.relation import Relation
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
    syncer = Syncer(
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
    evolver = Evolver(
        ground.store,
        log,
        destination,
        tables,
        ground.metrics,
        trust_rewrites=settings.apply.on_rewrite == "trust",
    )
    ending = threading.Event()
    progress = Progress(spark, destination, ground.metrics, timing=ground.timing)
    upkeep = Upkeep(spark, destination, ground.metrics)
    rounds = Rounds(
        spark, log, ground.store, destination, tables, evolver, progress, ground.metrics, ending
    )
    lanes = Lanes(
        log,
        destination,
        tables,
        rounds,
        evolver,
        upkeep,
        stop=ending,
        catching_up_at_once=settings.max_table_sync_workers,
        outgrown=lambda oid, reason: joiner.outgrown(oid, reason),
        overtaken=lambda oid: joiner.overtaken(oid),
        failed=failed,
        fatal=fatal,
        timing=ground.timing,
    )
    dispatcher = Dispatcher(log, destination, tables, syncer, lanes)
    joiner = Joiner(
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
        evolver,
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
        syncer=syncer,
        lanes=lanes,
        upkeep=upkeep,
        progress=progress,
        dispatcher=dispatcher,
        joiner=joiner,
        requests=Requests(ground.store, tables, dispatcher, joiner),
    )


def _follows(ground: Ground, relation: Relation) -> bool:
    """Whether changes of the table are kept. One that has got a name that is not chosen goes on
    until that is seen: it may have its old name again by then, and nobody would have noticed."""
    return (
        ground.settings.tables.have(relation.name)
        or ground.store.get_table_replication_state(relation.oid) is not None
    )
