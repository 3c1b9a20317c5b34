"""Slots: what they are, whether they can serve us, and how they go."""

from __future__ import annotations

import threading
import time

import pytest

from tests.conftest import Database
from walflow.errors import SlotInUse, SlotLost
from walflow.source.connection import connect
from walflow.source.slots import check_slot, drop_slot, read_slot
from walflow.testing.postgres import EmbeddedPostgres, available_versions


def test_the_life_of_a_slot(any_database: Database) -> None:
    name = f"{any_database.name}_slot"
    with connect(any_database.replicator(), application_name="t") as connection:
        assert not read_slot(connection, name).exists
        check_slot(read_slot(connection, name), any_database.name)
        with pytest.raises(SlotLost, match="is gone"):
            check_slot(read_slot(connection, name), any_database.name, must_exist=True)
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        state = read_slot(connection, name)
        assert state.exists
        assert state.logical
        assert (state.plugin, state.database) == ("pgoutput", any_database.name)
        assert not state.temporary
        assert not state.active
        assert state.active_pid is None
        assert state.restart_lsn is not None
        assert state.confirmed_flush is not None
        assert 0 < state.restart_lsn <= state.confirmed_flush
        assert state.wal_status == "reserved"
        assert state.invalidation is None
        check_slot(state, any_database.name, must_exist=True)
        with pytest.raises(SlotLost, match="belongs to database"):
            check_slot(state, "elsewhere")
        drop_slot(connection, name)
        drop_slot(connection, name)
        assert not read_slot(connection, name).exists


def test_a_slot_of_another_plugin(any_database: Database) -> None:
    name = f"{any_database.name}_other"
    plugins = any_database.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'hstore'")
    if not plugins:
        pytest.skip("this build has no contrib (test_decoding); tests/fetch_postgres.py's have")
    with connect(any_database.replicator(), application_name="t") as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [name])
        with pytest.raises(SlotLost, match="test_decoding"):
            check_slot(read_slot(connection, name), any_database.name)


def test_a_slot_that_is_being_read_is_not_dropped(any_database: Database) -> None:
    name = f"{any_database.name}_slot"
    any_database.execute(
        "CREATE PUBLICATION walflow",
        f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')",
    )
    uri = any_database.replicator()
    with connect(uri, application_name="the reader", replication="database") as reader:
        reader.pgconn.exec_(
            f"START_REPLICATION SLOT {name} LOGICAL 0/0"
            " (proto_version '1', publication_names 'walflow')".encode()
        )
        with connect(uri, application_name="t") as connection:
            state = read_slot(connection, name)
            assert state.active_pid == reader.info.backend_pid
            with pytest.raises(SlotInUse, match="the reader"):
                check_slot(state, any_database.name)
            began = time.monotonic()
            with pytest.raises(SlotInUse, match=str(state.active_pid)):
                drop_slot(connection, name, wait_seconds=0.3)
            assert time.monotonic() - began < 5
            leaving = threading.Timer(0.5, reader.close)
            leaving.start()
            drop_slot(connection, name)
            leaving.join()
            assert not read_slot(connection, name).exists


@pytest.mark.parametrize("version", [major for major in available_versions() if major >= 14])
def test_an_invalidated_slot_is_lost(version: int) -> None:
    settings = {"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    with EmbeddedPostgres(version, settings=settings) as server:
        with server.connect() as admin:
            admin.execute("SELECT pg_create_logical_replication_slot('walflow_a', 'pgoutput')")
            for _ in range(4):
                admin.execute("SELECT pg_switch_wal()")
                admin.execute("CREATE TABLE IF NOT EXISTS t (a int)")
                admin.execute("INSERT INTO t SELECT generate_series(1, 1000)")
                admin.execute("CHECKPOINT")
        with connect(server.uri, application_name="t") as connection:
            state = read_slot(connection, "walflow_a")
            assert state.wal_status == "lost"
            with pytest.raises(SlotLost, match="invalidated") as raised:
                check_slot(state, "postgres")
            assert "pg_drop_replication_slot('walflow_a')" in raised.value.hint
