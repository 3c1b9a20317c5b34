"""``walflow run`` whose JVM is killed, as the kernel does when there is too little memory."""

from __future__ import annotations

import psutil
import pytest

from tests.cli.commands import Room, ended, wait_for_line
from tests.conftest import Database
from walflow.errors import SparkError

pytestmark = pytest.mark.spark


def test_a_killed_jvm_is_told_as_killed_and_nothing_is_lost(database: Database, room: Room) -> None:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "INSERT INTO orders VALUES (1)",
        "CREATE PUBLICATION shop FOR TABLE orders",
    )
    arguments = [
        "run",
        *("--from", database.uri, "--to", f"iceberg://{room.path / 'lake'}"),
        *("--name", "shop", "--slot", f"{database.name}_slot", "--publication", "shop"),
        *("--log", str(room.path / "log"), "--set", "spark.driver_memory=1g"),
    ]
    with ended(room.start(*arguments)) as process:
        wait_for_line(process, "a table is ready")
        (jvm,) = (p for p in psutil.Process(process.pid).children(True) if p.name() == "java")
        jvm.kill()
        # A pipeline that has nothing to do may not miss it.
        database.execute("INSERT INTO orders VALUES (2)")
        _, err = process.communicate(timeout=240)
    assert process.returncode == SparkError.exit_code, err
    assert "The JVM was killed (signal 9)" in err
    assert "too little memory" in err
    assert "Traceback" not in err
    assert "py4j" not in err
    # No table is to blame: the next run goes on from where it was.
    ran = room.run(*arguments, "--until-caught-up")
    assert ran.returncode == 0, ran.stderr
    assert "copied " not in ran.stderr, err + ran.stderr
    assert "set aside" not in ran.stderr
