"""``walflow check``: it tells all that is wrong, what to do, and leaves nothing behind."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.cli.commands import Room, ended
from tests.conftest import Database, ServerFactory, fresh_database
from tests.destinations.reference import copy_of
from tests.pipeline.running import WAIT
from walflow.checks.findings import Area, Facts, Finding, Verdict
from walflow.checks.performing import perform
from walflow.config import load_settings
from walflow.destinations import open_destination
from walflow.destinations.base import TableChanges
from walflow.errors import CheckFailed, PublicationMissing
from walflow.model import Column, Lsn, PgType, TableName, TableSchema
from walflow.pipeline.state.pipeline_notes import write_notes
from walflow.testing.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Check = Callable[..., list[Finding]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Check quickly, in this process."""

    def performed(
        uri: str, *, to: str = "", patience: float = WAIT, **settings: Any
    ) -> list[Finding]:
        given = {
            "source.uri": uri,
            "destination.uri": to or f"iceberg://{tmp_path / 'lake'}",
            "log.folder": tmp_path / "log",
            # Looking for Java takes longer than all the rest.
            "spark.remote": "sc://127.0.0.1:1",
            **{name.replace("__", "."): value for name, value in settings.items()},
        }
        facts = Facts(load_settings(None, given, {}), quick=True, patience=patience)
        return list(perform(facts))

    return performed


def wrong(findings: list[Finding]) -> list[tuple[str, str]]:
    return [
        (found.verdict, found.check)
        for found in findings
        if found.verdict in (Verdict.WARNING, Verdict.ERROR)
    ]


def one(findings: list[Finding], check: str, verdict: Verdict) -> Finding:
    """The only one of its kind."""
    (found,) = [f for f in findings if f.check == check and f.verdict is verdict]
    return found


def sql_of(found: Finding) -> list[str]:
    """The statements in a hint, as one would paste them."""
    statements = re.findall(r"\b(?:CREATE|ALTER|GRANT)\b[^;]*;", found.hint)
    assert statements, found.hint
    return statements


def left_on(database: Database) -> tuple[list[Any], list[Any]]:
    """Slots and publications; a temporary slot goes a moment after its session."""
    deadline = time.monotonic() + 60
    while slots := database.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    ):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return slots, database.execute("SELECT pubname FROM pg_publication")


def test_all_is_well_on_every_version(any_database: Database, check: Check, tmp_path: Path) -> None:
    any_database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, price numeric(10,2), tags text[])",
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
    )
    findings = check(any_database.uri, source__create_publication=True)
    # Truncating single partitions is not published: that is told of every publication of them.
    assert wrong(findings) == [("warning", "publication")]
    assert {found.area for found in findings} == set(Area)
    made = [found.message for found in findings if found.area is Area.SOURCE]
    assert any("created a temporary slot and dropped it" in message for message in made)
    one(findings, "writing", Verdict.SKIPPED)
    assert left_on(any_database) == ([], [])
    assert list(tmp_path.iterdir()) == []


def test_all_that_is_wrong_is_told_at_once_and_its_sql_mends_it(
    database: Database, check: Check
) -> None:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        'CREATE TABLE "Odd.Name" (body text)',
        "REVOKE ALL ON SCHEMA public FROM public",
    )
    role = f"{database.name}_role_plain"
    database.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret-word'")
    uri = database.server.uri_for(database.name, user=role, password="secret-word")

    findings = check(uri)
    assert wrong(findings) == [("error", "role"), ("error", "publication")]
    assert "secret-word" not in str(findings)
    database.execute(*sql_of(one(findings, "role", Verdict.ERROR))[:1])
    database.execute(*sql_of(one(findings, "publication", Verdict.ERROR)))

    findings = check(uri)
    assert wrong(findings) == [("error", "rights"), ("warning", "replica identity")]
    for name in ("rights", "replica identity"):
        verdict = Verdict.ERROR if name == "rights" else Verdict.WARNING
        database.execute(*sql_of(one(findings, name, verdict)))

    findings = check(uri)
    assert wrong(findings) == []
    told = [found.message for found in findings if found.check == "replica identity"]
    assert told == [
        "public.Odd.Name: updates and deletes find rows by all their columns (REPLICA IDENTITY "
        "FULL, no primary key), which takes longer",
        "public.orders: updates and deletes find rows by id",
    ]


