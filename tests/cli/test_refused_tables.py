"""Tables that cannot be followed, or written, beside others that can: ``walflow run``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Room
from tests.conftest import Database
from tests.destinations.http_server import Answer, HttpTables, Received
from walflow.errors import NoSelectRight, ReservedColumnName, TablesSetAside

pytestmark = pytest.mark.spark

SLOTS = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"


def settings_file(room: Room, uri: str, to: str, slot: str, **more: Any) -> Path:
    file = room.path / "pipeline.yaml"
    settings = {
        "name": "shop",
        "source": {"uri": uri, "publication": "shop", "slot": slot},
        "destination": {"uri": to, "options": {"retry_attempts": 0}},
        "log": {"folder": str(room.path / "log")},
        "spark": {"driver_memory": "1g"},
        **more,
    }
    file.write_text(json.dumps(settings))  # JSON is YAML
    return file


def test_a_start_goes_on_with_the_tables_that_can_be_followed(
    database: Database, room: Room
) -> None:
    database.execute(
        *(
            f"CREATE TABLE {name} (id int PRIMARY KEY, {column} int)"
            for name, column in (
                ("good", "n"),
                ("flaky", "n"),
                ("reserved", "_lsn"),
                ("secret", "n"),
            )
        ),
        "INSERT INTO good VALUES (1, 2)",
        "INSERT INTO flaky VALUES (1, 2)",
        "CREATE PUBLICATION shop FOR TABLE reserved, secret",
    )
    uri = database.replicator("GRANT SELECT ON good, flaky, reserved TO {role}")
    slot = f"{database.name}_slot"

    def refuse_one(received: Received) -> Answer | None:
        return Answer(503, "not now") if "flaky" in received.path else None

    with HttpTables() as service:
        service.before = refuse_one
        # If it is so of all of them, nothing is begun.
        file = settings_file(room, uri, service.uri, slot)
        ran = room.run("run", file)
        assert ran.returncode == ReservedColumnName.exit_code == 26, ran.stderr
        assert "ALTER PUBLICATION shop ADD TABLE public.reserved (id)" in ran.stderr.replace(
            '"', ""
        )

        # Nor if the settings are strict, and it is so of one.
        database.execute("ALTER PUBLICATION shop ADD TABLE good")
        file = settings_file(room, uri, service.uri, slot, on_table_refused="error")
        ran = room.run("run", file)
        assert ran.returncode == 26, ran.stderr
        database.execute("ALTER PUBLICATION shop DROP TABLE reserved")
        ran = room.run("run", file)
        assert ran.returncode == NoSelectRight.exit_code == 22, ran.stderr
        assert "GRANT SELECT" in ran.stderr
        assert not (room.path / "log").exists()
        assert database.execute(SLOTS) == []

        # Else the others are copied. One that the destination does not take is tried again by
        # itself, but here only in an hour: that is not waited for.
        database.execute("ALTER PUBLICATION shop ADD TABLE reserved, flaky")
        file = settings_file(room, uri, service.uri, slot, table_error_retry_delay_ms=3_600_000)
        ran = room.run("run", file, "--until-caught-up")
        assert ran.returncode == TablesSetAside.exit_code == 52, ran.stderr
        assert "Traceback" not in ran.stderr
        said = ran.stderr.partition("Everything is up to date but 3 tables")[2]
        for told in (
            "public.flaky: ",
            "503",
            "public.flaky: the next attempt comes by itself",
            "public.reserved: ",
            "RENAME COLUMN",
            "public.secret: ",
            "GRANT SELECT",
        ):
            assert told in said, ran.stderr
        assert [row.values for row in service.tables["public", "good"].rows] == [{"id": 1, "n": 2}]
    shown = json.loads(room.run("status", file, "--json").stdout)
    assert {t["table"]: (t["phase"], (t["error"] or {}).get("code")) for t in shown["tables"]} == {
        "public.flaky": ("Errored", "DestinationError"),
        "public.good": ("Ready", None),
        "public.reserved": ("Errored", "ReservedColumnName"),
        "public.secret": ("Errored", "NoSelectRight"),
    }
    assert room.run("status", file, "--check").returncode == 1
