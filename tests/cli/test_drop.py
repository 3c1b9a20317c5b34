"""``walflow drop`` as a user meets it; what it removes is tested with the pipeline."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.cli.commands import WALFLOW, Room, ended
from tests.cli.stored import opened, put_table
from tests.conftest import Database
from tests.pipeline.running import WAIT
from walflow.model import Column, PgType, Phase, TableName, TableSchema
from walflow.pipeline.state.lease import LeaseKeeper
from walflow.pipeline.timing import Timing
from walflow.source.catalog.publication import create_publication

MADE = (
    "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()"
    " UNION ALL SELECT pubname::text FROM pg_publication ORDER BY 1"
)


@pytest.fixture
def made(database: Database, room: Room) -> list[tuple[str]]:
    """A slot, a publication and a store; gives what there is on the source."""
    with database.connect() as connection:
        create_publication(connection, "shop", (), pipeline="shop")
        connection.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot(database)]
        )
    with opened(room.path / "log") as store:
        put_table(store, 1, "public.orders", Phase.READY)
        whole = PgType("integer", 23, 23)
        columns = (Column("id", whole, "int", False, 1),)
        store.store_table_schema(TableSchema(1, TableName("public", "orders"), columns, ("id",)))
    return database.execute(MADE)


def slot(database: Database) -> str:
    return f"{database.name}_slot"


def arguments(database: Database, room: Room, *more: str, source: str | None = None) -> list[str]:
    return [
        "drop",
        *("--from", source or database.uri, "--to", f"iceberg://{room.path / 'lake'}"),
        *("--name", "shop", "--slot", slot(database), "--publication", "shop"),
        *("--log", str(room.path / "log"), *more),
    ]


def test_without_a_terminal_it_wants_yes(
    database: Database, room: Room, made: list[tuple[str]]
) -> None:
    ran = room.run(*arguments(database, room))
    assert ran.returncode == 2
    assert ran.stdout.splitlines() == [
        "These things of the pipeline shop will be removed:",
        f"  the replication slot {slot(database)}",
        "  the publication shop",
        "  the destination's table public.orders",
        "  all other tables in the destination that are marked as this pipeline's",
        "  the pipeline's state in the store",
    ]
    assert "What to do: Run it in a terminal, or give --yes." in ran.stderr
    assert database.execute(MADE) == made


def test_with_yes_it_removes_and_can_be_repeated(
    database: Database, room: Room, made: list[tuple[str]]
) -> None:
    ran = room.run(*arguments(database, room, "--yes", "--keep-tables"))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "destination's table" not in ran.stdout
    for step in ("dropped the replication slot", "dropped the publication", "removed the pipeline"):
        assert step in ran.stdout
    assert database.execute(MADE) == []
    assert not (room.path / "log").exists()
    again = room.run(*arguments(database, room, "--yes", "--keep-tables"))
    assert again.returncode == 0
    assert again.stdout == "The pipeline shop has nothing to remove.\n"
    assert room.leftovers() == []


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_in_a_terminal_it_asks(
    database: Database, room: Room, made: list[tuple[str]], answer: str, code: int
) -> None:
    keyboard, terminal = pty.openpty()
    command: list[str | Path] = [WALFLOW, *arguments(database, room, "--keep-tables")]
    process = subprocess.Popen(
        command,
        env=room.environment,
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    os.close(terminal)
    with ended(process):
        os.write(keyboard, f"{answer}\n".encode())
        out, err = process.communicate(timeout=WAIT)
    os.close(keyboard)
    assert process.returncode == code, err
    assert "Remove all this? [y/N]" in out
    if answer == "n":
        assert "Nothing was removed." in out
        assert database.execute(MADE) == made
    else:
        assert database.execute(MADE) == []


def test_a_pipeline_that_runs(database: Database, room: Room, made: list[tuple[str]]) -> None:
    with opened(room.path / "log") as store:
        keeper = LeaseKeeper(store, lambda: None, timing=Timing(lease=3600.0))
        keeper.acquire()
        ran = room.run(*arguments(database, room, "--yes", "--keep-tables"))
        keeper.release()
    assert ran.returncode == 72, ran.stderr
    assert f"process {os.getpid()}" in ran.stderr
    assert database.execute(MADE) == made


def test_a_source_that_is_away(database: Database, room: Room, made: list[tuple[str]]) -> None:
    away = "postgresql://me@127.0.0.1:1/shop"
    refused = room.run(*arguments(database, room, "--yes", source=away))
    assert refused.returncode == 11
    assert (room.path / "log" / "state.db").exists()
    ran = room.run(*arguments(database, room, "--yes", "--skip-source", source=away))
    assert ran.returncode == 0, ran.stderr
    assert "These stay, because it is not known whether they belong to this pipeline:" in ran.stdout
    assert not (room.path / "log").exists()
    statements = [line.strip() for line in ran.stdout.splitlines() if line.endswith(";")]
    assert len(statements) == 2
    database.execute(*statements)
    assert database.execute(MADE) == []
