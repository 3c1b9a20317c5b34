"""Rounds: all that waits in the log, applied to the destination table by table."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from walflow.changelog import ChangeLog, LogFile
from walflow.destinations.base import Destination, Events, TableChanges
from walflow.model import ChangeStats, Lsn, Phase, Span, TableSchema
from walflow.observe.metrics import PipelineMetrics
from walflow.pipeline.tables import Tables, TableState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Applier", "Round"]

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Round:
    """What a round came to."""

    upto: Lsn
    commit_time: int
    """Of the newest transaction in it, in microseconds since 1970; 0 if it had none."""
    changes: int
    outgrown: frozenset[int] = frozenset()
    """Tables that are new, or whose form changed: they must be copied before they are followed."""


@dataclass(slots=True)
class _Waiting:
    """What waits for one table."""

    schema: TableSchema
    files: list[LogFile] = field(default_factory=list)
    stats: ChangeStats = field(default_factory=ChangeStats)


@dataclass(frozen=True, slots=True)
class Applier:
    spark: SparkSession
    log: ChangeLog
    destination: Destination
    tables: Tables
    metrics: PipelineMetrics

    def apply(self, after: Lsn) -> Round:
        """Apply all that the log has behind ``after``, and of each table what it lacks.

        Repeats safely: a destination that knows its position skips what it has.
        """
        # In this order: a segment that is sealed in between must not count as applied.
        end = self.log.end
        segments = self.log.segments(after)
        upto = segments[-1].span.upto if segments else end
        waiting: dict[int, _Waiting] = {}
        outgrown: set[int] = set()
        for segment in segments:
            for file in segment.files:
                state = self.tables.get(file.table)
                if state is None or file.table in outgrown:
                    outgrown.add(file.table)
                elif state.followed and state.position < segment.span.upto:
                    self._collect(waiting, outgrown, state, file)
        for oid in outgrown:
            waiting.pop(oid, None)
        if waiting:
            self._write(Span(after, upto), waiting)
        changes = sum(table.stats.rows for table in waiting.values())
        for state in self.tables.all():
            if state.followed and state.schema.oid not in outgrown and state.position < upto:
                self._applied(state, waiting.get(state.schema.oid), upto)
        commit_time = segments[-1].commit_time if segments else 0
        return Round(upto, commit_time, changes, frozenset(outgrown))

    def _collect(
        self,
        waiting: dict[int, _Waiting],
        outgrown: set[int],
        state: TableState,
        file: LogFile,
    ) -> None:
        schema = self.log.schema(file.table, file.version)
        if not schema.same_form(state.schema):
            outgrown.add(file.table)
            return
        if file.stats.incomplete:
            _logger.warning(
                "a row came to match the row filter, and Postgres did not send all of it; "
                "the table is copied again (REPLICA IDENTITY FULL avoids this)",
                table=str(state.name),
            )
            outgrown.add(file.table)
            return
        table = waiting.setdefault(file.table, _Waiting(state.schema))
        table.files.append(file)
        table.stats += file.stats

    def _write(self, span: Span, waiting: dict[int, _Waiting]) -> None:
        began = time.monotonic()
        events = Events(span, tuple(self._changes(table, span.after) for table in waiting.values()))
        self.destination.write_events(events)
        seconds = time.monotonic() - began
        for table in waiting.values():
            self.metrics.batch_send_duration(table.schema.name).observe(seconds)

    def _changes(self, table: _Waiting, after: Lsn) -> TableChanges:
        state = self.tables.get(table.schema.oid)
        assert state is not None
        files = tuple(str(self.log.folder / file.path) for file in table.files)
        # A segment may begin before the snapshot that the table was copied under.
        changes = TableChanges(table.schema, files, table.stats, self.spark)
        return changes if state.position <= after else changes.since(state.position)

    def _applied(self, state: TableState, table: _Waiting | None, upto: Lsn) -> None:
        count = 0 if table is None else table.stats.rows
        self.tables.update(
            state.schema.oid,
            position=upto,
            phase=Phase.READY,
            changes_applied=state.changes_applied + count,
        )
        if count:
            self.metrics.events_processed(state.name).inc(count)
