"""Slots: what they are, whether they can serve us, and how they go."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg.pq import ExecStatus

from tests.conftest import Database
from tests.pipeline.capturing import wait_for
from walflow.errors import ConnectionLost, SlotForeign, SlotInUse, SlotLost, SourceError
from walflow.model import Lsn
from walflow.source.catalog.preflight import Preflight, preflight
from walflow.source.connection import connect
from walflow.source.stream.replication_connection import Replication
from walflow.source.stream.slots import check_slot, drop_slot, read_slot, slot_loss
from walflow.testing.postgres import EmbeddedPostgres, available_versions


def test_the_life_of_a_slot(any_database: Database) -> None:
    name = f"{any_database.name}_slot"
    with connect(any_database.replicator(), application_name="t") as connection:
        assert not read_slot(connection, name).exists
        check_slot(read_slot(connection, name), any_database.name)
        gone = slot_loss(read_slot(connection, name))
        assert gone is not None
        assert "is gone" in gone.message
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        state = read_slot(connection, name)
        assert state.exists
        assert state.logical
        assert (state.plugin, state.database) == ("pgoutput", any_database.name)
        assert not state.temporary
        assert not state.active
        assert state.active_pid is None
        assert state.confirmed_flush is not None
        assert state.confirmed_flush > 0
        assert state.wal_status == "reserved"
        assert state.invalidation is None
        assert not state.failover
        check_slot(state, any_database.name)
        assert slot_loss(state) is None
        assert slot_loss(state, state.confirmed_flush) is None
        read_by_others = slot_loss(state, Lsn(state.confirmed_flush - 1))
        assert read_by_others is not None
        assert "Something else" in read_by_others.message
        with pytest.raises(SlotForeign, match="belongs to database"):
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
        with pytest.raises(SlotForeign, match="test_decoding"):
            check_slot(read_slot(connection, name), any_database.name)


def test_a_connection_that_is_lost_while_a_slot_is_made(database: Database) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE query ~ '^CREATE_REPLICATION_SLOT'"
    with (
        database.connect(autocommit=False) as other,
        Replication(database.uri, application_name="t") as replication,
        ThreadPoolExecutor(1) as pool,
    ):
        # Postgres waits for this transaction, and so do we.
        other.execute("CREATE TABLE t (id int)")
        name = f"{database.name}_lost"
        made = pool.submit(replication.create_slot, name, temporary=True)
        wait_for(lambda: database.execute(waiting) == [(1,)], 30)
        with socket.socket(fileno=os.dup(replication._pgconn.socket)) as line:
            line.shutdown(socket.SHUT_RDWR)
        with pytest.raises(ConnectionLost, match="create the slot") as lost:
            made.result(30)
        assert lost.value.retry


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
            with pytest.raises(SlotInUse, match=str(state.active_pid)):
                drop_slot(connection, name, wait_seconds=0.3)
            leaving = threading.Timer(0.5, reader.close)
            leaving.start()
            drop_slot(connection, name, wait_seconds=60)
            leaving.join()
            assert not read_slot(connection, name).exists


@pytest.mark.parametrize("version", [major for major in available_versions() if major >= 14])
def test_an_invalidated_slot_is_lost(version: int) -> None:
    settings = {"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    with EmbeddedPostgres(version, settings=settings) as server:
        with server.connect() as admin:
            admin.execute("CREATE PUBLICATION p")
            admin.execute("SELECT pg_create_logical_replication_slot('walflow_a', 'pgoutput')")
            for _ in range(4):
                admin.execute("SELECT pg_switch_wal()")
                admin.execute("CREATE TABLE IF NOT EXISTS t (a int)")
                admin.execute("INSERT INTO t SELECT generate_series(1, 1000)")
                admin.execute("CHECKPOINT")
        with connect(server.uri, application_name="t") as connection:
            state = read_slot(connection, "walflow_a")
            assert state.wal_status == "lost"
            check_slot(state, "postgres")
            loss = slot_loss(state)
            assert loss is not None
            assert "invalidated" in loss.message
            assert "source.on_slot_lost: resync" in loss.hint
            with pytest.raises(SlotLost, match="invalidated"):
                preflight(connection, publication="p", slot="walflow_a")
            found = preflight(connection, publication="p", slot="walflow_a", resync_lost_slot=True)
            assert found.lost is not None
            assert found.lost.message == loss.message
            # The policy makes it again under the same name.
            drop_slot(connection, "walflow_a")
            with Replication(server.uri, application_name="t") as replication:
                replication.create_slot("walflow_a")
            assert slot_loss(read_slot(connection, "walflow_a")) is None


def test_a_slot_that_standbys_keep(any_database: Database) -> None:
    name = f"{any_database.name}_slot"
    any_database.execute("CREATE PUBLICATION walflow")
    uri = any_database.replicator()
    with connect(uri, application_name="t") as connection:

        def check() -> Preflight:
            return preflight(connection, publication="walflow", slot=name, failover=True)

        with Replication(uri, application_name="t") as replication:
            if any_database.server.version < 17:
                with pytest.raises(SourceError, match="failover") as refused:
                    check()
                assert "Postgres 17" in refused.value.hint
                with pytest.raises(SourceError, match="failover"):
                    replication.create_slot(name, failover=True)
                assert not read_slot(connection, name).exists
                return
            created = replication.create_slot(name, failover=True)
            assert created.snapshot
            state = read_slot(connection, name)
            assert state.failover
            assert state.confirmed_flush == created.consistent_point
            assert not any("failover" in warning for warning in check().warnings)
            drop_slot(connection, name)
            replication.create_slot(name)
            (warning,) = (w for w in check().warnings if "failover" in w)
            alter = warning.partition("connection: ")[2].rstrip(";")
            altered = replication._connection.pgconn.exec_(alter.encode())
            assert altered.status == ExecStatus.COMMAND_OK
            assert read_slot(connection, name).failover
