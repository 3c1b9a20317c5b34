"""The end of a pipeline: all that it made goes, nothing else does, and it can be repeated."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Database
from tests.destinations.reference import copy_of
from tests.pipeline.capturing import wait_for
from tests.pipeline.following import find as find_state
from tests.pipeline.following import wait_phase
from tests.pipeline.running import WAIT, running, settings_for
from walflow.changelog import ChangeLog, LogIdentity
from walflow.config import Settings, load_settings
from walflow.destinations import open_destination
from walflow.errors import (
    CannotConnect,
    FailpointReached,
    LogForeign,
    PipelineInUse,
    SlotInUse,
)
from walflow.failpoints import set_failpoints
from walflow.model import Column, Lsn, PgType, Phase, TableName, TableSchema
from walflow.pipeline.drop import (
    Remains,
    drop_pipeline,
    drop_sql,
    find_remains,
    remove_leftovers,
)
from walflow.pipeline.state.lease import LeaseKeeper
from walflow.pipeline.state.pipeline_notes import write_notes
from walflow.pipeline.timing import Timing
from walflow.source.catalog.publication import create_publication
from walflow.states import RetryKind, RetryPolicy, TableError, TableReplicationState
from walflow.stores import open_store
from walflow.stores.base import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOTS = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() ORDER BY 1"
PUBLICATIONS = "SELECT pubname FROM pg_publication ORDER BY 1"
COLUMNS = (Column("id", PgType("integer", 23, 23), "int", False, 1),)


def tables_in(lake: Path) -> set[str]:
    return {path.parent.name for path in lake.glob("*/*/metadata")}


def settings_of(database: Database, folder: Path, name: str = "shop") -> Settings:
    return load_settings(
        None,
        {
            "name": name,
            "source.uri": database.uri,
            "source.slot": f"{database.name}_{name}",
            "source.publication": f"{name}_tables",
            "destination.uri": f"iceberg://{folder / 'lake'}",
            "log.folder": str(folder / f"{name}-log"),
        },
        {},
    )


@pytest.fixture
def settings(database: Database, tmp_path: Path) -> Settings:
    return settings_of(database, tmp_path)


def make(database: Database, settings: Settings, *, tables: tuple[TableSchema, ...] = ()) -> None:
    """What a pipeline makes, without running it."""
    with database.connect() as connection:
        create_publication(connection, settings.publication, (), pipeline=settings.name)
        connection.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [settings.slot]
        )
    identity = LogIdentity(settings.name, system_id(database), settings.slot)
    log = ChangeLog.open(
        settings.log_folder, identity, start=Lsn(1), max_bytes=1 << 30, file_bytes=1 << 20
    )
    log.close()
    with closing(open_store(settings)) as store:
        for oid, table in enumerate(tables or (None,), start=1):
            name = TableName("public", "t") if table is None else table.name
            state = TableReplicationState(name, Phase.READY, since=time.time())
            store.update_table_replication_state(oid, state)


def system_id(database: Database) -> str:
    return str(database.execute("SELECT system_identifier FROM pg_control_system()")[0][0])


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    with closing(open_store(settings)) as opened:
        yield opened


def find(settings: Settings, store: Store, *, skip_source: bool = False) -> Remains:
    """All but the destination's tables, which need Spark."""
    return find_remains(settings, store, skip_source=skip_source, keep_tables=True)


