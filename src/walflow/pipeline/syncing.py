"""The copy of tables' existing rows: read by executors under one snapshot, into the change log,
then handed to the destination together with the snapshot's position."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from walflow.changelog import ChangeLog
from walflow.config import CopySettings
from walflow.destinations.base import AdoptsFiles, Destination, Positioned
from walflow.errors import SnapshotLost, WalflowError
from walflow.model import Lsn, Phase, TableSchema
from walflow.observe.metrics import PipelineMetrics
from walflow.pipeline.tables import Tables
from walflow.source.catalog import PublishedTable
from walflow.source.copy import RESULT_SCHEMA, CopiedFile, RangeReader, copied_rows
from walflow.source.ranges import CopyRange, copy_ranges
from walflow.source.snapshot import SnapshotKeeper
from walflow.spark.copies import read_copy
from walflow.spark.session import cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Copier"]

_TABLES_AT_ONCE = 2
_PROGRESS_SECONDS = 0.3

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Copier:
    """Copies tables. ``copy`` may be called again for tables that join later."""

    uri: str
    application_name: str
    spark: SparkSession
    log: ChangeLog
    destination: Destination
    tables: Tables
    metrics: PipelineMetrics
    settings: CopySettings
    max_connections: int

    def copy(self, tables: Sequence[PublishedTable], keeper: SnapshotKeeper, at: Lsn) -> None:
        """Copy these tables as they are at the position; each is followed from there on.

        Raises the first error, after the tables under way have ended. A table that was not
        finished stays in ``DataSync`` and has no position in the destination.
        """
        ranges = copy_ranges(tables, self.settings.range_bytes)
        workers = max(1, min(_TABLES_AT_ONCE, len(tables)))
        # No more shares than run at once: each has a session of its own to open.
        at_once = min(self.max_connections, cores(self.spark))
        shares = max(1, at_once // workers)
        by_table: dict[int, list[CopyRange]] = {}
        for piece in ranges:
            by_table.setdefault(piece.table.oid, []).append(piece)
        largest_first = sorted(tables, key=lambda table: -table.bytes)
        with ThreadPoolExecutor(workers, thread_name_prefix="walflow-copy") as pool:
            jobs = [
                pool.submit(
                    self._copy_table, table, by_table.get(table.schema.oid, []), keeper, at, shares
                )
                for table in largest_first
            ]
            try:
                for job in jobs:
                    job.result()
            except BaseException:
                for job in jobs:
                    job.cancel()
                raise

    def _copy_table(
        self,
        table: PublishedTable,
        ranges: Sequence[CopyRange],
        keeper: SnapshotKeeper,
        at: Lsn,
        shares: int,
    ) -> None:
        # Before the position, as is every form of which the destination has rows.
        schema = replace(table.schema, version=Lsn(at - 1))
        began = time.monotonic()
        self.tables.update(
            schema.oid, schema=schema, phase=Phase.DATA_SYNC, rows_expected=table.rows
        )
        self.log.store_schema(schema)
        self.log.drop_copy(schema.oid)
        folder = self.log.copy_folder(schema.oid, at)
        copied = self._read(schema, ranges, keeper, folder, shares)
        if keeper.rewritten([relation.oid for relation in table.relations]):
            raise SnapshotLost(
                f"{schema.name} was rewritten or truncated while it was copied",
                hint="It is copied again under a newer snapshot.",
            )
        rows = sum(file.rows for file in copied)
        self.tables.update(schema.oid, phase=Phase.FINISHED_COPY, rows_copied=rows)
        self._hand_over(schema, copied, at)
        self.log.drop_copy(schema.oid)
        seconds = time.monotonic() - began
        self.tables.update(schema.oid, phase=Phase.CATCHUP, position=at, copy_seconds=seconds)
        self.metrics.table_copy_duration(schema.name).observe(seconds)
        _logger.info(
            "copied", table=str(schema.name), rows=rows, seconds=round(seconds, 1), position=str(at)
        )

    def _read(
        self,
        schema: TableSchema,
        ranges: Sequence[CopyRange],
        keeper: SnapshotKeeper,
        folder: Path,
        shares: int,
    ) -> list[CopiedFile]:
        if not ranges:
            return []
        count = min(shares, len(ranges))
        numbered = [(number, piece.query) for number, piece in enumerate(ranges)]
        reader = RangeReader(
            uri=self.uri,
            snapshot=keeper.name,
            application_name=f"{self.application_name} copy",
            schema=schema,
            folder=str(folder),
            shares=tuple(tuple(numbered[share::count]) for share in range(count)),
        )
        with _Watch(self, schema, folder):
            results = (
                self.spark.range(0, count, 1, count).mapInArrow(reader, RESULT_SCHEMA).collect()
            )
        keeper.check()
        for result in results:
            if result["error"] is not None:
                error = pickle.loads(result["error"])  # noqa: S301 - our own executors made it
                assert isinstance(error, WalflowError)
                raise error
        return [
            CopiedFile(result["path"], result["rows"], result["bytes"], result["exact"])
            for result in sorted(results, key=lambda result: result["path"])
        ]

    def _hand_over(self, schema: TableSchema, copied: Sequence[CopiedFile], at: Lsn) -> None:
        paths = [Path(file.path) for file in copied]
        exact = any(file.exact for file in copied)
        if isinstance(self.destination, AdoptsFiles):
            self.destination.adopt_files(schema, paths, at, exact)
            return
        self.destination.truncate_table(schema)
        rows = read_copy(self.spark, [str(path) for path in paths], schema, exact)
        self.destination.write_table_rows(schema, rows)
        if isinstance(self.destination, Positioned):
            self.destination.mark_applied(schema, at)


class _Watch:
    """While a copy runs, counts its rows from what the executors leave beside their files."""

    def __init__(self, copier: Copier, schema: TableSchema, folder: Path) -> None:
        self._copier = copier
        self._schema = schema
        self._folder = folder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="walflow-progress", daemon=True)
        self._counted = 0

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_PROGRESS_SECONDS):
            self._count()
        self._count()

    def _count(self) -> None:
        rows = copied_rows(self._folder)
        self._copier.tables.update(self._schema.oid, rows_copied=rows)
        self._copier.metrics.table_copy_rows(self._schema.name).inc(max(0, rows - self._counted))
        self._counted = max(rows, self._counted)
