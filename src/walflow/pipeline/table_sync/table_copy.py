"""Reading a table's existing rows into the change log: by executors, under one snapshot, in
ranges of pages that survive a crash."""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import structlog

from walflow.changelog import (
    ChangeLog,
    CopyPlan,
    FinishedCopy,
    FinishedRange,
)
from walflow.checksums import damage_of
from walflow.errors import LogDamaged, Stopped, TableRewritten, WalflowError
from walflow.failpoints import failpoint
from walflow.model import CopyFile, Lsn
from walflow.observe.metrics import PipelineMetrics
from walflow.pipeline.table_sync.copy_connections import Connections
from walflow.pipeline.table_sync.copy_resume import (
    StartOver,
    check_log,
    check_plan,
    touched_texts,
    wait_for_log,
)
from walflow.pipeline.table_sync.copy_task import (
    RESULT_SCHEMA,
    CopySource,
    CopyUpdateTask,
    FileCheckTask,
    RangeCopyTask,
    copied_rows,
    result_of,
    store_keys,
)
from walflow.pipeline.timing import Timing
from walflow.source.catalog.published_tables import PublishedTable
from walflow.source.copy.ranges import page_ranges
from walflow.source.copy.snapshot import OpenSnapshot, SeenRelation
from walflow.spark.jobs import tagged
from walflow.spark.session import cores
from walflow.states import Membership

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CopyReader"]

_WAVE_RANGES = 8
_WAVE_BYTES = 512 << 20
"""Of a connection: what it reads before the others' wishes are looked at again."""
_SMALL_BYTES = 2 << 20
"""Up to here reading it takes less than to have an executor read it."""
_PROGRESS_SECONDS = 0.3
_HERE_BYTES = 64 << 20
"""Up to here files are looked through in this process."""

_logger = structlog.get_logger(__name__)


class CopyReader:
    """Reads tables. All calls may come from several threads, for one table from one at a time."""

    def __init__(
        self,
        uri: str,
        application_name: str,
        spark: SparkSession,
        log: ChangeLog,
        connections: Connections,
        metrics: PipelineMetrics,
        range_bytes: int,
        *,
        timing: Timing = Timing(),
    ) -> None:
        self.uri = uri
        self.application_name = f"{application_name} copy"
        self.spark = spark
        self.log = log
        self.connections = connections
        self.metrics = metrics
        self.range_bytes = range_bytes
        self.lock_seconds = timing.table_lock
        self.tag = f"walflow-copy-{uuid.uuid4().hex}"
        """All Spark jobs of this reader have it, so that ``cancel_jobs`` ends them."""

    def read(
        self,
        table: PublishedTable,
        snapshot: OpenSnapshot,
        *,
        progress: Callable[[int], None],
        stop: threading.Event,
    ) -> FinishedCopy:
        """Read what is missing of the table, which must be described after the snapshot was taken
        (else rows could be missed in partitions that it does not name, and in a table that was
        empty then).

        ``progress`` is called with the number of rows so far. Raises SnapshotLost, ConnectionLost
        and others of the source, and Stopped: what was read is then kept, and another call goes
        on from there, under this snapshot or a newer one. Raises TableRewritten if that takes a
        newer one.
        """
        return _Reading(self, table, snapshot, progress, stop).run()

    def finished(self, oid: int, membership: Membership) -> FinishedCopy | None:
        """The table's copy, if it is complete, and the log has what happened since to a table
        that is published so."""
        whole = self.log.copy(oid).completed()
        return whole if whole is not None and whole.membership.continues(membership) else None

    def check(self, oid: int) -> None:
        """Raise LogDamaged if a file of the complete copy is not as it was written; what was in it
        is then read again by the next call of ``read``."""
        copy = self.log.copy(oid)
        whole = copy.completed()
        files = () if whole is None else whole.files
        if damaged := self._damaged(copy.folder, files):
            copy.discard(file.name for file, _ in damaged)
            raise _damaged_copy([damage for _, damage in damaged])

    def check_files(self, folder: Path, files: Sequence[CopyFile]) -> None:
        """Raise LogDamaged if one of the copy's files is not as it was written."""
        if damaged := self._damaged(folder, files):
            raise _damaged_copy([damage for _, damage in damaged])

    def _damaged(self, folder: Path, files: Sequence[CopyFile]) -> list[tuple[CopyFile, str]]:
        """Those of the files, and what is wrong with them."""
        suspects = list(files)
        if sum(file.bytes for file in files) > _HERE_BYTES:
            # There are more executors, and they may have the files nearer.
            shares = min(len(files), cores(self.spark))
            checker = FileCheckTask(str(folder), tuple(files), shares)
            with tagged(self.spark, self.tag):
                rows = self.spark.range(0, shares, 1, shares).mapInArrow(checker, "number bigint")
                suspects = [files[row["number"]] for row in rows.collect()]
        found = [(f, damage_of(folder / f.name, f.bytes, f.checksum)) for f in suspects]
        return [(file, damage) for file, damage in found if damage is not None]

    def drop(self, oid: int) -> None:
        """Forget what was read of the table. Repeats safely."""
        self.log.copy(oid).drop()


