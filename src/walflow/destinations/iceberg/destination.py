"""The Iceberg destination."""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from walflow.destinations.base import Events, TableChanges, TablesFailed
from walflow.destinations.iceberg.adopting import append_files, table_location
from walflow.destinations.iceberg.merge import (
    append_rows,
    kept,
    merge_copies,
    merge_net,
    replace_rows,
    with_base_rows,
)
from walflow.destinations.iceberg.tables import (
    CATALOG,
    EXACT,
    Owner,
    Progress,
    catalog_conf,
    create_table,
    drop_table,
    literal,
    read_progress,
    stamped,
    summary_of,
    table_identifier,
    table_path,
)
from walflow.destinations.iceberg.warm import warm_up_writes
from walflow.errors import DestinationError, WalflowError
from walflow.model import Lsn, Span, TableName, TableSchema
from walflow.spark.copies import read_copy
from walflow.spark.net import EXACT_TYPE, net_changes, net_copies

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["IcebergDestination"]


class IcebergDestination:
    """Keeps Iceberg tables ``lake.<schema>.<table>`` under a warehouse folder.

    Rows and position are committed together, once a table a round. Each table has a child session
    of its own, because what stamps a commit is a setting of the session.
    """

    name = "iceberg"

    def __init__(
        self,
        spark: SparkSession,
        warehouse: str,
        owner: Owner,
        options: Mapping[str, str] | None = None,
        *,
        workers: int = 4,
    ) -> None:
        self._spark = spark
        self._conf = catalog_conf(warehouse, options or {})
        self._owner = owner
        self._lock = threading.Lock()
        self._sessions: dict[TableName, SparkSession] = {}
        self._progress: dict[TableName, Progress] = {}
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="iceberg")

    def startup(self) -> None:
        """Warm up: takes some seconds the first time, and is meant to run beside the copy."""
        warm_up_writes(self._spark)

    def shutdown(self) -> None:
        self._pool.shutdown()

    def truncate_table(self, table: TableSchema) -> None:
        """Drop the table, if it is ours, and make it anew without a position."""
        self._recreate(table, exact=None)

    def write_table_rows(self, table: TableSchema, rows: DataFrame) -> None:
        self._forget(table.name)
        with self._session(table.name) as spark:
            progress = read_progress(spark, table.name, self._owner)
            exact = "_exact" in rows.columns
            if progress is None:
                create_table(spark, table, self._owner, EXACT if exact else None)
            elif exact and not progress.has_exact:
                _add_exact(spark, table)
            has_exact = exact or (progress is not None and progress.has_exact)
            append_rows(_in_session(rows, spark), table, has_exact)

    def adopt_files(
        self,
        table: TableSchema,
        files: Sequence[Path],
        position: Lsn,
        exact: bool,
        settled: Lsn | None = None,
    ) -> None:
        """See AdoptsFiles. The files stay until the table has them and its position."""
        self._recreate(table, exact=EXACT if exact else None)
        with self._session(table.name) as spark:
            folder = self._link(spark, table, files) if files else None
            done = folder is not None and append_files(
                spark, table.name, folder, summary_of(self._owner, position, settled)
            )
            if not done:
                self._copy_rows(spark, table, files, folder, exact)
                self.mark_applied(table, position, settled)
        for file in files:
            file.unlink()

    def _copy_rows(
        self,
        spark: SparkSession,
        table: TableSchema,
        files: Sequence[Path],
        folder: Path | None,
        exact: bool,
    ) -> None:
        """Put the files' rows into the empty table by SQL."""
        if folder is None:
            if files:
                rows = read_copy(spark, [str(file) for file in files], table, exact)
                append_rows(rows, table, exact)
            return
        if exact:
            # The procedure finds columns by the files' names, and a rename keeps those.
            spark.sql(f"ALTER TABLE {table_identifier(table.name)} RENAME COLUMN {EXACT} TO _exact")
        _add_files(spark, table, folder)
        if exact:
            spark.sql(f"ALTER TABLE {table_identifier(table.name)} RENAME COLUMN _exact TO {EXACT}")

    def applied(self, table: TableSchema) -> Lsn | None:
        with self._session(table.name) as spark:
            progress = self._read_progress(spark, table.name)
        return None if progress is None else progress.applied

    def mark_applied(self, table: TableSchema, position: Lsn, settled: Lsn | None = None) -> None:
        identifier = table_identifier(table.name)
        self._forget(table.name)
        with (
            self._session(table.name) as spark,
            stamped(spark, self._owner, position, settled),
        ):
            spark.sql(f"INSERT INTO {identifier} SELECT * FROM {identifier} WHERE false")

    def write_events(self, events: Events) -> None:
        """Apply each table's changes in a thread; a table that fails does not stop the others."""
        running = {
            changes.schema.name: self._pool.submit(self._apply, changes, events.span)
            for changes in events.tables
        }
        failures: dict[TableName, Exception] = {}
        for name, result in running.items():
            if (error := result.exception()) is None:
                continue
            if not isinstance(error, Exception):
                raise error
            failures[name] = error
        if failures:
            raise TablesFailed(failures)

    def _apply(self, changes: TableChanges, span: Span) -> None:
        table = changes.schema
        with self._session(table.name) as spark:
            progress = self._read_progress(spark, table.name)
            if progress is None or progress.applied is None:
                raise DestinationError(
                    f"{table_identifier(table.name)} has no complete copy to apply changes to",
                    hint="The table was removed or its copy broke off: copy it again.",
                )
            if progress.applied >= span.upto:
                return
            todo = changes.using(spark)
            if progress.applied > span.after:
                todo = todo.since(progress.applied)
            settled = progress.settled if progress.settled > span.upto else None
            # Nothing that can be repeated with other effect: until the commit is known to have
            # happened, the table is asked anew where it is.
            self._forget(table.name)
            with stamped(spark, self._owner, span.upto, settled):
                has_exact = _write(todo, progress, appends=span.after >= progress.settled)
            with self._lock:
                self._progress[table.name] = Progress(
                    span.upto, max(progress.settled, span.upto), has_exact
                )

    def _recreate(self, table: TableSchema, exact: str | None) -> None:
        with self._session(table.name) as spark:
            self._forget(table.name)
            # Whose it is decides whether it may be dropped.
            read_progress(spark, table.name, self._owner)
            drop_table(spark, table.name)
            create_table(spark, table, self._owner, exact)

    def _link(self, spark: SparkSession, table: TableSchema, files: Sequence[Path]) -> Path | None:
        """Put the files into the table's folder too, and say where; None if that cannot be."""
        data = _local_folder(spark, table)
        if data is None:
            return None
        # A folder of its own: whatever else lies there is not the copy's.
        folder = data / f"copy-{uuid.uuid4()}"
        folder.mkdir(parents=True)
        try:
            for file in files:
                os.link(file, folder / file.name)
        except OSError:
            # Another file system, or one without links.
            shutil.rmtree(folder)
            return None
        return folder

    def _read_progress(self, spark: SparkSession, name: TableName) -> Progress | None:
        with self._lock:
            known = self._progress.get(name)
        if known is None and (known := read_progress(spark, name, self._owner)) is not None:
            with self._lock:
                self._progress[name] = known
        return known

    def _forget(self, name: TableName) -> None:
        with self._lock:
            self._progress.pop(name, None)

    @contextmanager
    def _session(self, name: TableName) -> Iterator[SparkSession]:
        """The table's own session; what Spark complains of inside becomes a DestinationError."""
        with self._lock:
            spark = self._sessions.get(name)
            if spark is None:
                spark = self._sessions[name] = _child(self._spark, self._conf)
        try:
            yield spark
        except WalflowError:
            self._forget(name)
            raise
        except Exception as error:
            self._forget(name)
            raise DestinationError(
                f"{table_identifier(name)}: {_first_line(error)}",
                hint="See the cause with --debug; the change log keeps what is not applied.",
            ) from error


