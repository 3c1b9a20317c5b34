"""Bad sources: each gives one clear message, and nothing is made."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from tests.conftest import Database, ServerFactory
from walflow.config import TablesSettings
from walflow.errors import (
    ConfigError,
    NoFreeSender,
    NoFreeSlot,
    NoReplicaIdentity,
    NoReplicationRight,
    NoSelectRight,
    PublicationMissing,
    ReservedColumnName,
    ServerTooOld,
    SlotForeign,
    SlotInUse,
    WalflowError,
    WalLevelNotLogical,
)
from walflow.source.catalog.preflight import Preflight, preflight
from walflow.source.catalog.publication import create_publication
from walflow.source.catalog.server import read_server
from walflow.source.connection import connect
from walflow.testing.postgres import EmbeddedPostgres

TABLES = (
    "CREATE SCHEMA shop",
    "CREATE TABLE shop.orders (id int PRIMARY KEY, note text)",
    'CREATE TABLE shop."Odd ""Name" (id int)',
)


def check(uri: str, **arguments: Any) -> Preflight:
    wanted: dict[str, Any] = {"publication": "walflow", "slot": "walflow_test"} | arguments
    with connect(uri, application_name="walflow test") as connection:
        return preflight(connection, **wanted)


def refusal(uri: str, **arguments: Any) -> WalflowError:
    with pytest.raises(WalflowError) as raised:
        check(uri, **arguments)
    return raised.value


def test_a_role_with_replication_and_select_alone_is_enough(any_database: Database) -> None:
    any_database.execute(*TABLES[:2], "CREATE PUBLICATION walflow FOR TABLE shop.orders")
    uri = any_database.replicator(
        "GRANT USAGE ON SCHEMA shop TO {role}", "GRANT SELECT ON shop.orders TO {role}"
    )
    found = check(uri)
    assert found.warnings == ()
    assert [str(table.name) for table in found.tables] == ["shop.orders"]
    assert not found.slot.exists
    server = found.server
    assert server.major == any_database.server.version
    assert server.may_replicate
    assert not server.superuser
    with connect(uri, application_name="t", replication="database") as replication:
        identity = replication.pgconn.exec_(b"IDENTIFY_SYSTEM")
        assert identity.get_value(0, 0) == str(server.system_identifier).encode()
    assert any_database.execute("SELECT count(*) FROM pg_replication_slots") == [(0,)]


def test_a_missing_publication_comes_with_the_sql_to_make_it(any_database: Database) -> None:
    any_database.execute(*TABLES, "CREATE PUBLICATION other FOR TABLE shop.orders")
    error = refusal(any_database.replicator())
    assert isinstance(error, PublicationMissing)
    assert "other" in error.message
    statement = error.hint.partition("Run: ")[2].partition(";")[0]
    any_database.execute(statement)


def test_no_right_to_replicate(any_database: Database) -> None:
    role = f"{any_database.name}_role_plain"
    any_database.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    uri = any_database.server.uri_for(any_database.name, user=role, password="x")
    error = refusal(uri)
    assert isinstance(error, NoReplicationRight)
    assert f'ALTER ROLE "{role}" REPLICATION;' in error.hint
    assert "rds_replication" in error.hint


def test_membership_in_the_managed_role_counts_as_the_right(database: Database) -> None:
    role = f"{database.name}_role_plain"
    database.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'",
        "CREATE ROLE rds_replication",
        f"GRANT rds_replication TO {role}",
    )
    uri = database.server.uri_for(database.name, user=role, password="x")
    try:
        with connect(uri, application_name="t") as connection:
            assert read_server(connection).may_replicate
    finally:
        database.execute("DROP ROLE rds_replication")


def test_no_right_to_read_comes_with_one_grant_for_all(any_database: Database) -> None:
    any_database.execute(
        *TABLES,
        "CREATE TABLE shop.parts (id int, at int, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
        "CREATE TABLE shop.parts_1 PARTITION OF shop.parts FOR VALUES FROM (0) TO (9)",
        'CREATE PUBLICATION walflow FOR TABLE shop.orders, shop."Odd ""Name", shop.parts'
        " WITH (publish_via_partition_root)",
    )
    uri = any_database.replicator("GRANT SELECT ON shop.parts TO {role}")
    error = refusal(uri)
    assert isinstance(error, NoSelectRight)
    for name in ("shop.orders", 'shop.Odd "Name', "shop.parts_1"):
        assert name in error.message
    any_database.execute(*error.hint.removeprefix("Run: ").rstrip(";").split("; "))
    assert len(check(uri).tables) == 3


def test_row_security_that_would_hide_rows_is_refused(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE PUBLICATION walflow FOR TABLE t",
    )
    uri = any_database.replicator("GRANT SELECT ON t TO {role}")
    error = refusal(uri)
    assert isinstance(error, NoSelectRight)
    any_database.execute(error.hint.removeprefix("As superuser: "))
    assert len(check(uri).tables) == 1


def test_a_start_with_state_leaves_the_problems_of_tables_to_them(any_database: Database) -> None:
    any_database.execute(
        *TABLES[:2],
        "CREATE TABLE named (id int PRIMARY KEY, _lsn int)",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    uri = any_database.replicator()
    assert isinstance(refusal(uri), ReservedColumnName)
    found = check(uri, strict=False)
    assert {str(table.name): type(table.problem) for table in found.tables} == {
        "public.named": ReservedColumnName,
        "shop.orders": NoSelectRight,
    }
    any_database.execute("ALTER TABLE named RENAME _lsn TO lsn")
    assert isinstance(refusal(uri), NoSelectRight)


def test_an_existing_publication_without_identities_is_a_warning(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE keyless (a int)",
        "CREATE TABLE nothing (a int PRIMARY KEY)",
        "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
        "CREATE TABLE late (a int PRIMARY KEY DEFERRABLE)",
        "CREATE TABLE fine (a int PRIMARY KEY)",
        "CREATE PUBLICATION walflow FOR TABLE keyless, nothing, late, fine",
    )
    (warning,) = check(any_database.uri).warnings
    assert "fine" not in warning
    statements = warning.partition("run: ")[2].rstrip(";").split("; ")
    assert len(statements) == 3
    any_database.execute(*statements)
    assert check(any_database.uri).warnings == ()
    any_database.execute("UPDATE keyless SET a = 1", "DELETE FROM nothing", "DELETE FROM late")


def test_inserts_alone_need_no_identity_but_differ(any_database: Database) -> None:
    any_database.execute(
        "CREATE TABLE keyless (a int)",
        "CREATE PUBLICATION walflow FOR TABLE keyless WITH (publish = 'insert')",
    )
    (warning,) = check(any_database.uri).warnings
    assert "does not publish updates, deletes, truncates" in warning


def test_a_publication_of_ours_must_not_break_the_application(any_database: Database) -> None:
    any_database.execute(
        *TABLES,
        "CREATE TABLE parts (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (9)",
        "CREATE UNLOGGED TABLE scratch (id int)",
    )
    with connect(any_database.uri, application_name="t") as connection:
        for patterns in ((), ("shop.*", "public.parts")):
            tables = TablesSettings(include=patterns)
            error = refusal(any_database.uri, create_publication=True, tables=tables)
            assert isinstance(error, NoReplicaIdentity)
            assert 'shop.Odd "Name' in error.message
            assert "public.parts_1" in error.message
            assert "scratch" not in error.message
            assert "orders" not in error.message
        with pytest.raises(NoReplicaIdentity):
            create_publication(connection, "walflow")
        tables = TablesSettings(include=("shop.*",), exclude=("*.Odd*",))
        found = check(any_database.uri, create_publication=True, tables=tables)
        assert found.publication is None
        assert found.tables == ()
        made = create_publication(connection, "walflow", found.create_tables)
        assert made == create_publication(connection, "walflow", found.create_tables)
        assert made.via_root
        assert not made.all_tables
        any_database.execute(*error.hint.partition("run: ")[2].rstrip(";").split("; "))
        assert create_publication(connection, "everything").all_tables


def test_patterns_choose_what_a_publication_is_made_of(any_database: Database) -> None:
    any_database.execute(
        'CREATE TABLE "Mixed" (id int PRIMARY KEY)',
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (9)",
        *TABLES[:2],
    )

    def made_of(*include: str, exclude: tuple[str, ...] = ()) -> list[str]:
        tables = TablesSettings(include=include, exclude=exclude)
        found = check(any_database.uri, create_publication=True, tables=tables)
        return [str(name) for name in found.create_tables]

    assert made_of() == []
    assert made_of("public.Mixed", "shop.o*") == ["public.Mixed", "shop.orders"]
    assert made_of("public.*") == ["public.Mixed", "public.parts"]
    assert made_of(exclude=("public.[Mm]*",)) == ["public.parts", "shop.orders"]
    with pytest.raises(ConfigError, match=r"no table shop\.order in") as raised:
        made_of("public.*", "shop.order")
    assert "Did you mean shop.orders?" in raised.value.hint
    for include in ("public.parts_1", "public.mixed", "nowhere.*"):
        with pytest.raises(ConfigError):
            made_of(include)


def test_tables_that_are_not_chosen_need_nothing(any_database: Database) -> None:
    any_database.execute(
        *TABLES,
        'CREATE TABLE hidden (id int PRIMARY KEY, "_lsn" int)',
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    uri = any_database.replicator(
        "GRANT USAGE ON SCHEMA shop TO {role}", "GRANT SELECT ON shop.orders TO {role}"
    )
    found = check(uri, tables=TablesSettings(include=("shop.orders",)))
    assert found.warnings == ()
    assert [str(table.name) for table in found.tables] == ["shop.orders"]
    (warning,) = check(uri, tables=TablesSettings(include=("nowhere.*",))).warnings
    assert "no tables that tables.include and tables.exclude choose" in warning


def test_a_role_that_may_not_create_the_publication_is_told_who_may(
    any_database: Database,
) -> None:
    any_database.execute(*TABLES[:2])
    uri = any_database.replicator("GRANT USAGE ON SCHEMA shop TO {role}")
    with (
        connect(uri, application_name="t") as connection,
        pytest.raises(PublicationMissing) as raised,
    ):
        create_publication(connection, "walflow")
    any_database.execute(raised.value.hint.partition("run: ")[2])


def test_partitions_published_through_their_root_come_with_a_warning(
    any_database: Database,
) -> None:
    any_database.execute(
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE PUBLICATION walflow FOR TABLE parts WITH (publish_via_partition_root)",
    )
    (warning,) = check(any_database.uri).warnings
    assert "public.parts" in warning


def test_a_column_list_that_leaves_out_the_key_is_a_warning(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int)",
        "CREATE PUBLICATION walflow FOR TABLE t (a)",
    )
    found = check(database.uri)
    assert found.tables[0].schema.key == ()
    assert "column list leaves out columns of its replica identity: id" in found.warnings[0]


def test_a_slot_of_something_else_is_refused(any_database: Database) -> None:
    any_database.execute(
        "CREATE PUBLICATION walflow", "SELECT pg_create_physical_replication_slot('walflow_test')"
    )
    try:
        assert isinstance(refusal(any_database.uri, resync_lost_slot=True), SlotForeign)
    finally:
        any_database.execute("SELECT pg_drop_replication_slot('walflow_test')")


def test_a_slot_in_use_names_its_reader(any_database: Database) -> None:
    any_database.execute("CREATE PUBLICATION walflow")
    with any_database.connect(application_name="somebody else") as other:
        other.execute("SELECT pg_create_logical_replication_slot('walflow_test', 'pgoutput', true)")
        error = refusal(any_database.replicator())
        assert isinstance(error, SlotInUse)
        assert str(other.info.backend_pid) in error.message
        assert "somebody else" in error.message


def test_a_server_that_is_too_old(start_postgres: ServerFactory) -> None:
    error = refusal(start_postgres(13).uri)
    assert isinstance(error, ServerTooOld)
    assert "Postgres 13" in error.message
    assert "14" in error.hint


def test_wal_level_and_free_slots_and_senders() -> None:
    small = {"max_replication_slots": 1, "max_wal_senders": 1}
    with EmbeddedPostgres(settings=small) as server, ExitStack() as held:
        admin = held.enter_context(server.connect())
        admin.execute("CREATE PUBLICATION walflow")
        admin.execute("SELECT pg_create_logical_replication_slot('taken', 'pgoutput')")
        assert isinstance(refusal(server.uri), NoFreeSlot)
        admin.execute("SELECT pg_drop_replication_slot('taken')")
        sender = connect(server.uri, application_name="t", replication="database")
        with sender:
            assert isinstance(refusal(server.uri), NoFreeSender)
            with pytest.raises(NoFreeSender):
                connect(server.uri, application_name="t", replication="database")
        admin.execute("ALTER SYSTEM SET wal_level = 'replica'")
        held.close()
        server.restart()
        error = refusal(server.uri)
        assert isinstance(error, WalLevelNotLogical)
        assert "ALTER SYSTEM" in error.hint