def test_all_that_it_made_goes_and_nothing_else(
    database: Database, settings: Settings, tmp_path: Path
) -> None:
    other = settings_of(database, tmp_path, "other")
    make(database, settings)
    make(database, other)
    # Of a pipeline that happens to be called so.
    alike = f"{settings.slot}_copy_123"
    with database.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [alike])
    told: list[str] = []
    with closing(open_store(settings)) as store:
        found = find(settings, store)
        assert (found.slot, found.publication) == (settings.slot, "shop_tables")
        assert (found.log, found.store, found.tables) == (settings.log_folder, True, ())
        assert replace(found, others=True) == find_remains(settings, store)
        drop_pipeline(settings, store, found, tell=told.append)
        assert store.get_table_replication_states() == {}
        assert not find(settings, store)
    remove_leftovers(settings)
    assert len(told) == 4
    assert database.execute(SLOTS) == [(other.slot,), (alike,)]
    assert database.execute(PUBLICATIONS) == [("other_tables",)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other-log"]
    with closing(open_store(other)) as store:
        assert len(store.get_table_replication_states()) == 1
        assert find(other, store).log == other.log_folder


def test_a_publication_that_others_read_stays(database: Database, tmp_path: Path) -> None:
    """Before each pipeline had its own, all had the one named walflow, whoever made it."""
    shop, bi = (
        settings_of(database, tmp_path, name).with_publication("walflow") for name in ("shop", "bi")
    )
    make(database, shop)
    make(database, bi)
    # What a start notes.
    write_notes(bi, f"{system_id(database)}/{database.name}")
    with closing(open_store(shop)) as store:
        found = find(shop, store)
        assert (found.publication, found.shared, found.users) == (None, "walflow", (bi.slot,))
        drop_pipeline(shop, store, found)
    assert database.execute(PUBLICATIONS) == [("walflow",)]
    assert database.execute(SLOTS) == [(bi.slot,)]
    # It goes with the last one.
    with closing(open_store(bi)) as store:
        found = find(bi, store)
        assert (found.publication, found.users) == ("walflow", ())
        drop_pipeline(bi, store, found)
    assert database.execute(PUBLICATIONS) == []


def test_tables_that_were_found_to_be_anothers_are_not_listed_for_removal(
    database: Database, settings: Settings
) -> None:
    table = TableSchema(1, TableName("public", "t"), COLUMNS, ("id",))
    make(database, settings, tables=(table,))
    with closing(open_store(settings)) as store:
        store.store_table_schema(table)
        assert find_remains(settings, store).tables == (table,)
        error = TableError(
            "DestinationForeign",
            "the table t exists and belongs to the pipeline 'default'",
            "",
            RetryPolicy(RetryKind.MANUAL),
            Phase.DATA_SYNC,
        )
        state = TableReplicationState(table.name, Phase.ERRORED, since=time.time(), error=error)
        store.update_table_replication_state(1, state)
        found = find_remains(settings, store)
    assert (found.tables, found.stays) == ((), ((table.name, error.reason),))


def test_a_publication_that_somebody_else_made_stays(
    database: Database, settings: Settings, store: Store
) -> None:
    database.execute("CREATE PUBLICATION shop_tables FOR ALL TABLES")
    found = find(settings, store)
    assert found.publication is None
    drop_pipeline(settings, store, found)
    assert database.execute(PUBLICATIONS) == [("shop_tables",)]


def test_a_slot_of_that_name_that_somebody_else_uses_stays(
    database: Database, settings: Settings, store: Store
) -> None:
    with database.connect() as connection:
        connection.execute("SELECT pg_create_physical_replication_slot(%s)", [settings.slot])
    try:
        assert find(settings, store).slot is None
    finally:
        with database.connect() as connection:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [settings.slot])


@pytest.mark.parametrize("place", ["drop.slot", "drop.store"])
def test_a_drop_that_was_broken_off_is_repeated(
    database: Database, settings: Settings, place: str
) -> None:
    make(database, settings)
    set_failpoints(f"{place}=raise")
    try:
        with closing(open_store(settings)) as store, pytest.raises(FailpointReached):
            drop_pipeline(settings, store, find(settings, store))
    finally:
        set_failpoints("")
    with closing(open_store(settings)) as store:
        found = find(settings, store)
        assert found.slot is None
        assert found.store, "the store is last"
        drop_pipeline(settings, store, found)
    remove_leftovers(settings)
    assert (database.execute(SLOTS), database.execute(PUBLICATIONS)) == ([], [])
    assert not settings.log_folder.exists()


