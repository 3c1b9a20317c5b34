"""A table that cannot be written: set aside, shown, tried again, and in the end all is dropped."""

from __future__ import annotations

import json

import pytest

from tests.cli.commands import Room
from tests.conftest import Database

pytestmark = pytest.mark.spark


def test_from_set_aside_to_dropped(
    database: Database, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(
        "CREATE TABLE good (id int PRIMARY KEY)",
        "CREATE TABLE bad (id int PRIMARY KEY)",
        "INSERT INTO good VALUES (1)",
        "INSERT INTO bad VALUES (1)",
    )
    file = room.path / "shop.yaml"
    settings = {
        "name": "shop",
        "source": {
            "uri": database.uri,
            "slot": f"{database.name}_slot",
            "create_publication": True,
        },
        "destination": {"uri": f"iceberg://{room.path / 'lake'}"},
        "log": {"folder": str(room.path / "log")},
        "table_error_retry_max_attempts": 0,
        "spark": {"driver_memory": "1g"},
    }
    file.write_text(json.dumps(settings))  # JSON is YAML

    room.failpoints = "sync.finished_copy[public.bad]=raise"
    ran = room.run("run", file, "--until-caught-up")
    assert ran.returncode == 52, ran.stderr
    assert "a table was set aside" in ran.stderr
    assert "public.bad: " in ran.stderr
    assert f"walflow retry --all-errored --file {file}" in ran.stderr
    assert "Traceback" not in ran.stderr

    checked = room.run("status", file, "--check")
    assert checked.returncode == 1
    assert checked.stdout.splitlines()[0] == "walflow shop  not running"
    shown = json.loads(room.run("status", file, "--json").stdout)
    assert {table["table"]: table["phase"] for table in shown["tables"]} == {
        "public.bad": "Errored",
        "public.good": "Ready",
    }
    assert shown["tables"][0]["error"]["code"] == "FailpointReached"

    asked = room.run("retry", "--all-errored", "--file", file)
    assert "done at its next start" in asked.stdout
    room.failpoints = ""
    again = room.run("run", file, "--until-caught-up")
    assert again.returncode == 0, again.stderr
    shown = json.loads(room.run("status", file, "--json").stdout)
    assert {table["phase"] for table in shown["tables"]} == {"Ready"}
    assert (shown["set_aside"], shown["requests"]) == (0, [])
    assert {path.parent.name for path in (room.path / "lake").glob("*/*/metadata")} == {
        "bad",
        "good",
        "consistent_cuts_shop",
    }

    # Found by its log; of what it was told, only the password was not noted.
    monkeypatch.setenv("PGPASSWORD", database.server.password)
    dropped = room.run("drop", "--log", room.path / "log", "--yes")
    assert dropped.returncode == 0, dropped.stderr
    # Nothing is heard for a while then.
    said = dropped.stdout
    assert said.index("starting Spark, to drop") < said.index("dropped the destination's table")
    assert "dropped the destination's table public.bad" in dropped.stdout
    assert list((room.path / "lake").glob("*/*/metadata")) == []
    assert not (room.path / "log").exists()
    left = database.execute(
        "SELECT count(*) FROM pg_publication UNION ALL"
        " SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    )
    assert left == [(0,), (0,)]