def test_a_publication_that_could_not_be_made(database: Database, check: Check) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE log (body text)")
    # Its tables are looked at nevertheless, and each problem is told once.
    findings = check(database.uri, source__create_publication=True)
    assert wrong(findings) == [("error", "publication")]
    assert one(findings, "publication", Verdict.ERROR).code == "NoReplicaIdentity"
    assert "would have 2 tables" in one(findings, "publication", Verdict.OK).message

    database.execute("DROP TABLE log")
    uri = database.replicator("GRANT SELECT ON orders TO {role}")
    found = one(check(uri, source__create_publication=True), "publication", Verdict.ERROR)
    assert "may not create the publication" in found.message
    assert left_on(database) == ([], [])
    database.execute(*sql_of(found))
    assert wrong(check(uri)) == []


def test_a_server_that_cannot_be_reached_does_not_keep_from_looking_at_the_rest(
    check: Check, tmp_path: Path
) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "state.db").write_text("dear diary")
    findings = check("postgresql://me@127.0.0.1:1/shop", log__max_bytes=1 << 60)
    assert wrong(findings) == [("error", "connection"), ("error", "store"), ("warning", "space")]
    assert one(findings, "store", Verdict.ERROR).code == "StoreForeign"
    hint = one(findings, "space", Verdict.WARNING).hint
    limit = re.search(r"--set log\.max_bytes=(\d+)", hint)
    assert limit is not None
    found = check("postgresql://me@127.0.0.1:1/shop", log__max_bytes=limit[1])
    assert wrong(found)[-1] == ("error", "store")


def test_what_is_left_out_is_told(database: Database, check: Check) -> None:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text, card text)",
        "CREATE TABLE audit_log (id int PRIMARY KEY)",
        "CREATE PUBLICATION walflow FOR TABLE orders (id, note) WHERE (id > 5), audit_log",
    )
    findings = check(database.uri, tables__exclude="*.audit_*")
    assert [found.message for found in findings if found.check == "left out"] == [
        "published, but left out by tables.include and tables.exclude: public.audit_log",
        "public.orders: the publication has only rows with (id > 5) and 1 column less",
    ]
    assert wrong(findings) == []


def test_types_are_told(database: Database, check: Check) -> None:
    database.execute(
        "CREATE TYPE mood AS ENUM ('good')",
        "CREATE TABLE t (id int PRIMARY KEY, m mood, at timestamptz, n numeric, ns numeric[],"
        " p numeric(9,2), words text[], spans interval[])",
        "CREATE PUBLICATION walflow FOR TABLE t",
    )
    findings = check(database.uri)
    kept, strings, *details = [
        found for found in findings if found.check == "types" and found.verdict is Verdict.OK
    ]
    assert kept.message == "4 of 8 columns keep their types"
    assert strings.message.endswith(": public.t.m (mood), public.t.spans (interval[])")
    assert all(found.detail for found in details)
    assert "n numeric → decimal(38,18)" in details[-1].message
    numbers = one(findings, "types", Verdict.WARNING)
    assert numbers.message.endswith("public.t.n (numeric), public.t.ns (numeric[]).")
    # Who has said what is wanted is not warned.
    assert wrong(check(database.uri, types__numeric="double")) == []


@pytest.fixture
def newest(start_postgres: ServerFactory) -> Iterator[Database]:
    """On the version that has all settings of slots."""
    yield from fresh_database(start_postgres(18))


def test_what_becomes_of_the_slot(newest: Database, check: Check) -> None:
    database = newest
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION walflow")
    database.execute("ALTER PUBLICATION walflow ADD TABLE t")
    settings = {"max_slot_wal_keep_size": "10GB", "idle_replication_slot_timeout": "1d"}
    database.execute(
        "SELECT pg_create_physical_replication_slot('walflow_standby')",
        *(f"ALTER SYSTEM SET {name} = '{value}'" for name, value in settings.items()),
        "SELECT pg_reload_conf()",
    )
    try:
        deadline = time.monotonic() + 60
        while database.execute("SHOW max_slot_wal_keep_size") != [("10GB",)]:
            assert time.monotonic() < deadline
        findings = check(database.uri)
        assert wrong(findings) == [
            ("warning", "slot survival"),
            ("warning", "slot survival"),
            ("warning", "failover"),
        ]
        assert "10 GB of log wait for it" in findings[5].message
        assert "nothing has read it for 24.0 h" in findings[6].message
        assert "--set source.failover=true" in one(findings, "failover", Verdict.WARNING).hint
        findings = check(database.uri, source__on_slot_lost="resync", source__failover=True)
        assert wrong(findings) == [("warning", "failover")]
        assert "synchronized_standby_slots" in one(findings, "failover", Verdict.WARNING).hint
        findings = check(database.uri, source__slot="walflow_standby")
        assert wrong(findings)[0] == ("error", "slot")
        assert [found.code for found in findings if found.code] == ["SlotForeign"]
    finally:
        database.execute(
            "SELECT pg_drop_replication_slot('walflow_standby')",
            *(f"ALTER SYSTEM RESET {name}" for name in settings),
            "SELECT pg_reload_conf()",
        )


