"""Removing a pipeline: finding and removing everything that it created.

The slot goes first, because it makes the source keep its log. The store goes last, because it lists
what there is to remove. So an interrupted drop can be repeated.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg.conninfo import conninfo_to_dict

from walflow.changelog.identity import HEAD, own_log, remove_log
from walflow.config import Settings
from walflow.config.settings import LEASE_FILE
from walflow.destinations import is_web, open_destination, open_without_spark
from walflow.destinations.base import Destination
from walflow.errors import DestinationForeign, SourceError
from walflow.failpoints import failpoint
from walflow.model import TableName, TableSchema, quote_identifier
from walflow.paths import is_there
from walflow.pipeline.state.lease import LeaseKeeper
from walflow.pipeline.state.pipeline_notes import (
    PipelineNotes,
    pipelines_on_this_machine,
    read_notes,
    remove_notes,
    with_chosen_publication,
)
from walflow.source.catalog.publication import (
    drop_publication,
    hand_over_publication,
    made_by_walflow,
    other_users,
)
from walflow.source.catalog.server import read_server
from walflow.source.connection import connect
from walflow.source.stream.slots import drop_slot, read_slot
from walflow.spark.jars import telling_of_jars
from walflow.stores import STATE_FILE, sql_tables
from walflow.stores.base import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Remains",
    "drop_pipeline",
    "drop_sql",
    "find_remains",
    "may_drop_tables",
    "remove_leftovers",
]


@dataclass(frozen=True, slots=True)
class Remains:
    """Everything that is left of a pipeline."""

    slot: str | None = None
    publication: str | None = None
    """Only if walflow created it for this pipeline, and no other reader of it is known."""
    shared: str | None = None
    """Otherwise: the publication that walflow created for this pipeline, and that others use."""
    users: tuple[str, ...] = ()
    """The slots of these other readers."""
    heir: str = ""
    """The pipeline that gets the publication; empty: none of the readers is a known pipeline of
    walflow."""
    source: str | None = None
    """The identifier by which the destination marks this source's tables; None: not known."""
    tables: tuple[TableSchema, ...] = ()
    """The destination's tables that the pipeline created, by the store's list, with their names
    there."""
    stays: tuple[tuple[TableName, str], ...] = ()
    """Tables of the destination that are in the store's list and are not dropped, and why."""
    others: bool = False
    """Whether to search for more: the destination may have tables that are marked as this
    pipeline's and are no longer followed."""
    log: Path | None = None
    store: bool = False

    def __bool__(self) -> bool:
        found = (self.slot, self.publication, self.tables, self.log, self.store)
        return any(found)


def find_remains(
    settings: Settings,
    store: Store | None,
    *,
    skip_source: bool = False,
    keep_tables: bool = False,
) -> Remains:
    """Find everything except the destination's marked tables, which need Spark. Changes nothing.
    ``store`` is None if there is none. With ``keep_tables`` the destination's tables do not count.

    Raises PipelineInUse while a process runs the pipeline, LogForeign if the folder has another
    pipeline's log, and the source's error if it does not answer, unless it is skipped.
    """
    tables: tuple[TableSchema, ...] = ()
    stays: tuple[tuple[TableName, str], ...] = ()
    with _held(store):
        if store is not None and not keep_tables:
            tables, stays = _tables(store)
        begun = store is not None and bool(store.get_table_replication_states())
    if not keep_tables and (unable := _cannot_drop(settings)) is not None:
        stays = tuple((table.name, unable) for table in tables)
        tables, keep_tables = (), True
    identity = own_log(settings.log_folder, settings.name)
    found = Remains(
        tables=tables,
        stays=stays,
        log=None if identity is None else settings.log_folder,
        store=begun or bool(tables or stays),
    )
    uri = settings.source.uri.get_secret_value()
    if skip_source:
        database = conninfo_to_dict(uri).get("dbname")
        if identity is None or not database:
            return found
        return replace(
            found, source=f"{identity.system_id}/{database}", others=bool(found) and not keep_tables
        )
    with connect(uri, application_name=_application(settings)) as connection:
        server = read_server(connection)
        slot = read_slot(connection, settings.slot)
        publication = with_chosen_publication(connection, settings, begun=begun).publication
        made = made_by_walflow(connection, publication, settings.name)
        system = f"{server.system_identifier}/{server.database}"
        others = {
            notes.slot: notes
            for _, notes in pipelines_on_this_machine(settings)
            if notes.system == system
        }
        readers = {slot: other.publication for slot, other in others.items()}
        users = other_users(connection, publication, settings.slot, readers) if made else ()
    # A slot of that name in another database, or for another plugin, is somebody else's.
    is_ours = slot.exists and slot.plugin == "pgoutput" and slot.database == server.database
    found = replace(
        found,
        slot=settings.slot if is_ours else None,
        publication=publication if made and not users else None,
        shared=publication if made and users else None,
        users=users,
        heir=next(filter(None, (_pipeline_of(user, others) for user in users)), ""),
        source=system,
    )
    return replace(found, others=bool(found) and not keep_tables)


