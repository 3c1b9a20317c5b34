"""Rounds: what is taken at once of a table's changes, and how it gets into the destination."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from walflow.changelog import ChangeLog, LogFile, Segment
from walflow.destinations.base import Destination, FormerChanges, TableChanges
from walflow.errors import LogDamaged, TableMoved, WalflowError
from walflow.evolution import key_numbers
from walflow.failpoints import failpoint
from walflow.model import ChangeStats, Lsn, Phase, Span, TableSchema
from walflow.observe.metrics import PipelineMetrics
from walflow.pipeline.apply.consistent_cuts import Committed, Progress
from walflow.pipeline.apply.schema_changes import Outgrown, SchemaChanger
from walflow.pipeline.state.table_states import Tables, TableState
from walflow.spark.jobs import in_pool
from walflow.stores.base import SchemaStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["QUICK_RETRY_SECONDS", "Applied", "Batches", "SegmentSlice"]

QUICK_RETRY_SECONDS = 0.5

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """A table's part of one segment."""

    span: Span
    commit_time: int
    files: tuple[LogFile, ...]

    @classmethod
    def of(cls, segment: Segment, oid: int) -> SegmentSlice:
        files = tuple(file for file in segment.files if file.table == oid)
        return cls(segment.span, segment.commit_time, files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of stretches."""

    left: tuple[SegmentSlice, ...]
    """They have to wait for the next round."""
    written: Lsn | None
    """Where the destination's table is with it; None: it has nothing to write of the others."""


@dataclass(frozen=True, slots=True)
class _Batch:
    upto: Lsn
    files: tuple[LogFile, ...]
    forms: tuple[TableSchema, ...]
    """Those of the files, the newest last."""
    left: tuple[SegmentSlice, ...]
    """What has to wait for the next round."""


class Batches:
    """All calls may come from several threads, for one table from one at a time."""

    def __init__(
        self,
        spark: SparkSession,
        log: ChangeLog,
        store: SchemaStore,
        destination: Destination,
        tables: Tables,
        schema_changer: SchemaChanger,
        progress: Progress,
        metrics: PipelineMetrics,
        stop: threading.Event,
    ) -> None:
        self._spark = spark
        self._log = log
        self._store = store
        self._destination = destination
        self._tables = tables
        self._schema_changer = schema_changer
        self._progress = progress
        self._metrics = metrics
        self._stop = stop

    def apply(self, state: TableState, slices: Sequence[SegmentSlice], begins: Lsn) -> Applied:
        """Apply the stretches, which follow each other, in one round. Raises Outgrown.

        ``begins``: where the destination's table is; nothing between there and the table's position
        concerns it.
        """
        ends = [segment_slice.span.upto for segment_slice in slices]
        count = self._progress.before_cut(ends, slices[0].commit_time)
        later, slices = slices[count:], slices[:count]
        taken = self._take(state, slices)
        if taken.forms and taken.forms[-1].version > state.schema.version:
            self._schema_changer.check_steps((state.schema, *taken.forms))
            state = self._schema_changer.bring(state, taken.forms[-1])
        stats = sum((file.stats for file in taken.files), ChangeStats())
        span = Span(begins, taken.upto)
        if taken.files:
            self._check(state, taken)
            changes = self._changes(state, taken, stats, span)
            if slices[0].span.after < state.position:
                # A segment may begin before the snapshot that the table was copied under.
                changes = changes.since(state.position)
            self._write(state, changes)
        self._metrics.events_processed(state.name).inc(stats.rows)
        since = max(state.position, slices[0].span.after)
        last = slices[len(slices) - len(taken.left) - 1]
        batch = Committed(since, taken.upto, last.commit_time)
        self._progress.batch_committed(state.schema.oid, batch)
        updated = self._tables.update(
            state.schema.oid,
            position=span.upto,
            changes_applied=state.changes_applied + stats.rows,
            attempts=0,
            error=None,
        )
        if updated is not None and not self._destination.capabilities.keeps_position:
            # Nobody else remembers it: what is not stored is delivered again.
            self._tables.save(updated.schema.oid)
        return Applied((*taken.left, *later), span.upto if taken.files else None)

    # What is taken.

    def _take(self, state: TableState, slices: Sequence[SegmentSlice]) -> _Batch:
        """All that waits, but for what comes after a change of key: rows that are told apart in
        different ways do not go into one round."""
        files: list[LogFile] = []
        forms = {state.schema.version: state.schema}
        key = key_numbers(state.schema)
        for number, segment_slice in enumerate(slices):
            wanted = [
                file
                for file in segment_slice.files
                if not self._is_past(state, segment_slice, file)
            ]
            try:
                for version in {file.version for file in wanted} - forms.keys():
                    forms[version] = self._form(state, version)
            except Outgrown:
                if files:
                    # A table that leaves gets at least what comes before.
                    return self._batch(files, forms, slices, number)
                raise
            keys = {key_numbers(forms[file.version]) for file in wanted}
            if keys - {key}:
                if files:
                    return self._batch(files, forms, slices, number)
                if len(keys) > 1:
                    raise Outgrown("its key changed in the middle of what was written at once")
                if min(file.version for file in wanted) < state.schema.version:
                    raise Outgrown("it was set back to before its key changed")
                key = keys.pop()
            files += wanted
        return self._batch(files, forms, slices, len(slices))

    def _batch(
        self,
        files: Sequence[LogFile],
        forms: Mapping[Lsn, TableSchema],
        slices: Sequence[SegmentSlice],
        count: int,
    ) -> _Batch:
        if any(file.stats.incomplete for file in files):
            raise Outgrown(
                "a row came to match the row filter, and Postgres did not send all of it "
                "(REPLICA IDENTITY FULL avoids this)"
            )
        used = sorted({file.version for file in files})
        return _Batch(
            slices[count - 1].span.upto,
            tuple(files),
            tuple(forms[version] for version in used),
            tuple(slices[count:]),
        )

    def _form(self, state: TableState, version: Lsn) -> TableSchema:
        """The form of the log's files of this version. Raises Outgrown if it is not known which
        columns it has: its key would look like another."""
        form = self._schema_changer.form(state.schema.oid, version)
        if form.numbered:
            return form
        there = self._there(state, version)
        if there is not None and _is_called_like(form, there):
            # The stream tells of a form before the first change after it was altered. So what
            # comes after the table's position and is of an earlier version has the form there.
            return replace(there, version=version)
        unknown = next(column for column in form.columns if not column.attnum)
        raise Outgrown(f"it cannot be told which column {unknown.name} is")

    def _is_past(self, state: TableState, segment_slice: SegmentSlice, file: LogFile) -> bool:
        """Whether it has only rows that the destination has.

        A segment may begin before the table's position. What gave the table its form there shut
        out whoever still wrote a former one.
        """
        if segment_slice.span.after >= state.position:
            return False
        there = self._there(state, file.version)
        if there is None:
            return False
        # One that is the same, whatever the table was called, was first heard of under that
        # version, and goes on.
        form = self._schema_changer.form(file.table, file.version)
        if not form.numbered:
            return not _is_called_like(form, there)
        return not replace(form, name=there.name).same_columns(there)

    def _there(self, state: TableState, version: Lsn) -> TableSchema | None:
        """The form at the table's position, if it is a later one than of this version."""
        there = self._store.get_table_schema(state.schema.oid, Lsn(state.position - 1))
        return there if there is not None and version < there.version else None

    def _check(self, state: TableState, taken: _Batch) -> None:
        """Raise Outgrown if what the log has is not what was received: then only a copy helps."""
        try:
            self._log.check(taken.files)
        except LogDamaged as damaged:
            # A copy under an older snapshot would come to the damaged file again.
            self._log.break_off(state.schema.oid, taken.upto)
            self._metrics.worker_failed("apply", damaged)
            _logger.error(
                "a file of the change log is damaged; nothing of it is applied, and the table is "
                "copied again",
                table=str(state.name),
                error=damaged.message,
                code=damaged.code,
                hint="Check the disk that the log is on.",
            )
            raise Outgrown(f"the log is damaged: {damaged.message}") from damaged

    # In which form.

    def _changes(
        self, state: TableState, taken: _Batch, stats: ChangeStats, span: Span
    ) -> TableChanges:
        target = state.destination_schema
        present: list[LogFile] = []
        former = []
        for form in taken.forms:
            files = [file for file in taken.files if file.version == form.version]
            way = None if form.version == target.version else self._schema_changer.way(form, target)
            if way is not None and way.changes_columns:
                former.append(FormerChanges(self._paths(files), way))
            else:
                present += files
        paths = self._paths(present)
        return TableChanges(target, paths, stats, self._spark, span, former=tuple(former))

    def _paths(self, files: Iterable[LogFile]) -> tuple[str, ...]:
        return tuple(str(self._log.folder / file.path) for file in files)

    # Into the destination.

    def _write(self, state: TableState, changes: TableChanges) -> None:
        began = time.monotonic()
        failpoint("apply.write", state.name)
        with in_pool(self._spark, "ready" if state.phase is Phase.READY else "catchup"):
            self._write_twice(state, changes)
        failpoint("apply.written", state.name)
        self._metrics.batch_send_duration(state.name).observe(time.monotonic() - began)

    def _write_twice(self, state: TableState, changes: TableChanges) -> None:
        """At most: what a moment heals need not set the table aside."""
        try:
            self._destination.apply(changes)
        except Exception as error:
            if isinstance(error, TableMoved) or (
                isinstance(error, WalflowError) and not error.retry
            ):
                raise
            if self._stop.is_set():
                raise
            self._metrics.worker_failed("apply", error)
            _logger.warning(
                "a table's changes were not written; trying again",
                table=str(state.name),
                error=str(error),
            )
            if self._stop.wait(QUICK_RETRY_SECONDS):
                raise
            self._destination.apply(changes)


def _is_called_like(form: TableSchema, other: TableSchema) -> bool:
    """Whether both have columns of the same names and types: all that a message tells of them."""
    return _told(form) == _told(other)


def _told(form: TableSchema) -> list[tuple[str, str, int]]:
    return [(column.name, column.spark_type, column.type.base) for column in form.columns]
