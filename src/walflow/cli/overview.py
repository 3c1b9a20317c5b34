"""The state of a pipeline from its store: what ``walflow status`` shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from walflow.config import ApplySettings
from walflow.config.lake import TablePlan
from walflow.model import Lsn, Phase, TableName
from walflow.pipeline.state.phases import FOLLOWED
from walflow.pipeline.state.process_marks import is_held
from walflow.redaction import redacted
from walflow.states import RetryKind, TableError, TableReplicationState, stands_at
from walflow.stores.base import Lease, Report, Request, Store
from walflow.units import iso_time

__all__ = ["Overview", "TableOverview", "read_overview"]

_COPYING = frozenset((Phase.INIT, Phase.DATA_SYNC, Phase.FINISHED_COPY, Phase.SYNC_WAIT))


@dataclass(frozen=True, slots=True)
class TableOverview:
    oid: int
    state: TableReplicationState
    destination: TableName
    lag_bytes: int | None
    """None before the table is followed, and if the source's position is not known."""
    plan: TablePlan | None
    """None: not known."""

    @property
    def name(self) -> TableName:
        return self.state.table

    @property
    def set_aside(self) -> bool:
        return self.state.phase is Phase.ERRORED

    @property
    def failing(self) -> bool:
        """Whether it is set aside, or is tried again and has not succeeded yet."""
        return self.state.error is not None


@dataclass(frozen=True, slots=True)
class Overview:
    pipeline: str
    at: float
    lease: Lease | None
    tables: tuple[TableOverview, ...]
    """Failing tables, then tables being copied, then the others; each group by name."""
    requests: tuple[Request, ...]
    """Requests without an answer yet."""

    @property
    def running(self) -> bool:
        return is_held(self.lease)

    @property
    def report(self) -> Report | None:
        return None if self.lease is None else self.lease.report

    @property
    def set_aside(self) -> tuple[TableOverview, ...]:
        return tuple(table for table in self.tables if table.set_aside)

    @property
    def failing(self) -> tuple[TableOverview, ...]:
        return tuple(table for table in self.tables if table.failing)

    def errors_only(self) -> Overview:
        return replace(self, tables=self.failing)

    def to_dict(self) -> dict[str, Any]:
        """The object that ``walflow status --json`` prints: keys are never removed."""
        return {
            "pipeline": self.pipeline,
            "at": iso_time(self.at),
            "running": self.running,
            "holder": None if self.lease is None else _holder_dict(self.lease),
            "report": None if self.report is None else _report_dict(self.report),
            "set_aside": len(self.set_aside),
            "failing": len(self.failing),
            "tables": [_table_dict(table) for table in self.tables],
            "requests": [
                {
                    "id": request.id,
                    "table": str(request.table),
                    "action": request.action.value,
                    "asked": iso_time(request.asked),
                }
                for request in self.requests
            ],
        }


def read_overview(
    store: Store, pipeline: str, now: float, apply: ApplySettings | None = None
) -> Overview:
    """Read the persistent state, whether or not a process runs the pipeline. ``apply`` has the
    tables' modes, which the store does not know."""
    store.load_table_replication_states()
    store.load_table_mappings()
    lease = store.get_lease()
    mappings = store.get_table_mappings()
    tables = [
        TableOverview(
            oid,
            state,
            mappings.get(oid, state.table),
            _lag_bytes(oid, state, None if lease is None else lease.report),
            None if apply is None else apply.plan_of(str(state.table)),
        )
        for oid, state in store.get_table_replication_states().items()
    ]
    return Overview(
        pipeline, now, lease, tuple(sorted(tables, key=_rank)), tuple(store.open_requests())
    )


def _rank(table: TableOverview) -> tuple[int, TableName]:
    rank = 0 if table.failing else 1 if table.state.phase in _COPYING else 2
    return rank, table.name


def _lag_bytes(oid: int, state: TableReplicationState, report: Report | None) -> int | None:
    if report is None:
        return None
    if state.phase is Phase.ERRORED:
        followed, position = stands_at(state) in FOLLOWED, state.position
    else:
        # An idle table's position is not stored: it is as far as the whole log.
        followed = state.phase in FOLLOWED
        position = max(state.position, report.behind.get(oid, report.routed))
    return max(0, report.wal_end - position) if followed else None


def _holder_dict(lease: Lease) -> dict[str, Any]:
    return {
        "host": lease.holder.host,
        "pid": lease.holder.pid,
        "lease_seconds_left": round(lease.seconds_left, 1),
    }


def _report_dict(report: Report) -> dict[str, Any]:
    return {
        "at": iso_time(report.at),
        **_position("wal_end", report.wal_end),
        **_position("log_end", report.log_end),
        **_position("applied", report.applied),
        "lag_bytes": max(0, report.wal_end - report.applied),
        "lag_seconds": round(report.lag_seconds, 3),
        "batches": dict(report.batches),
    }


def _table_dict(table: TableOverview) -> dict[str, Any]:
    state = table.state
    return {
        "table": str(state.table),
        "schema": state.table.schema,
        "name": state.table.name,
        "oid": table.oid,
        "destination": str(table.destination),
        "mode": None if table.plan is None else table.plan.mode,
        "phase": state.phase.value,
        "since": iso_time(state.since),
        **_position("position", state.position),
        "rows_copied": state.rows_copied,
        "changes_applied": state.changes_applied,
        "lag_bytes": table.lag_bytes,
        "attempts": state.attempts,
        "error": None if state.error is None else _error_dict(state.error),
    }


def _error_dict(error: TableError) -> Mapping[str, Any]:
    at = error.retry.at if error.retry.kind is RetryKind.TIMED else None
    return {
        "code": error.code,
        "reason": redacted(error.reason),
        "hint": redacted(error.hint),
        "phase": error.phase.value,
        "retry": error.retry.kind.value,
        "next_attempt": None if at is None else iso_time(at),
    }


def _position(key: str, position: Lsn) -> dict[str, Any]:
    return {key: str(position), f"{key}_number": int(position)}
