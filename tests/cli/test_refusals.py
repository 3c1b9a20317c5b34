"""Bad input: one message with cause and advice, its own exit code, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.commands import Room
from tests.conftest import Database
from tests.pipeline.capturing import wait_for
from tests.pipeline.running import WAIT
from walflow.cli.failures import report
from walflow.errors import WalflowError
from walflow.testing.postgres import EmbeddedPostgres

SECRET = "hunter2hunter2"


def refused(room: Room, code: int, source: str, *more: str | Path, to: Path | None = None) -> str:
    """Run, and check what is the same for every refusal; gives the message."""
    log = room.path / "log"
    before = set(room.leftovers())
    lake = room.path / "lake" if to is None else to
    ran = room.run("run", "--from", source, "--to", f"iceberg://{lake}", "--log", log, *more)
    assert ran.returncode == code, ran.stderr
    assert ran.stdout == ""
    assert ran.stderr.count("Error:") == 1
    assert "Traceback" not in ran.stderr
    assert SECRET not in ran.stderr
    assert set(room.leftovers()) == before
    return ran.stderr


def test_a_source_that_is_no_uri(room: Room) -> None:
    message = refused(room, 3, f"mysql://root:{SECRET}@db/shop")
    assert "What to do: The form is postgresql://" in message


def test_a_uri_with_an_unescaped_password(room: Room) -> None:
    refused(room, 3, f"postgresql://root:{SECRET}/x@db:5432/shop")


def test_a_host_that_does_not_answer(room: Room) -> None:
    message = refused(room, 11, f"postgresql://root:{SECRET}@127.0.0.1:1/shop")
    assert "127.0.0.1:1" in message
    assert "What to do:" in message


def test_a_wrong_password(room: Room, database: Database) -> None:
    source = database.server.uri_for(database.name, user="postgres", password=SECRET)
    assert "password authentication failed" in refused(room, 12, source)


def test_a_destination_of_no_known_kind(room: Room, database: Database) -> None:
    ran = room.run(
        "run", "--from", database.uri, "--to", "excel:///sheet", "--create-publication",
        "--log", room.path / "log",
    )  # fmt: skip
    assert ran.returncode == 3
    assert "iceberg" in ran.stderr
    assert room.leftovers() == []
    assert nothing_made(database)


def test_an_unknown_setting_names_the_one_that_was_meant(room: Room, database: Database) -> None:
    message = refused(room, 2, database.uri, "--set", "batch.max_fil_ms=100")
    assert "did you mean batch.max_fill_ms?" in message


def test_settings_that_are_missing(room: Room) -> None:
    ran = room.run("run")
    assert ran.returncode == 2
    assert "source.uri: is not set" in ran.stderr
    assert "destination.uri: is not set" in ran.stderr


def test_a_missing_publication(room: Room, database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    assert "CREATE PUBLICATION" in refused(room, 18, database.uri)
    assert nothing_made(database)


def test_an_unknown_table(room: Room, database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    message = refused(room, 2, database.uri, "--create-publication", "--table", "public.nowhere")
    assert "public.nowhere" in message
    assert nothing_made(database)


def test_a_role_that_may_not_replicate(room: Room, database: Database) -> None:
    role = f"{database.name}_role_plain"
    database.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET}'", "CREATE PUBLICATION walflow")
    source = database.server.uri_for(database.name, user=role, password=SECRET)
    assert f'ALTER ROLE "{role}" REPLICATION;' in refused(room, 15, source)


def test_a_slot_that_another_reads(room: Room, database: Database) -> None:
    database.execute(
        "CREATE PUBLICATION walflow",
        "SELECT pg_create_logical_replication_slot('cli_taken', 'pgoutput')",
    )
    command: list[str | Path] = [database.server.pg_recvlogical, "-d", database.uri]
    command += ["-S", "cli_taken", "--start", "-f", "/dev/null", "-o", "proto_version=1"]
    reader = subprocess.Popen([*command, "-o", "publication_names=walflow"])
    try:
        active = "SELECT active FROM pg_replication_slots WHERE slot_name = 'cli_taken'"
        wait_for(lambda: database.execute(active) == [(True,)], WAIT, "the slot is read")
        refused(room, 20, database.uri, "--slot", "cli_taken")
    finally:
        reader.terminate()
        reader.wait(WAIT)


def test_a_change_log_of_another_pipeline(room: Room, database: Database) -> None:
    log = room.path / "log"
    log.mkdir()
    (log / "diary.txt").write_text("dear diary")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    message = refused(room, 32, database.uri, "--create-publication")
    assert "diary.txt" in message
    assert [file.name for file in log.iterdir()] == ["diary.txt"]
    assert nothing_made(database)


def test_a_destination_that_cannot_be_written(room: Room, database: Database) -> None:
    (room.path / "file").touch()
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    message = refused(
        room, 50, database.uri, "--create-publication", to=room.path / "file" / "lake"
    )
    assert "cannot be written" in message
    assert f"{room.path / 'file'} is not a folder" in " ".join(message.split())
    assert nothing_made(database)


def test_a_metrics_address_that_is_taken(room: Room, database: Database) -> None:
    message = refused(room, 2, database.uri, "--metrics", f"127.0.0.1:{database.server.port}")
    assert "the port is in use" in message


def test_wal_level_and_slots_of_a_server_that_is_not_prepared(room: Room) -> None:
    with EmbeddedPostgres(settings={"wal_level": "replica"}) as server:
        assert "ALTER SYSTEM SET wal_level" in refused(room, 14, server.uri)
    with EmbeddedPostgres(settings={"max_replication_slots": 1}) as server:
        with server.connect() as connection:
            connection.execute("CREATE PUBLICATION walflow")
            connection.execute("SELECT pg_create_physical_replication_slot('only')")
        assert "max_replication_slots" in refused(room, 16, server.uri)


def test_a_full_disk(room: Room, database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with small_disk(room.path / "disk") as disk:
        (disk / "filler").write_bytes(bytes(disk_free(disk)))
        arguments = (database.uri, "--create-publication", "--log", disk / "log")
        # The store is there too, unless it is named, and opened first.
        assert "Free space" in refused(room, 70, *arguments)
        assert "Free space" in refused(room, 31, *arguments, "--set", "store.uri=memory:")
        assert [entry.name for entry in disk.iterdir()] == ["filler"]
    assert nothing_made(database)


def test_what_nobody_foresaw_is_one_line_and_70(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(KeyError("lost"), debug=False) == 99
    message = capsys.readouterr().err
    assert "KeyError: 'lost'" in message
    assert "--debug" in message
    assert "Traceback" not in message


def test_debug_shows_the_stack_but_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WalflowError) as raised:
        raise WalflowError(f"cannot read postgresql://me:{SECRET}@db/x", hint="mend it")
    assert report(raised.value, debug=True) == 1
    message = capsys.readouterr().err
    assert "Traceback" in message
    assert message.count("What to do: mend it") == 1
    assert SECRET not in message


def nothing_made(database: Database) -> bool:
    made = database.execute(
        "SELECT count(*) FROM pg_publication UNION ALL"
        " SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    )
    return made == [(0,), (0,)]


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "walflow-test", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(
            f"a small file system cannot be mounted here ({mounted.stderr.strip()}): run as root "
            "with CAP_SYS_ADMIN to test a full disk"
        )
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
        folder.rmdir()


def disk_free(folder: Path) -> int:
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize
