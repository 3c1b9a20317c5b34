"""The copy's snapshot outlives the slot's connection, and its loss is noticed."""

from __future__ import annotations

import time

import pytest
from psycopg import sql

from tests.conftest import Database
from walflow.errors import SnapshotLost
from walflow.source.connection import Session, connect
from walflow.source.copy.snapshot import SnapshotKeeper, keep_snapshot


def make_slot(database: Database, uri: str) -> SnapshotKeeper:
    """A slot with its exported snapshot, taken over; the slot's connection is closed."""
    with connect(uri, application_name="t", replication="database") as replication:
        made = replication.pgconn.exec_(
            f"CREATE_REPLICATION_SLOT {database.name}_s LOGICAL pgoutput EXPORT_SNAPSHOT".encode()
        )
        exported = made.get_value(0, 2)
        assert exported is not None
        return keep_snapshot(uri, exported.decode())


def count(connection: Session, snapshot: str) -> int:
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    row = connection.execute("SELECT count(*) FROM t").fetchone()
    connection.execute("COMMIT")
    assert row is not None
    return int(row[0])


def test_readers_see_the_moment_of_the_slot(any_database: Database) -> None:
    any_database.execute("CREATE TABLE t AS SELECT generate_series(1, 10) AS id")
    uri = any_database.replicator("GRANT SELECT ON t TO {role}")
    with make_slot(any_database, uri) as keeper:
        any_database.execute("INSERT INTO t VALUES (11)", "DELETE FROM t WHERE id < 5")
        for _ in range(2):
            with connect(uri, application_name="t") as reader:
                assert count(reader, keeper.name) == 10
        assert keeper.alive()
        keeper.check()
    with connect(uri, application_name="t") as reader, pytest.raises(Exception, match="snapshot"):
        count(reader, keeper.name)
    keeper.close()


def test_timeouts_of_the_role_do_not_end_it(any_database: Database) -> None:
    grants = [
        f"ALTER ROLE {{role}} SET {name} = '200ms'"
        for name in ("statement_timeout", "idle_in_transaction_session_timeout")
    ]
    if any_database.server.version >= 17:
        grants.append("ALTER ROLE {role} SET transaction_timeout = '200ms'")
    uri = any_database.replicator(*grants)
    with make_slot(any_database, uri) as keeper:
        time.sleep(0.6)
        keeper.check()


def test_a_snapshot_that_is_gone(any_database: Database) -> None:
    for name in ("00000003-0000001B-1", "nonsense"):
        with pytest.raises(SnapshotLost, match=name) as raised:
            keep_snapshot(any_database.uri, name)
        assert raised.value.retry


def test_losing_the_session_is_noticed(any_database: Database) -> None:
    with make_slot(any_database, any_database.replicator()) as keeper:
        any_database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'walflow snapshot'"
        )
        assert not keeper.alive()
        with pytest.raises(SnapshotLost):
            keeper.check()
        with pytest.raises(SnapshotLost):
            keeper.relations([])


def test_tables_rewritten_during_the_copy_are_named(any_database: Database) -> None:
    names = ("kept", "added", "retyped", "vacuumed", "truncated", "dropped")
    for name in names:
        any_database.execute(f"CREATE TABLE {name} AS SELECT 1 AS id")
    oids = {
        name: any_database.execute(f"SELECT '{name}'::regclass::oid::int8")[0][0] for name in names
    }
    with make_slot(any_database, any_database.replicator()) as keeper:
        assert not any(seen.rewritten for seen in keeper.relations(oids.values()))
        any_database.execute(
            "INSERT INTO kept VALUES (2)",
            "VACUUM kept",
            "ALTER TABLE added ADD note text DEFAULT 'x'",
            "ALTER TABLE retyped ALTER id TYPE bigint",
            "VACUUM FULL vacuumed",
            "TRUNCATE truncated",
            "DROP TABLE dropped",
        )
        found = {seen.oid for seen in keeper.relations(oids.values()) if seen.rewritten}
    assert {name for name, oid in oids.items() if oid in found} == {
        "retyped",
        "vacuumed",
        "truncated",
        "dropped",
    }


def test_a_locked_table_keeps_nobody_waiting(any_database: Database) -> None:
    any_database.execute("CREATE TABLE t AS SELECT 1 AS id")
    ((oid,),) = any_database.execute("SELECT 't'::regclass::oid::int8")
    with (
        make_slot(any_database, any_database.replicator()) as keeper,
        any_database.connect(autocommit=False) as blocking,
    ):
        blocking.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        assert [seen.rewritten for seen in keeper.relations([oid])] == [False]
        blocking.execute("TRUNCATE t")
        assert [seen.rewritten for seen in keeper.relations([oid])] == [False]
        blocking.commit()
        assert [seen.rewritten for seen in keeper.relations([oid])] == [True]