def _damaged_copy(damages: Sequence[str]) -> LogDamaged:
    more = f" (and {len(damages) - 1} more files)" if len(damages) > 1 else ""
    return LogDamaged(
        f"a copy that waits in the change log is damaged: {damages[0]}{more}",
        hint="Nothing of it was loaded, and it is read from the source again by itself. "
        "Check the disk that the log is on.",
        retry=True,
    )


class _Reading:
    """One call of ``CopyReader.read``."""

    def __init__(
        self,
        reader: CopyReader,
        table: PublishedTable,
        snapshot: OpenSnapshot,
        progress: Callable[[int], None],
        stop: threading.Event,
    ) -> None:
        self._reader = reader
        self._table = table
        self._snapshot = snapshot
        self._progress = progress
        self._stop = stop
        self._copy = reader.log.copy(table.schema.oid)
        self._finished: dict[int, FinishedRange] = {}

    def run(self) -> FinishedCopy:
        position = self._snapshot.position
        schema = replace(self._table.schema, version=Lsn(position - 1))
        whole = self._copy.completed()
        if (
            whole is not None
            and (whole.schema, whole.position) == (schema, position)
            and whole.membership.continues(self._table.membership)
        ):
            return whole
        self._copy.reopen()
        seen = self._look()
        if all(relation.pages == 0 for relation in self._table.relations):
            # A file keeps the rows that a snapshot sees: there was none in it.
            self._copy.drop()
            files = []
        else:
            files = self._read_all(self._plan(seen))
        whole = FinishedCopy(schema, position, tuple(files), self._table.membership)
        self._copy.complete(whole)
        return whole

    def _look(self) -> list[SeenRelation]:
        """The table's relations; what was read so far is right if none was rewritten by now."""
        oids = [relation.oid for relation in self._table.relations]
        seen = self._snapshot.keeper.relations(oids)
        if any(relation.rewritten for relation in seen):
            self._copy.drop()
            raise TableRewritten(
                f"{self._table.name} was rewritten or truncated while it was copied"
            )
        return seen

    def _plan(self, seen: Sequence[SeenRelation]) -> CopyPlan:
        """The plan of a copy that goes on, or a new one."""
        former = self._copy.plan()
        finished = {} if former is None else self._copy.finished_ranges(former)
        if former is not None and finished:
            try:
                return self._go_on(former, finished, seen)
            except StartOver as reason:
                _logger.info("a copy starts over", table=str(self._table.name), reason=str(reason))
        plan = CopyPlan(
            schema=self._table.schema,
            row_filter=self._table.row_filter,
            filenodes=_filenodes(seen),
            ranges=tuple(page_ranges(self._table, self._reader.range_bytes)),
            membership=self._table.membership,
        )
        if len(plan.ranges) > 1:
            self._copy.begin(plan)
        else:
            # All or nothing: there is no progress to remember.
            self._copy.drop()
            self._copy.make_folder()
        return plan

    def _go_on(
        self, plan: CopyPlan, finished: dict[int, FinishedRange], seen: Sequence[SeenRelation]
    ) -> CopyPlan:
        position = self._snapshot.position
        check_plan(plan, finished.values(), self._table, seen, position)
        oldest = min(done.position for done in finished.values())
        if oldest < position:
            check_log(self._reader.log, self._table, oldest, position)
        planned = plan.filenodes.keys()
        new = [r for r in self._table.relations if r.oid not in planned]
        if new or plan.membership != self._table.membership:
            added = page_ranges(
                replace(self._table, relations=tuple(new)), self._reader.range_bytes
            )
            plan = replace(
                plan,
                # Partitions that came since are kept, for the day that they go.
                membership=self._table.membership,
                filenodes=_filenodes(seen),
                ranges=(*plan.ranges, *added),
            )
            self._copy.extend(plan)
        self._copy.remove_others(done.file.name for done in finished.values() if done.file)
        self._finished = finished
        _logger.info(
            "a copy resumes",
            table=str(self._table.name),
            ranges=len(plan.ranges),
            finished=len(finished),
            since=str(oldest),
        )
        return plan

    def _read_all(self, plan: CopyPlan) -> list[CopyFile]:
        """The files that together are the table as of the snapshot."""
        while True:
            self._read_missing(plan)
            self._look()
            older = {
                number: done
                for number, done in self._finished.items()
                if done.position < self._snapshot.position
            }
            if not older:
                return _files(self._finished.values())
            try:
                return self._updated(plan, older)
            except StartOver as reason:
                _logger.info(
                    "a part of a copy is read again",
                    table=str(self._table.name),
                    ranges=len(older),
                    reason=str(reason),
                )
                for number in older:
                    del self._finished[number]

    def _read_missing(self, plan: CopyPlan) -> None:
        missing = deque(n for n in range(len(plan.ranges)) if n not in self._finished)
        self._progress(self._rows())
        while missing:
            # Spark is not asked for a table of one range: there may be hundreds of them.
            several = len(missing) > 1
            most = min(len(missing), cores(self._reader.spark)) if several else 1
            with self._reader.connections.share(most, self._stop) as connections:
                self._check_stop()
                wave = _take_wave(missing, plan, connections)
                self._read_wave(plan, wave, connections)

    def _read_wave(self, plan: CopyPlan, wave: Sequence[int], connections: int) -> None:
        numbered = [(number, plan.ranges[number]) for number in wave]
        shares = min(connections, len(wave))
        task = RangeCopyTask(
            self._source(plan),
            tuple(tuple(numbered[share::shares]) for share in range(shares)),
            noted=len(plan.ranges) > 1,
        )
        small = len(wave) == 1 and plan.ranges[wave[0]].bytes <= _SMALL_BYTES
        with self._watched(wave):
            results = _run_here(task) if small else self._run(task, shares)
        before = len(self._finished)
        error: Exception | None = None
        for result in results:
            try:
                number, file = result_of(result)
            except WalflowError as failed:
                error = error or failed
                continue
            self._finished[number] = FinishedRange(plan.id, number, self._snapshot.position, file)
            self._count(1, 0 if file is None else file.rows)
        self._progress(self._rows())
        for _ in range(len(self._finished) - before):
            failpoint("copy.range", self._table.name)
        if error is not None:
            # If the snapshot is gone, that is the cause.
            self._snapshot.keeper.check()
            raise error

    def _updated(self, plan: CopyPlan, older: Mapping[int, FinishedRange]) -> list[CopyFile]:
        """What was read under older snapshots, brought to this one; see copy_resume."""
        reader, position = self._reader, self._snapshot.position
        try:
            files = [done.file for done in older.values() if done.file]
            reader.check_files(self._copy.folder, files)
        except LogDamaged as damaged:
            raise StartOver(damaged.message) from damaged
        wait_for_log(reader.log, self._snapshot, self._stop)
        oldest = min(done.position for done in older.values())
        with tagged(reader.spark, reader.tag):
            texts = touched_texts(reader.spark, reader.log, self._table, oldest, position)
        if not len(texts[0]):
            return _files(self._finished.values())
        keys = self._copy.folder / f"touched-{plan.id}-{position:x}.arrow"
        store_keys(keys, texts)
        with reader.connections.share(cores(reader.spark), self._stop) as shares:
            self._check_stop()
            task = CopyUpdateTask(
                self._source(plan),
                str(keys),
                tuple(plan.ranges[number] for number in older),
                tuple((number, done.file.name) for number, done in older.items() if done.file),
                shares,
            )
            results = [result_of(result) for result in self._run(task, shares)]
        failpoint("copy.updated", self._table.name)
        # These rows too were read before it was looked.
        self._look()
        self._count(0, sum(file.rows for number, file in results if file and number < 0))
        current = (done for number, done in self._finished.items() if number not in older)
        _logger.info(
            "a copy was brought to a newer snapshot",
            table=str(self._table.name),
            keys=len(texts[0]),
            since=str(oldest),
            position=str(position),
        )
        return [*_files(current), *(file for _, file in sorted(results, key=_number) if file)]

    def _source(self, plan: CopyPlan) -> CopySource:
        return CopySource(
            uri=self._reader.uri,
            snapshot=self._snapshot.keeper.name,
            application_name=self._reader.application_name,
            table=self._table,
            folder=str(self._copy.folder),
            plan=plan.id,
            position=self._snapshot.position,
            lock_seconds=self._reader.lock_seconds,
        )

    def _run(
        self, task: RangeCopyTask | CopyUpdateTask, shares: int
    ) -> Sequence[Mapping[str, Any]]:
        """Have executors do it; gives the rows of results."""
        spark = self._reader.spark
        try:
            with tagged(spark, self._reader.tag):
                rows = spark.range(0, shares, 1, shares).mapInArrow(task, RESULT_SCHEMA).collect()
        except Exception as error:
            if self._stop.is_set():
                raise Stopped("the copy was told to stop") from error
            raise
        return [row.asDict() for row in rows]

    @contextmanager
    def _watched(self, wave: Sequence[int]) -> Iterator[None]:
        """While a wave is read, reports how many rows there are."""
        over = threading.Event()
        before, folder = self._rows(), self._copy.folder

        def watch() -> None:
            while not over.wait(_PROGRESS_SECONDS):
                self._progress(before + copied_rows(folder, wave))

        thread = threading.Thread(target=watch, name="walflow-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            for number in wave:
                (folder / f"{number:06}.rows").unlink(missing_ok=True)

    def _rows(self) -> int:
        return sum(done.file.rows for done in self._finished.values() if done.file)

    def _count(self, ranges: int, rows: int) -> None:
        self._reader.metrics.table_copy_ranges(self._table.name).inc(ranges)
        self._reader.metrics.table_copy_rows(self._table.name).inc(rows)

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise Stopped("the copy was told to stop")


def _take_wave(missing: deque[int], plan: CopyPlan, connections: int) -> list[int]:
    """The next ranges that so many connections read; at least one for each."""
    wave: list[int] = []
    size = 0
    while missing and len(wave) < _WAVE_RANGES * connections:
        size += plan.ranges[missing[0]].bytes
        if len(wave) >= connections and size > _WAVE_BYTES * connections:
            break
        wave.append(missing.popleft())
    return wave


def _run_here(task: RangeCopyTask) -> Sequence[Mapping[str, Any]]:
    share = pa.RecordBatch.from_pydict({"id": [0]})
    return [row for batch in task([share]) for row in batch.to_pylist()]


def _filenodes(seen: Iterable[SeenRelation]) -> dict[int, int]:
    return {r.oid: r.filenode for r in seen if r.filenode is not None}


def _files(finished: Iterable[FinishedRange]) -> list[CopyFile]:
    ordered = sorted(finished, key=lambda done: done.number)
    return [done.file for done in ordered if done.file is not None]


def _number(result: tuple[int, CopyFile | None]) -> int:
    return result[0]
