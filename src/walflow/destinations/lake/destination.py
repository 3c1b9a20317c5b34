"""The Iceberg destination."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from walflow.destinations.base import Events, TableChanges, TablesFailed
from walflow.destinations.iceberg.bridge import Bridge, open_bridge
from walflow.destinations.iceberg.merge import (
    append_rows,
    kept,
    merge_copies,
    merge_net,
    replace_rows,
    replace_table,
    with_base_rows,
)
from walflow.destinations.iceberg.sessions import SessionPool
from walflow.destinations.iceberg.tables import (
    EXACT,
    Owner,
    Progress,
    catalog_conf,
    create_table,
    drop_table,
    make_namespace,
    owned_tables,
    read_progress,
    stamped,
    table_identifier,
    table_properties,
)
from walflow.destinations.iceberg.warm import warm_up_writes
from walflow.errors import DestinationError, WalflowError
from walflow.model import Lsn, Span, TableName, TableSchema
from walflow.spark.connect import is_remote_session
from walflow.spark.copies import read_copy
from walflow.spark.net import EXACT_TYPE, net_changes, net_copies

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["IcebergDestination"]


class IcebergDestination:
    """Keeps Iceberg tables ``lake.<schema>.<table>`` under a warehouse folder.

    Rows and position are committed together, once a table a round.
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
        """``workers``: how many tables of one call are written at once."""
        self._spark = spark
        self._conf = catalog_conf(warehouse, options or {})
        self._owner = owner
        self._sessions = SessionPool(spark, self._conf)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="iceberg")
        self._lock = threading.Lock()
        self._progress: dict[TableName, Progress] = {}
        self._namespaces: set[str] = set()
        self._opening = threading.Lock()
        self._opened: list[Bridge | None] = []

    def startup(self) -> None:
        """Warm up: takes some seconds the first time, and is meant to run beside the copy."""
        warm_up_writes(self._spark)
        self._bridge()

    def shutdown(self) -> None:
        self._pool.shutdown()
        self._sessions.close()

    def truncate_table(self, table: TableSchema) -> None:
        """Drop the table, if it is ours, and make it anew without a position."""
        with self._writing(table.name) as spark:
            if self._look(spark, table.name) is not None:
                drop_table(spark, table.name)
            create_table(spark, table, self._owner, exact=False)

    def write_table_rows(self, table: TableSchema, rows: DataFrame) -> None:
        with self._writing(table.name) as spark:
            progress = self._look(spark, table.name)
            exact = "_exact" in rows.columns
            if progress is None:
                create_table(spark, table, self._owner, exact)
            elif exact and not progress.has_exact:
                _add_exact(spark, table)
            has_exact = exact or (progress is not None and progress.has_exact)
            with _in_session(rows, spark) as own:
                append_rows(own, table, has_exact)

    def adopt_files(
        self, table: TableSchema, files: Sequence[Path], position: Lsn, exact: bool
    ) -> None:
        """See AdoptsFiles. The files are linked into the table's folder where that can be (a
        bridge to the JVM, one file system); where not, Spark writes their rows.

        Former snapshots of the table stay for their readers until they expire.
        """
        with self._writing(table.name) as spark:
            bridge = self._bridge()
            if bridge is None or not bridge.replace_table(table, files, position, exact):
                # Whose it is decides whether it may be replaced.
                self._look(spark, table.name)
                rows = read_copy(spark, [str(file) for file in files], table, exact)
                with stamped(spark, self._owner, position):
                    replace_table(rows, table, table_properties(self._owner), exact)
        self._remember(table.name, Progress(position, exact))

    def drop_table(self, table: TableSchema) -> None:
        """Remove the table with its files; DestinationForeign if it is not ours."""
        with self._session(table.name) as spark:
            self._forget(table.name)
            if self._look(spark, table.name) is not None:
                drop_table(spark, table.name)

    def own_tables(self) -> list[TableName]:
        with _as_our_errors("The catalog's tables"), self._sessions.borrowed() as spark:
            return owned_tables(spark, self._owner)

    def applied(self, table: TableSchema) -> Lsn | None:
        with self._session(table.name) as spark:
            progress = self._known(spark, table.name)
        return None if progress is None else progress.applied

    def mark_applied(self, table: TableSchema, position: Lsn) -> None:
        identifier = table_identifier(table.name)
        with self._writing(table.name) as spark, stamped(spark, self._owner, position):
            spark.sql(f"INSERT INTO {identifier} SELECT * FROM {identifier} WHERE false")

    def write_events(self, events: Events) -> None:
        """See Destination. Several tables are written at once, in threads; one that fails does not
        stop the others."""
        if len(events.tables) == 1:
            self._apply(events.tables[0], events.span)
            return
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
            progress = self._known(spark, table.name)
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
            # Nothing that can be repeated with other effect: until the commit is known to have
            # happened, the table is asked anew where it is.
            self._forget(table.name)
            with stamped(spark, self._owner, span.upto):
                has_exact = _write(todo, progress)
        self._remember(table.name, Progress(span.upto, has_exact))

    def _bridge(self) -> Bridge | None:
        """Opened when first asked for: that starts the catalog, which may take long, or fail."""
        with self._opening:
            if not self._opened:
                self._opened.append(open_bridge(self._spark, self._conf, self._owner))
            return self._opened[0]

    def _known(self, spark: SparkSession, name: TableName) -> Progress | None:
        """How far the table is, as far as we have brought it ourselves."""
        with self._lock:
            known = self._progress.get(name)
        if known is None and (known := self._look(spark, name)) is not None:
            self._remember(name, known)
        return known

    def _look(self, spark: SparkSession, name: TableName) -> Progress | None:
        """How far the table is; None when there is none. DestinationForeign when it is not ours."""
        bridge = self._bridge()
        if bridge is None:
            return read_progress(spark, name, self._owner)
        return bridge.read_progress(name)

    def _remember(self, name: TableName, progress: Progress) -> None:
        with self._lock:
            self._progress[name] = progress

    def _forget(self, name: TableName) -> None:
        with self._lock:
            self._progress.pop(name, None)

    @contextmanager
    def _writing(self, name: TableName) -> Iterator[SparkSession]:
        """A session for what makes the table, or moves it by other means than changes."""
        with self._session(name) as spark:
            self._forget(name)
            if name.schema not in self._namespaces:
                make_namespace(spark, name)
                self._namespaces.add(name.schema)
            yield spark

    @contextmanager
    def _session(self, name: TableName) -> Iterator[SparkSession]:
        """A session; what Spark complains of inside becomes a DestinationError."""
        try:
            with _as_our_errors(table_identifier(name)), self._sessions.borrowed() as spark:
                yield spark
        except WalflowError:
            self._forget(name)
            raise


