"""``walflow init``: what it writes is a settings file that says what the database has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from tests.cli.commands import Room
from tests.conftest import Database
from walflow.cli import _exit_code
from walflow.cli.init_text import written_destination, written_source
from walflow.config import Settings, load_settings
from walflow.config.schema import settings_schema
from walflow.pipeline.state.pipeline_notes import write_notes
from walflow.source.catalog.preflight import preflight
from walflow.source.catalog.publication import create_publication
from walflow.source.connection import connect

PASSWORD = "p@ss/w:rd ?#"
TABLES = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, at point, note text, tags tsvector[])",
    "INSERT INTO orders SELECT n FROM generate_series(1, 1000) AS n",
    "CREATE TABLE audit (what text)",
    "CREATE SCHEMA shop",
    'CREATE TABLE shop."Odd *#\n\'name" (a int, b int, PRIMARY KEY (b, a))',
    "CREATE TABLE shop.whole (a int)",
    "ALTER TABLE shop.whole REPLICA IDENTITY FULL",
    "CREATE TABLE shop.parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE shop.parts_1 PARTITION OF shop.parts FOR VALUES FROM (0) TO (9)",
    'CREATE TABLE taken (id int PRIMARY KEY, "_lsn" int)',
    "ANALYZE orders",
)


@pytest.fixture
def source(database: Database) -> str:
    """A database with tables of all kinds, and a role with a password that has everything."""
    database.execute(*TABLES)
    role = f"{database.name}_init"
    database.execute(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
    return database.server.uri_for(database.name, user=role, password=PASSWORD)


def loaded(file: Path) -> Settings:
    return load_settings(file, {}, {"WALFLOW_SOURCE_PASSWORD": PASSWORD})


def uncommented(text: str) -> str:
    """The file with all its defaults and examples said."""
    return re.sub(r"^( *)#(?=- |[a-z_]+:)", r"\1", text, flags=re.MULTILINE)


def test_a_database_without_a_publication(room: Room, database: Database, source: str) -> None:
    file = room.path / "shop.yaml"
    ran = room.run("init", file, "--from", source, "--to", "iceberg:///data/lake")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ""
    text = file.read_text(encoding="utf-8")
    settings = loaded(file)
    assert settings.source.uri.get_secret_value() == source
    assert settings.destination.uri == "iceberg:///data/lake"
    assert settings.name == database.name
    assert settings.source.create_publication
    # What can be published is, and the rest is there behind a #.
    assert settings.tables.include == (
        "public.orders",
        "shop.Odd [*]#\n'name",
        "shop.parts",
        "shop.whole",
    )
    assert re.search(r"- public\.orders  # about 1,000 rows, \d+ kB, key id$", text, re.MULTILINE)
    assert "- shop.whole  # about 0 rows, 0 B, no key: rows are found by all columns" in text
    assert "public.orders: these become strings: at (point), tags (tsvector[])" in text
    assert "audit has no primary key: updates and deletes need REPLICA IDENTITY FULL:" in text
    assert '    #   ALTER TABLE "public"."audit" REPLICA IDENTITY FULL;\n' in text
    assert "    #- public.audit  # " in text
    assert "key a, b" in text
    assert "    #- public.taken  # " in text
    assert "Tables behind a # cannot be followed as they are." in text
    # No secret, and what to do about that.
    for shown in (text, ran.stderr):
        assert PASSWORD not in shown
        assert quote(PASSWORD, safe="") not in shown
    assert "export WALFLOW_SOURCE_PASSWORD=…" in ran.stderr
    assert ran.stderr.count("Warning:") == text.count("# WARNING:") == 2
    assert ran.stderr.endswith(f"  walflow check {file}\n  walflow run {file}\n")
    # Editors find the schema.
    assert text.startswith("# yaml-language-server: $schema=walflow.schema.json\n")
    assert (room.path / "walflow.schema.json").read_text(encoding="utf-8") == settings_schema()
    # It is one that a pipeline starts with.
    with connect(source, application_name="test") as session:
        found = preflight(
            session,
            publication=settings.publication,
            slot=settings.slot,
            create_publication=settings.source.create_publication,
            tables=settings.tables,
        )
        assert len(found.create_tables) == 4
        create_publication(session, "walflow", found.create_tables)


def test_defaults_and_examples_are_settings(room: Room, source: str) -> None:
    file = room.path / "all.yaml"
    assert room.run("init", file, "--from", source).returncode == 0
    written = loaded(file)
    assert written.destination.uri == f"iceberg://{room.path}/lake"
    every = uncommented(file.read_text(encoding="utf-8"))
    file.write_text(every, encoding="utf-8")
    settings = loaded(file)
    keys = yaml.safe_load(every)
    assert set(Settings.model_json_schema()["properties"]) - set(keys) == {"copy", "maintenance"}
    assert set(keys["source"]) >= {"publication", "slot", "tls"}
    assert "public.audit" in settings.tables.include
    # Those that are not examples are what they are without the file.
    assert settings.batch == written.batch
    assert settings.apply.model_copy(update={"tables": {}}) == written.apply
    assert settings.types == written.types
    assert settings.table_error_retry_delay_ms == written.table_error_retry_delay_ms
    assert settings.log_folder == written.log_folder
    assert settings.slot == written.slot
    assert settings.max_table_sync_workers == written.max_table_sync_workers


def test_a_publication_is_listed_and_followed_as_it_is(
    room: Room, database: Database, source: str
) -> None:
    database.execute("CREATE PUBLICATION mine FOR TABLE orders, audit")
    ran = room.run("init", "-", "--from", source, "--publication", "mine", "--name", "x")
    assert ran.returncode == 0, ran.stderr
    file = room.path / "printed.yaml"
    file.write_text(ran.stdout, encoding="utf-8")
    settings = loaded(file)
    assert (settings.name, settings.source.publication) == ("x", "mine")
    assert not settings.source.create_publication
    assert not settings.tables.choose
    assert "#- public.orders  # about" in ran.stdout
    assert "shop.parts" not in ran.stdout
    assert "are published and have no replica identity" in " ".join(ran.stderr.split())
    assert "$schema" not in ran.stdout
    assert ran.stderr.endswith("  walflow check pipeline.yaml\n  walflow run pipeline.yaml\n")
    assert room.leftovers() == ["printed.yaml"]


def test_no_file_is_overwritten_unasked(room: Room, database: Database) -> None:
    file = room.path / "pipeline.yaml"
    file.write_text("mine")
    ran = room.run("init", file, "--from", database.uri)
    assert ran.returncode == 2
    assert "--force" in ran.stderr
    assert file.read_text() == "mine"
    assert room.run("init", file, "--from", database.uri, "--force").returncode == 0
    assert "There are no tables in the database yet." in file.read_text()
    assert load_settings(file, {}, {"WALFLOW_SOURCE_PASSWORD": "x"}).tables.include == ()
    ran = room.run("init", room.path / "none" / "x.yaml", "--from", database.uri)
    assert ran.returncode == 2
    assert "cannot be written: No such file or directory" in ran.stderr
    ran = room.run("init", file, "--force", "--from", "mysql://x")
    assert ran.returncode == 3
    assert "no tables" in file.read_text()


def test_what_a_role_lacks_is_said_with_the_sql(room: Room, database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    role = f"{database.name}_poor"
    database.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    source = database.server.uri_for(database.name, user=role, password="x")
    ran = room.run("init", "-", "--from", source)
    assert ran.returncode == 0, ran.stderr
    shown = " ".join(ran.stderr.split())
    assert f'ALTER ROLE "{role}" REPLICATION;' in shown
    assert f'GRANT SELECT ON "public"."t" TO "{role}";' in shown
    assert "#- public.t" in ran.stdout


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("postgres://h", "postgresql://h/"),
        (
            "postgresql://u:p%40@a:1,b:2/d?sslmode=require",
            "postgresql://u:$@a:1,b:2/d?sslmode=require",
        ),
        ("host=h user='a b' password='x y' dbname=d/e", "postgresql://a%20b:$@h/d%2Fe"),
        ("host=/run/pg port=5 dbname=d", "postgresql:///d?host=/run/pg&port=5"),
        ("postgresql://[::1]:5/d", "postgresql://[::1]:5/d"),
    ],
)
def test_sources_are_written_without_their_passwords(uri: str, expected: str) -> None:
    written = written_source(uri)
    assert written.text == expected.replace("$", "${WALFLOW_SOURCE_PASSWORD}")
    assert bool(written.variables) == ("$" in expected)


def test_destinations_are_written_without_their_secrets() -> None:
    assert written_destination("iceberg:///a/b").text == "iceberg:///a/b"
    written = written_destination("http://u:p@h/${x}")
    assert written.text == "http://u:${WALFLOW_DESTINATION_PASSWORD}@h/$${x}"
    assert written.variables == ("WALFLOW_DESTINATION_PASSWORD",)
    assert written_destination("http://h/?token=x").text == ""
    assert written_destination("http://h/?token=x").variables == ("WALFLOW_DESTINATION__URI",)


def test_a_pipeline_that_is_there_is_gone_on_with(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was started by options alone, and that brings this database to this place."""
    monkeypatch.setenv("HOME", str(tmp_path))
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    ends = ("--from", database.uri, "--to", "iceberg:///data/lake")
    log = tmp_path / ".walflow" / "elsewhere"
    log.mkdir(parents=True)
    said: dict[str, Any] = {
        "name": "first_try",
        "source.uri": database.uri,
        "source.slot": "a_slot",
        "destination.uri": "iceberg:///data/lake",
        "tables.include": ["public.*"],
        "apply.tables": {"public.orders": {"mode": "history"}},
        "maintenance.target_file_bytes": 1 << 20,
        "log.folder": str(log),
    }
    settings = load_settings(None, said, {}).with_publication("walflow")
    (system,) = database.execute("SELECT system_identifier FROM pg_control_system()")
    write_notes(settings, f"{system[0]}/{database.name}")

    def written(*more: str) -> tuple[Settings, str]:
        file = tmp_path / "pipeline.yaml"
        assert _exit_code(["init", str(file), "--force", *ends, *more]) == 0
        environment = {"WALFLOW_SOURCE_PASSWORD": "x"}
        return load_settings(file, {}, environment), file.read_text(encoding="utf-8")

    found, text = written()
    assert (found.name, found.slot, found.publication) == ("first_try", "a_slot", "walflow")
    assert found.log_folder == log
    assert found.tables == settings.tables
    assert found.apply == settings.apply
    assert "The file is for the pipeline first_try" in text
    assert "not in the file: maintenance.target_file_bytes" in " ".join(text.split("\n# "))
    # Another name is another pipeline: that is warned of.
    found, text = written("--name", "shop")
    assert (found.name, found.publication) == ("shop", "walflow_shop")
    assert "To use that one: --name first_try" in " ".join(text.split("\n# "))
    # So is another place, but rightly.
    found, text = written("--to", "iceberg:///data/other")
    assert found.name == database.name
    assert "WARNING" not in text