def _write(changes: TableChanges, progress: Progress, appends: bool) -> bool:
    """Commit the changes in the cheapest way that is right; whether the table has exact texts."""
    table, stats = changes.schema, changes.stats
    spark = changes.spark
    inserts_only = stats.inserts == stats.rows and not changes.truncated and not stats.unchanged
    if inserts_only and (appends or not table.key):
        # Each row is new, and the position proves that no row of it is there yet.
        rows = changes.changes
        has_exact = progress.has_exact or stats.exact
        if has_exact and not progress.has_exact:
            _add_exact(spark, table)
        append_rows(rows, table, has_exact)
        return has_exact
    if not table.key:
        return _write_keyless(changes, progress)
    with kept(net_changes(changes.changes, table, stats)) as net:
        has_exact = _with_exact(spark, table, progress, stats.exact, net, "_exact")
        if changes.truncated:
            replace_rows(net.where("_change_type = 'upsert'"), table, has_exact)
        elif stats.unchanged and stats.key_changes:
            complete = with_base_rows(net, table, has_exact)
            merge_net(complete, table, has_exact, partial=True)
        else:
            merge_net(net, table, has_exact, partial=stats.unchanged)
    return has_exact


def _write_keyless(changes: TableChanges, progress: Progress) -> bool:
    table, stats = changes.schema, changes.stats
    if changes.truncated:
        with kept(changes.net()) as rows:
            has_exact = _with_exact(changes.spark, table, progress, stats.exact, rows, "_exact")
            replace_rows(rows.where("_change_type = 'insert'"), table, has_exact)
        return has_exact
    with kept(net_copies(changes.changes, table, stats)) as copies:
        has_exact = _with_exact(changes.spark, table, progress, stats.exact, copies, "exact")
        merge_copies(copies, table, has_exact)
    return has_exact