@contextmanager
def _as_our_errors(subject: str) -> Iterator[None]:
    try:
        yield
    except WalflowError:
        raise
    except Exception as error:
        raise DestinationError(
            f"{subject}: {_first_line(error)}",
            hint="See the cause with --debug; the change log keeps what is not applied.",
        ) from error


def _write(changes: TableChanges, progress: Progress) -> bool:
    """Commit the changes in the cheapest way that is right; whether the table has exact texts."""
    table, stats = changes.schema, changes.stats
    spark = changes.spark
    inserts_only = stats.inserts == stats.rows and not changes.truncated and not stats.unchanged
    # A Spark Connect server goes on with what a client that is gone has asked for, and two appends
    # do not get in each other's way: a MERGE sees that the table has changed under it.
    outlives = bool(table.key) and is_remote_session(spark)
    if inserts_only and not outlives:
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


@contextmanager
def _in_session(rows: DataFrame, spark: SparkSession) -> Iterator[DataFrame]:
    """The caller's rows as a frame of the session (both share one Spark)."""
    view = f"walflow_rows_{id(rows)}"
    rows.createOrReplaceGlobalTempView(view)
    try:
        yield spark.table(f"global_temp.{view}")
    finally:
        spark.catalog.dropGlobalTempView(view)


def _first_line(error: Exception) -> str:
    # Of what Java threw, the bridge says first which object was called.
    thrown = getattr(error, "java_exception", None)
    said = str(error) if thrown is None else str(thrown.toString())
    return said.strip().partition("\n")[0][:500]
