"""``walflow run`` against a live shop: stopped, killed, gone on with, and equal at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.cli.commands import Room, ended, wait_for_line
from tests.conftest import Database
from tests.pipeline.capturing import wait_for
from tests.pipeline.running import WAIT
from walflow.demo.compare import compare_table
from walflow.demo.load import ShopLoad
from walflow.demo.shop import TABLES, Sizes, make_shop
from walflow.destinations.iceberg import catalog_conf
from walflow.model import TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SIZES = Sizes.of_total(3000)


def arguments(database: Database, room: Room, *more: str) -> list[str]:
    return [
        "run",
        *("--from", database.uri, "--to", f"iceberg://{room.path / 'lake'}"),
        *("--name", "shop", "--slot", f"{database.name}_slot", "--publication", "shop"),
        *("--log", str(room.path / "log"), "--set", "spark.driver_memory=1g"),
        *more,
    ]


def slots(database: Database) -> list[tuple[str]]:
    return database.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    )


def test_stopped_then_killed_then_caught_up_and_equal(
    database: Database, room: Room, spark: SparkSession
) -> None:
    with database.connect() as connection:
        make_shop(connection, SIZES)
    with ShopLoad(database.uri, SIZES, rate=300) as load:
        # SIGTERM: the batch is finished, and that is an orderly end.
        with ended(room.start(*arguments(database, room, "--json"))) as process:
            lines = wait_until_followed(process)
            process.terminate()
            _, err = process.communicate(timeout=180)
            assert process.returncode == 0, err
            assert {"made the slot", "copied"} <= {line["event"] for line in lines}
        load.allow_truncate()
        assert room.processes_after(90) == []
        # kill -9 while changes are being applied.
        with ended(room.start(*arguments(database, room, "--json"))) as process:
            wait_until_changes(process)
            process.kill()
            process.wait(WAIT)
        assert room.processes_after(90) == []
    load.check()
    ran = room.run(*arguments(database, room, "--until-caught-up"))
    assert ran.returncode == 0, ran.stderr
    # All tables went on from where they were: nothing was copied a second time.
    assert "copied " not in ran.stderr
    assert slots(database) == [(f"{database.name}_slot",)]

    session = spark.newSession()
    for name, value in catalog_conf(str(room.path / "lake"), {}).items():
        if name.startswith("spark.sql.catalog."):
            session.conf.set(name, value)
    with database.connect() as connection:
        for table in TABLES:
            found = compare_table(connection, session, TableName("shop", table))
            assert found.different == ()
            assert found.equal


def test_ctrl_c_during_the_start_makes_nothing(database: Database, room: Room) -> None:
    with database.connect() as connection:
        make_shop(connection, Sizes.of_total(100))
    # A transaction that is open keeps the slot from being made, however long the signal takes.
    with database.connect(autocommit=False) as busy:
        busy.execute("SELECT txid_current()")
        with ended(room.start(*arguments(database, room))) as process:
            wait_for_line(process, "starting Spark")
            wait_for(lambda: any("/bin/java " in line for line in room.processes()), WAIT, "a JVM")
            began = time.monotonic()
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=180)
            print(f"ended after {time.monotonic() - began:.1f} s")
    assert process.returncode == 130, err
    assert (out, "Traceback" in err, "Error" in err) == ("", False, False)
    assert room.processes_after(90) == []
    assert slots(database) == []
    assert room.leftovers() == []


def test_a_signal_to_the_whole_group_finishes_the_batch(database: Database, room: Room) -> None:
    with database.connect() as connection:
        make_shop(connection, SIZES)
    with (
        ShopLoad(database.uri, SIZES, rate=300),
        ended(room.start(*arguments(database, room, "--json"))) as process,
    ):
        wait_until_followed(process)
        os.killpg(process.pid, signal.SIGTERM)
        _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert "py4j" not in err
    assert "was broken off" not in err
    assert room.processes_after(90) == []
    # It was an orderly end: the slot and what was copied are there for the next run.
    assert slots(database) == [(f"{database.name}_slot",)]


def test_a_signal_to_every_process(database: Database, room: Room) -> None:
    """As from systemd, whose KillMode is control-group unless it is told otherwise: Spark's JVM
    gets it too, in whatever session it is."""
    with database.connect() as connection:
        make_shop(connection, SIZES)
    with (
        ShopLoad(database.uri, SIZES, rate=300),
        ended(room.start(*arguments(database, room, "--json"))) as process,
    ):
        wait_until_followed(process)
        ours = psutil.Process(process.pid)
        children = ours.children(recursive=True)
        assert any(child.name() == "java" for child in children)
        for one in (ours, *children):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.terminate()
        _, err = process.communicate(timeout=180)
    print(process.returncode, err)
    # The batch may have been at its end, or not have got there.
    assert process.returncode in (0, 143), err
    assert "Traceback" not in err
    assert "py4j" not in err.lower()
    # A batch that met it may be told of in the log, in words of its own.
    assert "Error: " not in err
    assert ("was broken off" in err) == (process.returncode == 143), err
    assert room.processes_after(90) == []
    assert slots(database) == [(f"{database.name}_slot",)]


def test_a_second_ctrl_c_stops_at_once(database: Database, room: Room) -> None:
    with database.connect() as connection:
        make_shop(connection, Sizes.of_total(100))
    with ended(room.start(*arguments(database, room))) as process:
        wait_for_line(process, "made the slot")
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.3)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=180)
        took = time.monotonic() - began
    print(f"ended after {took:.1f} s with {process.returncode}")
    assert took < 60
    assert process.returncode in (0, 130), err
    assert "Traceback" not in err
    assert room.processes_after(90) == []


Line = dict[str, Any]


def wait_until_followed(process: subprocess.Popen[str]) -> list[Line]:
    """Until every table is copied and some changes are applied; gives the lines so far."""
    return _read_until(process, lambda line: bool(line.get("changes")) and line.get("copying") == 0)


def wait_until_changes(process: subprocess.Popen[str]) -> None:
    """Until the tables are known; batches follow each other from then on."""
    _read_until(process, lambda line: bool(line.get("tables")))


def _read_until(process: subprocess.Popen[str], condition: Callable[[Line], bool]) -> list[Line]:
    assert process.stderr is not None
    deadline = time.monotonic() + 300
    lines: list[Line] = []
    while time.monotonic() < deadline and (text := process.stderr.readline()):
        lines.append(json.loads(text))
        if condition(lines[-1]):
            return lines
    raise AssertionError(f"the command did not get so far: {lines}")