def _pipeline_of(slot: str, others: Mapping[str, PipelineNotes]) -> str:
    """The pipeline of a slot: from notes, or from the slot's name. Empty if it belongs to something
    else, such as a subscription, which would never drop the publication."""
    if slot in others:
        return others[slot].name
    return slot.removeprefix("walflow_") if slot.startswith("walflow_") else ""


def may_drop_tables(settings: Settings) -> bool:
    """Whether the destination is of a kind that can drop tables, and has to be opened for it."""
    return not is_web(settings.destination.uri)


def _cannot_drop(settings: Settings) -> str | None:
    """Why the destination cannot drop tables; None: it can."""
    own = open_without_spark(settings)
    if own is None or own.capabilities.drops:
        return None
    return f"the destination {own.name} cannot drop tables"


def _tables(
    store: Store,
) -> tuple[tuple[TableSchema, ...], tuple[tuple[TableName, str], ...]]:
    """The tables that the pipeline created, and those that belong to another."""
    store.load_table_schemas()
    store.load_table_mappings()
    names, states = store.get_table_mappings(), store.get_table_replication_states()
    made: list[TableSchema] = []
    foreign: list[tuple[TableName, str]] = []
    for schema in store.get_table_schemas():
        name = names.get(schema.oid, schema.name)
        error = None if schema.oid not in states else states[schema.oid].error
        if error is not None and error.code == DestinationForeign.__name__:
            foreign.append((name, error.reason))
        else:
            made.append(replace(schema, name=name))
    return tuple(sorted(made, key=lambda schema: schema.name)), tuple(sorted(foreign))


def drop_sql(settings: Settings) -> tuple[str, ...]:
    """The statements to run by hand on a source that was skipped."""
    slot = settings.slot.replace("'", "''")
    notes = read_notes(settings.log_folder)
    publication = settings.source.publication or (notes and notes.publication)
    return (
        f"SELECT pg_drop_replication_slot('{slot}');",
        f"DROP PUBLICATION IF EXISTS {quote_identifier(publication or settings.publication)};",
    )


