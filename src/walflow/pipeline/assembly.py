"""Creates the parts of a pipeline and connects them."""

from __future__ import annotations

from dataclasses import dataclass

from walflow.changelog import ChangeLog
from walflow.destinations import OpenDestination
from walflow.mapping import NamedTables, TableMapping
from walflow.pipeline.apply.applier import Routed
from walflow.pipeline.apply.batches import Batches
from walflow.pipeline.apply.consistent_cuts import ConsistentCuts
from walflow.pipeline.apply.maintenance import Maintenance
from walflow.pipeline.apply.schema_changes import SchemaChanger
from walflow.pipeline.capture.intake import Intake
from walflow.pipeline.coordinator import Coordinator
from walflow.pipeline.publication.comparison import PublicationComparison
from walflow.pipeline.publication.first_states import FirstStates
from walflow.pipeline.publication.published import Published
from walflow.pipeline.publication.reconciler import Chosen, PublicationReconciler
from walflow.pipeline.requests import Requests
from walflow.pipeline.run import PipelineRun
from walflow.pipeline.state.table_states import Tables
from walflow.pipeline.table_sync.copy_connections import Connections
from walflow.pipeline.table_sync.snapshots import Snapshots
from walflow.pipeline.table_sync.table_copy import CopyReader
from walflow.pipeline.table_sync.table_sync import TableSync
from walflow.pipeline.table_work import Pools, TableWork
from walflow.pipeline.table_workers import TableWorkers
from walflow.spark.session import cores
from walflow.stores.base import RequestStore

__all__ = ["Opened", "assemble"]


@dataclass(frozen=True, slots=True)
class Opened:
    """What a start opens before the parts are made."""

    store: RequestStore
    tables: Tables
    log: ChangeLog
    target: OpenDestination
    mapping: TableMapping


def assemble(run: PipelineRun, opened: Opened, published: Published) -> Coordinator:
    """Create all parts of a pipeline. None of them is started."""
    settings, tables, log, target = run.settings, opened.tables, opened.log, opened.target
    snapshots = Snapshots(run.uri, run.application, settings.slot, published, run.end.asked)
    reader = CopyReader(
        run.uri,
        run.application,
        target.spark,
        log,
        Connections(min(settings.max_copy_connections, cores(target.spark))),
        run.metrics,
        settings.copying.range_bytes,
        timing=run.timing,
    )
    schema_changer = SchemaChanger(
        log,
        target.destination,
        tables,
        run.metrics,
        trust_rewrites=settings.apply.on_rewrite == "trust",
    )
    cuts = ConsistentCuts(target.spark, target.destination, run.metrics, timing=run.timing)
    work = TableWork(
        TableSync(target, log, tables, snapshots, reader, run.metrics),
        Batches(run, target, log, tables, schema_changer, cuts),
        Maintenance(target.spark, target.destination, run.metrics),
        Pools(settings.max_table_sync_workers),
        Routed(log.end),
    )
    workers = TableWorkers(work)
    reconciler = PublicationReconciler(
        published,
        workers,
        PublicationComparison(opened.mapping, tables, schema_changer, target.destination),
        FirstStates(opened.mapping, tables, log, target.destination),
        Chosen(
            settings.tables,
            (
                NamedTables("tables.include", settings.tables.named),
                NamedTables("mapping.tables", settings.mapping.tables),
                NamedTables("apply.tables", settings.apply.tables),
            ),
            drop_removed=settings.on_table_removed == "drop",
        ),
        run.timing,
    )
    intake = Intake(run, log, tables, snapshots)
    return Coordinator(run, intake, workers, reconciler, Requests(opened.store, workers))