def test_what_is_gone_between_looking_and_dropping_is_passed_over(
    database: Database, settings: Settings
) -> None:
    make(database, settings)
    with closing(open_store(settings)) as store:
        found = find(settings, store)
        drop_pipeline(settings, store, found)
        drop_pipeline(settings, store, found)
    assert (database.execute(SLOTS), database.execute(PUBLICATIONS)) == ([], [])


def test_a_pipeline_that_runs_is_left_alone(
    database: Database, settings: Settings, store: Store
) -> None:
    make(database, settings)
    found = find(settings, store)
    with closing(open_store(settings)) as others:
        keeper = LeaseKeeper(others, lambda: None, timing=Timing(lease=3600.0))
        keeper.acquire()
        with pytest.raises(PipelineInUse, match=f"process {os.getpid()} on "):
            find(settings, store)
        with pytest.raises(PipelineInUse):
            drop_pipeline(settings, store, found)
        assert database.execute(SLOTS) == [(settings.slot,)]
        keeper.release()
    assert find(settings, store) == found


def test_a_slot_that_is_being_read_keeps_everything(database: Database, settings: Settings) -> None:
    make(database, settings)
    command: list[str | Path] = [database.server.pg_recvlogical, "-d", database.uri]
    command += ["-S", settings.slot, "--start", "-f", "/dev/null", "-o", "proto_version=1"]
    reader = subprocess.Popen([*command, "-o", "publication_names=shop_tables"])
    try:
        active = "SELECT active FROM pg_replication_slots"
        wait_for(lambda: database.execute(active) == [(True,)], WAIT, "the slot is read")
        with closing(open_store(settings)) as store:
            found = find(settings, store)
            with pytest.raises(SlotInUse):
                drop_pipeline(settings, store, found)
            assert find(settings, store) == found
    finally:
        reader.terminate()
        reader.wait(WAIT)


def test_another_pipelines_log_is_refused(
    database: Database, settings: Settings, store: Store
) -> None:
    identity = LogIdentity("other", system_id(database), "other_slot")
    ChangeLog.open(
        settings.log_folder, identity, start=Lsn(1), max_bytes=1 << 30, file_bytes=1 << 20
    ).close()
    with pytest.raises(LogForeign, match="'other'"):
        find(settings, store)


def test_a_source_that_is_away(database: Database, settings: Settings) -> None:
    make(database, settings)
    away = settings.model_copy(
        update={
            "source": settings.source.model_copy(
                update={"uri": type(settings.source.uri)("postgresql://me@127.0.0.1:1/shop")}
            )
        }
    )
    with closing(open_store(away)) as store:
        with pytest.raises(CannotConnect):
            find(away, store)
        assert store.get_table_replication_states()
        assert (away.log_folder / "log.json").exists()
        found = find(away, store, skip_source=True)
        assert found == Remains(
            source=f"{system_id(database)}/shop", log=away.log_folder, store=True
        )
        drop_pipeline(away, store, found)
    remove_leftovers(away)
    assert not away.log_folder.exists()
    # What is left is removed by what the user is given to paste.
    database.execute(*drop_sql(away))
    assert (database.execute(SLOTS), database.execute(PUBLICATIONS)) == ([], [])


@pytest.mark.parametrize("left", [("lock",), ("lock", "data", "journal", "log.json.tmp")])
def test_a_log_that_was_half_made_or_half_removed(
    database: Database, settings: Settings, store: Store, left: tuple[str, ...]
) -> None:
    for name in left:
        path = settings.log_folder / name
        path.mkdir() if name in ("data", "journal") else path.touch()
    drop_pipeline(settings, store, find(settings, store))
    store.close()
    remove_leftovers(settings)
    assert not settings.log_folder.exists()