def _with_exact(
    spark: SparkSession,
    table: TableSchema,
    progress: Progress,
    possible: bool,
    rows: DataFrame,
    column: str,
) -> bool:
    """Whether the table has the column of exact texts, after adding it if a row needs it."""
    if progress.has_exact or not possible:
        return progress.has_exact
    if rows.where(f"{column} IS NOT NULL").isEmpty():
        return False
    _add_exact(spark, table)
    return True


def _add_exact(spark: SparkSession, table: TableSchema) -> None:
    spark.sql(f"ALTER TABLE {table_identifier(table.name)} ADD COLUMN {EXACT} {EXACT_TYPE}")


def _add_files(spark: SparkSession, table: TableSchema, folder: Path) -> None:
    spark.sql(
        f"CALL {CATALOG}.system.add_files(table => {literal(table_path(table.name))},"
        f" source_table => {literal(f'`parquet`.`{folder}`')}, check_duplicate_files => false)"
    )


def _local_folder(spark: SparkSession, table: TableSchema) -> Path | None:
    """The table's data folder if it is on a file system that this process shares."""
    location = table_location(spark, table.name)
    parts = urlsplit(location)
    if parts.scheme not in ("", "file") or parts.netloc:
        return None
    return Path(unquote(parts.path) if parts.scheme else location) / "data"


def _in_session(rows: DataFrame, spark: SparkSession) -> DataFrame:
    """The caller's rows as a frame of the table's session (both share one Spark)."""

    if rows.sparkSession is spark:
        return rows
    view = f"walflow_rows_{id(rows)}"
    rows.createOrReplaceGlobalTempView(view)
    try:
        taken: DataFrame = spark.table(f"global_temp.{view}")
        # Analysed now, so that the view may go.
        taken.schema  # noqa: B018
        return taken
    finally:
        spark.catalog.dropGlobalTempView(view)


def _child(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    child = spark.newSession()
    for name, value in conf.items():
        if name.startswith("spark.sql.catalog."):
            child.conf.set(name, value)
    return child


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:500]