def test_a_server_that_has_just_enough(check: Check) -> None:
    with EmbeddedPostgres(settings={"max_replication_slots": 1, "max_wal_senders": 1}) as server:
        with server.connect() as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
            connection.execute("CREATE PUBLICATION walflow FOR TABLE t")
            assert wrong(check(server.uri)) == [
                ("warning", "free slots"),
                ("warning", "free senders"),
            ]
            connection.execute("SELECT pg_create_physical_replication_slot('only')")
        findings = check(server.uri)
        assert wrong(findings)[0] == ("error", "slot")
        assert [found.code for found in findings if found.code] == ["NoFreeSlot"]


def test_transactions_that_keep_a_slot_from_being_made(database: Database, check: Check) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION walflow")
    with database.connect(autocommit=False) as busy:
        busy.execute("INSERT INTO t VALUES (1)")
        found = one(check(database.uri, patience=0.5), "free slots", Verdict.WARNING)
    assert "some have not ended in 0.5 s" in found.message
    assert "SELECT pid, xact_start" in found.hint
    assert left_on(database)[0] == []


def test_stores(database: Database, check: Check, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION walflow")
    database.execute("ALTER PUBLICATION walflow ADD TABLE t")
    schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'walflow'"
    found = one(check(database.uri, store__uri=database.uri), "store", Verdict.OK)
    assert found.message.endswith("can be created (this was rolled back)")
    assert database.execute(schemas) == [(0,)]

    from walflow.stores import open_store

    given = {"source.uri": "x", "destination.uri": "x", "store.uri": database.uri}
    open_store(load_settings(None, given, {})).close()
    found = one(check(database.uri, store__uri=database.uri), "store", Verdict.OK)
    assert found.message.endswith("can be written")
    assert database.execute("SELECT count(*) FROM walflow.table_mappings") == [(0,)]

    # Every note of a change would be another change.
    database.execute("ALTER PUBLICATION walflow ADD TABLES IN SCHEMA walflow")
    findings = check(database.uri, store__uri=database.uri)
    assert ("error", "publication") in wrong(findings)

    file = tmp_path / "deep" / "er" / "state.db"
    found = one(check(database.uri, store__uri=f"sqlite:///{file}"), "store", Verdict.OK)
    assert found.message == f"the store {file} can be created"
    assert not (tmp_path / "deep").exists()
    one(check(database.uri, store__uri="memory:"), "store", Verdict.WARNING)


class Bare:
    """A destination that can do no more than it must."""

    name = "bare"

    def truncate_table(self, table: TableSchema) -> None: ...
    def write_table_rows(self, table: TableSchema, rows: DataFrame) -> None: ...
    def write_events(self, events: TableChanges) -> None: ...


def test_destinations(database: Database, check: Check, tmp_path: Path) -> None:
    database.execute('CREATE TABLE t (id int, "_LSN" int)', "CREATE PUBLICATION walflow")
    database.execute("ALTER PUBLICATION walflow ADD TABLE t", "ALTER TABLE t REPLICA IDENTITY FULL")
    findings = check(database.uri, to="python:tests.cli.test_check:Bare")
    assert "at least once" in one(findings, "delivery", Verdict.OK).message
    assert "no check_writable" in one(findings, "writing", Verdict.SKIPPED).message
    # A column of the source has a name of a lake's; and there cannot be a folder there.
    (tmp_path / "file").touch()
    findings = check(database.uri, to=f"delta://{tmp_path / 'file' / 'lake'}")
    assert wrong(findings) == [("error", "folder"), ("error", "schema")]
    assert "effectively once" in one(findings, "delivery", Verdict.OK).message
    assert wrong(check(database.uri, to="excel:///sheet")) == [("error", "destination")]


@pytest.mark.spark
@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_a_lake_is_really_written(
    format: str, database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION walflow")
    given = {
        "source.uri": database.uri,
        "destination.uri": f"{format}://{tmp_path / 'data' / 'lake'}",
        "log.folder": tmp_path / "log",
    }
    findings = list(perform(Facts(load_settings(None, given, {}), spark=spark)))
    assert "a scratch table was created and removed" in one(findings, "writing", Verdict.OK).message
    assert list(tmp_path.iterdir()) == []
    # What is there already stays; and a folder in the way is told of by Spark itself.
    (tmp_path / "data" / "lake").mkdir(parents=True)
    (tmp_path / "data" / "lake" / "_walflow").write_text("in the way")
    findings = list(perform(Facts(load_settings(None, given, {}), spark=spark)))
    assert one(findings, "destination", Verdict.ERROR).code == "DestinationError"
    assert [file.name for file in (tmp_path / "data" / "lake").rglob("*")] == ["_walflow"]


@pytest.mark.spark
@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_tables_of_another_pipeline(
    format: str, database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    """The one that was tried by options on the command line, and then got a file and a name."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE u (id int PRIMARY KEY)",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    given = {
        "source.uri": database.uri,
        "destination.uri": f"{format}://{tmp_path / 'lake'}",
        "log.folder": tmp_path / "logs" / "shop",
        "name": "shop",
    }
    settings = load_settings(None, given, {})
    (system,) = database.execute("SELECT system_identifier FROM pg_control_system()")
    source = f"{system[0]}/{database.name}"
    findings = list(perform(Facts(settings, spark=spark)))
    assert wrong(findings) == []
    assert "belongs to another pipeline" in one(findings, "owner", Verdict.OK).message
    (tmp_path / "logs" / "default").mkdir(parents=True)
    first = load_settings(
        None, {**given, "name": "default", "log.folder": tmp_path / "logs" / "default"}, {}
    )
    write_notes(first.with_publication("walflow"), source)
    opened = open_destination(first, source, spark=spark, warm_up=False)
    for name in ("t", "u"):
        columns = (Column("id", PgType("integer", 23, 23), "int", False, 1),)
        schema = TableSchema(1, TableName("public", name), columns, ("id",))
        opened.destination.copy(copy_of(schema, [], Lsn(1)))
    opened.close()
    findings = list(perform(Facts(settings, spark=spark)))
    assert wrong(findings) == [("warning", "neighbours"), ("error", "owner")]
    clash = one(findings, "owner", Verdict.ERROR)
    assert clash.code == "DestinationForeign"
    assert "belongs to the pipeline 'default'" in clash.message
    assert "1 more table" in clash.message
    assert "--name default" in clash.hint
    assert "--name default" in one(findings, "neighbours", Verdict.WARNING).hint
    # What is known without Spark is told without it.
    findings = list(perform(Facts(settings, quick=True)))
    assert wrong(findings) == [("warning", "neighbours")]
    assert wrong(list(perform(Facts(first, spark=spark)))) == []


def arguments(database: Database, room: Room, *more: str) -> list[str]:
    lake = f"iceberg://{room.path / 'lake'}"
    log = str(room.path / "log")
    return ["check", "--quick", "--from", database.uri, "--to", lake, "--log", log, *more]


def test_the_command(database: Database, room: Room) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n numeric)")
    began = time.monotonic()
    ran = room.run(*arguments(database, room))
    print(f"walflow check --quick: {time.monotonic() - began:.1f} s")
    assert ran.returncode == PublicationMissing.exit_code
    assert ran.stderr == ""
    assert "\nsource\n  ok         connected to Postgres" in ran.stdout
    # Not broken into lines: it is to be pasted.
    assert '\n             → Run: CREATE PUBLICATION "walflow_default" FOR ALL TABLES' in ran.stdout
    assert ran.stdout.endswith("\n1 error among 14 checks.\n")
    create = "--create-publication"
    ran = room.run(*arguments(database, room, create, "--json"))
    told = json.loads(ran.stdout)
    assert (ran.returncode, told["ok"], told["errors"], told["warnings"]) == (0, True, 0, 1)
    assert {"area", "check", "verdict", "message", "hint", "code"} == told["checks"][0].keys()
    ran = room.run(*arguments(database, room, create, "--strict"))
    assert ran.returncode == CheckFailed.exit_code
    assert "n numeric → decimal(38,18)" not in ran.stdout
    assert room.leftovers() == []


def test_ctrl_c_leaves_nothing(database: Database, room: Room) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION walflow")
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'"
    patient = arguments(database, room, "--patience", str(WAIT))
    with busy(database), ended(room.start(*patient)) as process:
        deadline = time.monotonic() + WAIT
        while database.execute(waiting + " AND application_name LIKE '%check'") == [(0,)]:
            assert time.monotonic() < deadline
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert ("Traceback" in err, "Stopped." in err) == (False, True)
    assert "change log" not in out
    assert left_on(database)[0] == []
    assert room.leftovers() == []


def busy(database: Database) -> psycopg.Connection[Any]:
    """A transaction that is open, and so keeps slots from being made."""
    connection = database.connect(autocommit=False)
    connection.execute("INSERT INTO t VALUES (1)")
    return connection
