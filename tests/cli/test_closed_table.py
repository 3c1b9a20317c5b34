"""A table whose folder cannot be written, in a lake that can: the message says which, and why."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.commands import WALFLOW, Room
from tests.cli.test_closed_folders import GIVE_UP_RIGHTS
from tests.conftest import Database
from tests.pipeline.running import WAIT

pytestmark = pytest.mark.spark


def test_a_table_that_may_not_be_written(database: Database, room: Room) -> None:
    database.execute(
        "CREATE TABLE open (id int PRIMARY KEY)",
        "CREATE TABLE closed (id int PRIMARY KEY)",
        "INSERT INTO open VALUES (1)",
        "INSERT INTO closed VALUES (1)",
    )
    closed = room.path / "lake" / "public" / "closed" / "data"
    closed.mkdir(parents=True)
    closed.chmod(0o500)
    options = [
        *("--from", database.uri, "--to", f"iceberg://{room.path / 'lake'}"),
        *("--name", "shop", "--slot", f"{database.name}_slot", "--create-publication"),
        *("--log", str(room.path / "log"), "--set", "spark.driver_memory=1g"),
    ]
    ran = subprocess.run(
        [sys.executable, "-c", GIVE_UP_RIGHTS, WALFLOW, "run", "--until-caught-up", *options],
        env=room.environment,
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    # It is not tried again by itself: that would not help.
    assert ran.returncode == 52, ran.stderr
    for told in (f"{closed}/", "(Permission denied)", "the right to write", "walflow retry"):
        assert told in " ".join(ran.stderr.split())
    status = room.run("status", "--log", room.path / "log", "--json")
    tables = {table["table"]: table for table in json.loads(status.stdout)["tables"]}
    assert tables["public.open"]["phase"] == "Ready"
    error = tables["public.closed"]["error"]
    assert str(closed) in error["reason"]
    assert "Permission denied" in error["reason"]
