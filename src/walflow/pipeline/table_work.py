"""What all tables' workers share for their work."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from walflow.changelog import ChangeLog
from walflow.pipeline.apply.applier import Routed
from walflow.pipeline.apply.batches import Batches
from walflow.pipeline.apply.maintenance import Maintenance
from walflow.pipeline.run import PipelineEnd
from walflow.pipeline.state.table_states import Tables
from walflow.pipeline.table_sync.table_sync import LargestFirst, TableSync

__all__ = ["Pools", "TableWork"]

_READY_AT_ONCE = 16


class Pools:
    """The threads for tables' jobs. Tables that are copied, that catch up, and that are ready have
    threads of their own, so that none of these kinds waits for another."""

    def __init__(self, copies_at_once: int) -> None:
        self.copying = LargestFirst(copies_at_once, "walflow-sync")
        self.catching_up = ThreadPoolExecutor(copies_at_once, thread_name_prefix="walflow-catchup")
        self.ready = ThreadPoolExecutor(_READY_AT_ONCE, thread_name_prefix="walflow-apply")


@dataclass(frozen=True, slots=True)
class TableWork:
    """What all tables' workers share for their work."""

    sync: TableSync
    batches: Batches
    maintenance: Maintenance
    pools: Pools
    routed: Routed

    @property
    def tables(self) -> Tables:
        return self.batches.tables

    @property
    def log(self) -> ChangeLog:
        return self.batches.log

    @property
    def end(self) -> PipelineEnd:
        return self.batches.run.end
