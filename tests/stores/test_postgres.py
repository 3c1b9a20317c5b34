"""The store in a Postgres database: the contract, lost connections, rights and secrets."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest

from tests.conftest import Database, fresh_database
from tests.pipeline.capturing import wait_for
from walflow.errors import StoreError
from walflow.model import Phase, quote_identifier
from walflow.stores.base import Holder
from walflow.stores.sql import SqlStore
from walflow.stores.sql_postgres import PostgresDatabase
from walflow.testing.postgres import EmbeddedPostgres
from walflow.testing.store_samples import WAY, state_of
from walflow.testing.stores import OpenStore, StoreContract


@pytest.fixture(scope="module")
def shared_database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    yield from fresh_database(postgres)


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def open_store(self, shared_database: Database) -> OpenStore:
        uri = shared_database.uri
        return lambda pipeline: SqlStore(PostgresDatabase(uri, 'wal "flow'), pipeline)


def open_one(uri: str, pipeline: str = "shop") -> SqlStore:
    return SqlStore(PostgresDatabase(uri, "walflow"), pipeline)


def test_on_every_version(any_database: Database) -> None:
    store = open_one(any_database.uri)
    for state in WAY:
        store.update_table_replication_states({1: state, 2: state})
    assert store.rollback_table_replication_state(1) == WAY[-2]
    store.acquire_lease(Holder("me", "host", 1), 60)
    lease = store.get_lease()
    assert lease is not None
    assert 0 < lease.seconds_left <= 60
    store.close()


def test_connections_that_the_server_ended_are_made_anew(database: Database) -> None:
    store = open_one(database.uri)
    store.update_table_replication_state(1, WAY[0])
    ended = database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'walflow_store' AND datname = current_database()"
    )
    assert ended
    store.update_table_replication_state(1, WAY[1])
    assert store.get_table_replication_history(1) == WAY[:2]
    store.close()


def test_a_server_that_goes_and_comes_back(database: Database) -> None:
    store = open_one(database.uri)
    store.update_table_replication_state(1, WAY[0])
    database.server.stop()
    with pytest.raises(StoreError) as failed:
        store.update_table_replication_state(1, WAY[1])
    assert failed.value.retry
    assert "store.uri" in failed.value.hint
    assert database.server.password not in "".join(traceback.format_exception(failed.value))
    # What was not written is not in the cache either; getters go on without the server.
    assert store.get_table_replication_state(1) == WAY[0]
    with pytest.raises(StoreError):
        store.load_table_replication_states()
    assert store.get_table_replication_states() == {1: WAY[0]}
    database.server.start()
    store.update_table_replication_state(1, WAY[1])
    assert store.get_table_replication_history(1) == WAY[:2]
    store.close()


def test_a_transaction_that_broke_off_left_nothing(database: Database) -> None:
    store = open_one(database.uri)
    before = {table: state_of(Phase.INIT) for table in range(50)}
    store.update_table_replication_states(before)
    database.execute(
        "ALTER TABLE walflow.table_states ADD CHECK (table_oid <> 49 OR phase = 'Init')"
    )
    with pytest.raises(StoreError, match="violates check constraint"):
        store.update_table_replication_states(dict.fromkeys(before, WAY[1]))
    assert store.get_table_replication_states() == before
    store.load_table_replication_states()
    assert store.get_table_replication_states() == before
    store.close()


def test_a_wrong_password_is_not_shown(database: Database) -> None:
    uri = database.replicator()
    wrong = uri.replace("p%40ss%3Aw%2Frd", "hunter2%40x")
    with pytest.raises(StoreError, match="authentication failed") as failed:
        open_one(wrong)
    shown = "".join(traceback.format_exception(failed.value)) + failed.value.hint
    assert "hunter2@x" not in shown
    assert "hunter2%40x" not in shown
    assert "pg_hba.conf" in failed.value.hint
    assert f"/{database.name}" in failed.value.message


def test_missing_rights_come_with_the_statement_that_grants_them(database: Database) -> None:
    uri = database.replicator()
    role = uri.split("://")[1].split(":")[0]
    with pytest.raises(StoreError, match="permission denied") as failed:
        open_one(uri)
    statement = failed.value.hint.partition(": ")[2].partition(" or ")[0]
    assert statement == (
        f'CREATE SCHEMA IF NOT EXISTS "walflow" AUTHORIZATION {quote_identifier(role)};'
    )
    database.execute(statement)
    # The schema is enough: the role cannot make others.
    store = open_one(uri)
    store.update_table_replication_state(1, WAY[0])
    store.close()
    database.execute("DROP SCHEMA walflow CASCADE")


def test_a_closed_store_says_so(database: Database) -> None:
    store = open_one(database.uri)
    store.close()
    with pytest.raises(StoreError, match="was closed"):
        store.update_table_replication_state(1, WAY[0])
    assert store.get_table_replication_states() == {}
    left = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'walflow_store'"
        " AND datname = current_database()"
    )
    # The server may take a moment to end a session.
    wait_for(lambda: database.execute(left) == [(0,)], 60)