def drop_pipeline(
    settings: Settings,
    store: Store | None,
    remains: Remains,
    *,
    spark: SparkSession | None = None,
    debug: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Remove what ``find_remains`` found. Each finished step is passed to ``tell``.

    Raises PipelineInUse while a process runs the pipeline. Things that are gone meanwhile are no
    error. Spark is started (unless a session is given) only if tables are to be dropped, and they
    are listed before anything is removed. Afterwards the store has no entry of the pipeline. Once
    it is closed, ``remove_leftovers`` removes the rest.
    """
    with _held(store) as check, contextlib.ExitStack() as stack:
        destination: Destination | None = None
        tables = remains.tables
        if remains.source is not None and (tables or remains.others):
            if spark is None:
                tell("starting Spark, to drop the destination's tables …")
            with telling_of_jars(tell):
                opened = open_destination(
                    settings, remains.source, spark=spark, debug=debug, warm_up=False
                )
            stack.callback(opened.close)
            destination = opened.destination
            if remains.others:
                tables += _others(destination, tables)
        check()
        if remains.slot or remains.publication or remains.shared:
            _drop_from_source(settings, remains, tell)
        if destination is not None:
            _drop_tables(destination, tables, check, tell)
        check()
        if remove_log(settings.log_folder, settings.name):
            tell(f"removed the change log {settings.log_folder}")
        failpoint("drop.store", settings.name)
        if store is not None:
            store.drop()
            tell("removed the pipeline's state from the store")


def remove_leftovers(settings: Settings) -> None:
    """Remove the store's file from the log's folder if it has no entries, then the folder if it is
    empty, then the folder of all logs if this was the only one. Repeats safely. The store must be
    closed."""
    file = settings.log_folder / STATE_FILE
    if is_there(settings.log_folder) and not is_there(settings.log_folder / HEAD):
        remove_notes(settings.log_folder)
        (settings.log_folder / LEASE_FILE).unlink(missing_ok=True)
    if settings.store.uri is None and is_there(file) and _is_empty(file):
        for suffix in ("-wal", "-shm", ""):
            file.with_name(file.name + suffix).unlink(missing_ok=True)
    # Files of others may be in it, or it is gone.
    with contextlib.suppress(OSError):
        settings.log_folder.rmdir()
        if settings.log.folder is None:
            settings.log_folder.parent.rmdir()


def _is_empty(file: Path) -> bool:
    """Whether the file is a store (or the beginning of one) without entries of any pipeline."""
    with contextlib.closing(sqlite3.connect(file)) as connection:
        try:
            made = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            return not made or not any(
                connection.execute(f"SELECT 1 FROM {table.name} LIMIT 1").fetchone()
                for table in sql_tables.ALL
            )
        except sqlite3.Error:
            return False


def _drop_from_source(settings: Settings, remains: Remains, tell: Callable[[str], None]) -> None:
    uri = settings.source.uri.get_secret_value()
    with connect(uri, application_name=_application(settings)) as connection:
        if remains.slot is not None:
            drop_slot(connection, remains.slot)
            tell(f"dropped the replication slot {remains.slot}")
            failpoint("drop.slot", remains.slot)
        if remains.publication is not None:
            drop_publication(connection, remains.publication)
            tell(f"dropped the publication {remains.publication}")
        if remains.shared is not None:
            if not remains.heir:
                tell(f"left the publication {remains.shared}, which others may read")
                return
            # A destination that may not say whose it is leaves it, too.
            with contextlib.suppress(SourceError):
                hand_over_publication(connection, remains.shared, remains.heir)
            tell(f"left the publication {remains.shared} to the pipeline {remains.heir}")


def _others(destination: Destination, tables: tuple[TableSchema, ...]) -> tuple[TableSchema, ...]:
    """The pipeline's tables beside these, without their schemas."""
    names = set(destination.own_tables()) - {table.name for table in tables}
    return tuple(TableSchema(0, name, (), ()) for name in sorted(names))


def _drop_tables(
    destination: Destination,
    tables: tuple[TableSchema, ...],
    check: Callable[[], None],
    tell: Callable[[str], None],
) -> None:
    if not destination.capabilities.drops:
        tell(f"the destination {destination.name} cannot drop tables; they stay")
        return
    for table in tables:
        check()
        _drop_table(destination, table, tell)


def _drop_table(destination: Destination, table: TableSchema, tell: Callable[[str], None]) -> None:
    failpoint("drop.table", table.name)
    try:
        destination.drop(table)
    except DestinationForeign as foreign:
        tell(f"left {table.name} alone: {foreign}")
    else:
        tell(f"dropped the destination's table {table.name}")


def _application(settings: Settings) -> str:
    return f"walflow {settings.name} drop"


@contextmanager
def _held(store: Store | None) -> Iterator[Callable[[], None]]:
    """Keep other processes from running the pipeline. Gives a function that raises if that has
    failed."""
    if store is None:
        yield lambda: None
        return
    keeper = LeaseKeeper(store, lambda: None)
    keeper.acquire()
    try:
        yield keeper.check
    finally:
        keeper.release()