def test_files_of_others_stay_in_the_folder(database: Database, settings: Settings) -> None:
    make(database, settings)
    (settings.log_folder / "diary.txt").write_text("dear diary")
    with closing(open_store(settings)) as store:
        drop_pipeline(settings, store, find(settings, store))
    remove_leftovers(settings)
    assert [path.name for path in settings.log_folder.iterdir()] == ["diary.txt"]


def test_a_store_with_something_in_it_stays(settings: Settings, store: Store) -> None:
    state = TableReplicationState(TableName("public", "t"), Phase.READY, since=1.0)
    store.update_table_replication_state(1, state)
    store.close()
    remove_leftovers(settings)
    with closing(open_store(settings)) as again:
        assert again.get_table_replication_states() == {1: state}


@pytest.mark.parametrize(
    ("content", "stays"), [(b"", False), (b"not a database, and long enough to be one" * 9, True)]
)
def test_a_file_that_never_became_a_store(settings: Settings, content: bytes, stays: bool) -> None:
    settings.log_folder.mkdir()
    (settings.log_folder / "state.db").write_bytes(content)
    remove_leftovers(settings)
    assert settings.log_folder.exists() is stays


@pytest.mark.spark
def test_tables_of_the_destination(
    database: Database, settings: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    mine, kept = (
        TableSchema(oid, TableName("public", name), COLUMNS, ("id",))
        for oid, name in ((1, "mine"), (2, "kept"))
    )
    source = f"{system_id(database)}/{database.name}"
    renamed = TableName("lake", "renamed")
    for owner, table in ((settings, mine), (settings_of(database, tmp_path, "other"), kept)):
        opened = open_destination(owner, source, spark=spark)
        target = TableSchema(
            table.oid, renamed if table is mine else table.name, table.columns, table.key
        )
        opened.destination.copy(copy_of(target, [], Lsn(1)))
        opened.close()
    make(database, settings, tables=(mine, kept))
    told: list[str] = []
    with closing(open_store(settings)) as store:
        for schema in (mine, kept):
            store.store_table_schema(schema)
        store.store_table_mapping(1, renamed)
        found = find_remains(settings, store)
        assert [str(table.name) for table in found.tables] == ["lake.renamed", "public.kept"]
        drop_pipeline(settings, store, found, spark=spark, tell=told.append)
    assert tables_in(tmp_path / "lake") == {"kept"}, told
    assert any("dropped the destination's table lake.renamed" in line for line in told)
    assert database.execute(SLOTS) == []


@pytest.mark.spark
def test_tables_that_are_no_longer_followed(
    database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    settings = settings_for(database, tmp_path, source__create_publication=True)
    for table in ("steady", "renamed", "leaves"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)")
    with running(settings, spark):
        pass
    database.execute("ALTER TABLE renamed RENAME TO after", "DROP TABLE leaves")
    with running(settings, spark) as pipeline:
        wait_phase(pipeline, "after", Phase.READY)
        wait_for(lambda: find_state(pipeline, "leaves") is None, WAIT, check=pipeline.check)
    lake = tmp_path / "lake"
    source = f"{system_id(database)}/{database.name}"
    other = open_destination(settings_of(database, tmp_path, "other"), source, spark=spark)
    theirs = TableSchema(9, TableName("public", "kept"), COLUMNS, ("id",))
    other.destination.copy(copy_of(theirs, [], Lsn(1)))
    other.close()
    followed = {"steady", "renamed", "leaves", "after"}
    assert tables_in(lake) == {*followed, "kept", "consistent_cuts_test"}
    told: list[str] = []
    with closing(open_store(settings)) as store:
        found = find_remains(settings, store)
        assert {table.name.name for table in found.tables} == {"steady", "after"}
        drop_pipeline(settings, store, found, spark=spark, tell=told.append)
    assert tables_in(lake) == {"kept"}
    for table in followed:
        assert f"dropped the destination's table public.{table}" in told
