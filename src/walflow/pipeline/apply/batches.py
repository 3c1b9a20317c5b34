"""Batches: how much of a table's changes is applied at once, and how the destination gets it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog
import tenacity

from walflow.changelog import ChangeLog, LogFile, Segment
from walflow.destinations import OpenDestination
from walflow.destinations.base import Destination, FormerChanges, TableChanges
from walflow.errors import LogDamaged, TableMoved
from walflow.evolution import NotFollowed, key_numbers
from walflow.failpoints import failpoint
from walflow.model import ChangeStats, Lsn, Phase, Span, TableSchema
from walflow.pipeline.apply.consistent_cuts import Committed, ConsistentCuts
from walflow.pipeline.apply.schema_changes import SchemaChanger
from walflow.pipeline.retrying import call_again
from walflow.pipeline.run import PipelineRun
from walflow.pipeline.state.retries import is_worth_retrying
from walflow.pipeline.state.table_states import Tables, TableState
from walflow.spark.jobs import in_pool

__all__ = ["QUICK_RETRY", "Applied", "Batches", "SegmentSlice"]

QUICK_RETRY = tenacity.wait_fixed(0.5)

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """The part of one segment that belongs to one table."""

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
    """The result of applying segment slices."""

    left: tuple[SegmentSlice, ...]
    """These slices have to wait for the next batch."""
    written: Lsn | None
    """The position of the destination's table afterwards. None: the other slices had nothing to
    write."""


@dataclass(frozen=True, slots=True)
class _Batch:
    upto: Lsn
    files: tuple[LogFile, ...]
    schemas: tuple[TableSchema, ...]
    """The schemas of the files, the newest last."""
    left: tuple[SegmentSlice, ...]
    """These slices have to wait for the next batch."""


@dataclass(frozen=True, slots=True)
class Batches:
    """Builds batches and writes them.

    All calls may come from several threads, but only one at a time for the same table.
    """

    run: PipelineRun
    target: OpenDestination
    log: ChangeLog
    tables: Tables
    schema_changer: SchemaChanger
    cuts: ConsistentCuts

    @property
    def destination(self) -> Destination:
        return self.target.destination

    def apply(self, state: TableState, slices: Sequence[SegmentSlice], begins: Lsn) -> Applied:
        """Apply consecutive slices in one batch. Raises NotFollowed. ``begins``: the position of
        the destination's table. Changes between there and the table's position do not concern it.
        """
        ends = [segment_slice.span.upto for segment_slice in slices]
        count = self.cuts.before_cut(ends, slices[0].commit_time)
        later, slices = slices[count:], slices[:count]
        taken = self._take(state, slices)
        if taken.schemas and taken.schemas[-1].version > state.schema.version:
            self.schema_changer.check_steps((state.schema, *taken.schemas))
            state = self.schema_changer.bring(state, taken.schemas[-1])
        stats = sum((file.stats for file in taken.files), ChangeStats())
        span = Span(begins, taken.upto)
        if taken.files:
            self._check(state, taken)
            changes = self._changes(state, taken, stats, span)
            if slices[0].span.after < state.position:
                # A segment may begin before the snapshot that the table was copied under.
                changes = changes.since(state.position)
            self._write(state, changes)
        self.run.metrics.events_processed(state.name).inc(stats.rows)
        since = max(state.position, slices[0].span.after)
        last = slices[len(slices) - len(taken.left) - 1]
        batch = Committed(since, taken.upto, last.commit_time)
        self.cuts.batch_committed(state.schema.oid, batch)
        updated = self.tables.update(
            state.schema.oid,
            position=span.upto,
            changes_applied=state.changes_applied + stats.rows,
            attempts=0,
            error=None,
        )
        if updated is not None and not self.destination.capabilities.keeps_position:
            # The destination does not remember it: what is not stored is delivered again.
            self.tables.save(updated.schema.oid)
        return Applied((*taken.left, *later), span.upto if taken.files else None)

    # What is taken.

    def _take(self, state: TableState, slices: Sequence[SegmentSlice]) -> _Batch:
        """All slices up to a change of the key. Rows that are identified by different keys do not
        go into one batch."""
        files: list[LogFile] = []
        schemas = {state.schema.version: state.schema}
        key = key_numbers(state.schema)
        for number, segment_slice in enumerate(slices):
            unapplied = [
                file
                for file in segment_slice.files
                if not self._is_past(state, segment_slice, file)
            ]
            try:
                for version in {file.version for file in unapplied} - schemas.keys():
                    schemas[version] = self._schema_of(state, version)
            except NotFollowed:
                if files:
                    # A table that leaves gets at least what comes before.
                    return self._batch(files, schemas, slices, number)
                raise
            keys = {key_numbers(schemas[file.version]) for file in unapplied}
            if keys - {key}:
                if files:
                    return self._batch(files, schemas, slices, number)
                if len(keys) > 1:
                    raise NotFollowed("its key changed in the middle of what was written at once")
                if min(file.version for file in unapplied) < state.schema.version:
                    raise NotFollowed("it was restored to before its key changed")
                key = keys.pop()
            files += unapplied
        return self._batch(files, schemas, slices, len(slices))

    def _batch(
        self,
        files: Sequence[LogFile],
        schemas: Mapping[Lsn, TableSchema],
        slices: Sequence[SegmentSlice],
        count: int,
    ) -> _Batch:
        if any(file.stats.incomplete for file in files):
            raise NotFollowed(
                "a row came to match the row filter, and Postgres did not send all of it "
                "(REPLICA IDENTITY FULL avoids this)"
            )
        used = sorted({file.version for file in files})
        return _Batch(
            slices[count - 1].span.upto,
            tuple(files),
            tuple(schemas[version] for version in used),
            tuple(slices[count:]),
        )

    def _schema_of(self, state: TableState, version: Lsn) -> TableSchema:
        """The schema of the log's files of this version. Raises NotFollowed if it is uncertain
        which columns it has: its key would look like another one."""
        schema = self.schema_changer.schema_of(state.schema.oid, version)
        if schema.numbered:
            return schema
        there = self._there(state, version)
        if there is not None and _is_called_like(schema, there):
            # The stream tells of a schema before the first change after it was altered. So what
            # comes after the table's position and is of an earlier version has the schema there.
            return replace(there, version=version)
        unknown = next(column for column in schema.columns if not column.attnum)
        raise NotFollowed(f"it is not known which column {unknown.name} is")

    def _is_past(self, state: TableState, segment_slice: SegmentSlice, file: LogFile) -> bool:
        """Whether the slice has only rows that the destination has. A segment may begin before the
        table's position. The ALTER that gave the table its schema at that position held a lock, so
        no rows of an older schema were written after it."""
        if segment_slice.span.after >= state.position:
            return False
        there = self._there(state, file.version)
        if there is None:
            return False
        # One that is the same, whatever the table was called, was first heard of under that
        # version, and goes on.
        schema = self.schema_changer.schema_of(file.table, file.version)
        if not schema.numbered:
            return not _is_called_like(schema, there)
        return not replace(schema, name=there.name).same_columns(there)

    def _there(self, state: TableState, version: Lsn) -> TableSchema | None:
        """The schema at the table's position, if it is later than this version."""
        there = self.tables.schema_at(state.schema.oid, Lsn(state.position - 1))
        return there if there is not None and version < there.version else None

    def _check(self, state: TableState, taken: _Batch) -> None:
        """Raise NotFollowed if the log's files are not what was received: then only a copy
        helps."""
        try:
            self.log.check(taken.files)
        except LogDamaged as damaged:
            # A copy under an older snapshot would come to the damaged file again.
            self.log.break_off(state.schema.oid, taken.upto)
            self.run.metrics.worker_failed("apply", damaged)
            _logger.error(
                "a file of the change log is damaged; nothing of it is applied, and the table is "
                "copied again",
                table=str(state.name),
                error=damaged.message,
                code=damaged.code,
                hint="Check the disk that the log is on.",
            )
            raise NotFollowed(f"the log is damaged: {damaged.message}") from damaged

    # In which schema they are.

    def _changes(
        self, state: TableState, taken: _Batch, stats: ChangeStats, span: Span
    ) -> TableChanges:
        target = state.destination_schema
        present: list[LogFile] = []
        former = []
        for schema in taken.schemas:
            files = [file for file in taken.files if file.version == schema.version]
            way = (
                None
                if schema.version == target.version
                else self.schema_changer.way(schema, target)
            )
            if way is not None and way.changes_columns:
                former.append(FormerChanges(self._paths(files), way))
            else:
                present += files
        paths = self._paths(present)
        return TableChanges(target, paths, stats, self.target.spark, span, former=tuple(former))

    def _paths(self, files: Iterable[LogFile]) -> tuple[str, ...]:
        return tuple(str(self.log.folder / file.path) for file in files)

    # Into the destination.

    def _write(self, state: TableState, changes: TableChanges) -> None:
        began = time.monotonic()
        failpoint("apply.write", state.name)
        with in_pool(self.target.spark, "ready" if state.phase is Phase.READY else "catchup"):
            self._write_twice(state, changes)
        failpoint("apply.written", state.name)
        self.run.metrics.batch_send_duration(state.name).observe(time.monotonic() - began)

    def _write_twice(self, state: TableState, changes: TableChanges) -> None:
        """How often a call is tried at most: a short failure need not set the table aside."""

        def tell(error: BaseException, attempt: int, seconds: float) -> None:
            self.run.metrics.worker_failed("apply", error)
            _logger.warning(
                "a table's changes were not written; trying again",
                table=str(state.name),
                error=str(error),
            )

        call_again(
            lambda: self._apply(changes),
            stop=self.run.end.asked,
            can_retry=_may_pass,
            wait=QUICK_RETRY,
            tell=tell,
            attempts=2,
        )

    def _apply(self, changes: TableChanges) -> None:
        written = self.destination.apply(changes)
        if written is not None:
            self.run.metrics.batch_written(written.engine, written.fallback or "")


def _may_pass(error: BaseException) -> bool:
    """Whether the same call may succeed a moment later."""
    return is_worth_retrying(error) and not isinstance(error, (TableMoved, NotFollowed))


def _is_called_like(schema: TableSchema, other: TableSchema) -> bool:
    """Whether both schemas have columns of the same names and types, which is all that the stream's
    messages say of them."""
    return _names_and_types(schema) == _names_and_types(other)


def _names_and_types(schema: TableSchema) -> list[tuple[str, str, int]]:
    return [(column.name, column.spark_type, column.type.base) for column in schema.columns]
