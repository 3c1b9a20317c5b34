"""The demo as a user runs it: it ends equal, or names the difference, and leaves no process."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.commands import Room, ended, new_room, wait_for_line

SMALL = ("demo", "--rows", "2000", "--rate", "200")
SHORT = (*SMALL, "--seconds", "4")
LONG = (*SMALL, "--seconds", "600")
"""For what is ended from outside: it must not have ended by itself when we get to it."""


@pytest.mark.spark
def test_the_demo_ends_equal_and_says_how_to_query() -> None:
    with new_room() as room:
        ran = room.run(*SHORT, "--folder", room.path / "50% of my #1 lake")
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.count("  equal") == 5
        assert "equal: every key and every value of every table was compared." in ran.stdout
        first = re.search(r"First change applied ([\d.]+) s after the start", ran.stdout)
        assert first is not None
        print(f"first applied change after {first[1]} s")
        assert room.processes_after(60) == []
        (folder,) = room.leftovers()
        assert sorted(entry.name for entry in (room.path / folder).iterdir()) == [
            "lake",
            "query.py",
        ]
        # What the user is told to run, and to paste.
        command = shlex.join([sys.executable, str(room.path / folder / "query.py")])
        assert f"  {command}\n" in ran.stdout
        snippet = ran.stdout[ran.stdout.index("import os\n") :]
        pasted = subprocess.run(
            [sys.executable, "-c", snippet],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env=room.environment,
        )
        assert pasted.returncode == 0, pasted.stderr
        assert "shipped" in pasted.stdout
        assert "NaN" in pasted.stdout
        assert "infinity" in pasted.stdout


@pytest.mark.spark
@pytest.mark.long
def test_a_damaged_row_is_named_and_the_exit_code_is_1() -> None:
    with new_room() as room:
        ran = room.run(*SHORT, "--json", "--damage", "--folder", room.path / "kept")
        assert ran.returncode == 1, ran.stderr
        result = json.loads(ran.stdout.splitlines()[-1])
        assert not result["equal"]
        wrong = {table["table"]: table for table in result["tables"] if not table["equal"]}
        assert list(wrong) == ["shop.customers"]
        (difference,) = wrong["shop.customers"]["different"]
        assert difference == {
            "key": "id=7",
            "column": "name",
            "source": "Customer №7",
            "destination": "damaged",
        }
        assert "Error: Source and destination differ: shop.customers." in ran.stderr
        for line in ran.stderr.partition("Error:")[0].splitlines():
            json.loads(line)
        assert room.processes_after(60) == []


@pytest.mark.spark
@pytest.mark.parametrize(
    "moment", ["starting Postgres", "starting Spark", "customers are shopping"]
)
def test_ctrl_c_at_any_moment_leaves_nothing(moment: str) -> None:
    with new_room() as room, ended(room.start(*LONG)) as process:
        wait_for_line(process, moment)
        # Somewhere inside, not at the very beginning.
        time.sleep(0.3)
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=120)
        took = time.monotonic() - began
        print(f"{moment}: ended after {took:.1f} s")
        assert process.returncode == 130, err
        assert "Traceback" not in err
        assert room.processes_after(60) == []
        assert room.leftovers() == []


@pytest.mark.spark
def test_kill_9_leaves_neither_postgres_nor_java() -> None:
    with new_room() as room, ended(room.start(*LONG)) as process:
        wait_for_line(process, "customers are shopping")
        running = " ".join(room.processes())
        assert "postgres" in running
        assert "java" in running
        process.kill()
        process.wait(60)
        assert room.processes_after(60) == []


def test_a_folder_that_is_not_empty_is_left_alone(room: Room) -> None:
    folder = room.path / "mine"
    folder.mkdir()
    (folder / "thing").touch()
    ran = room.run("demo", "--folder", folder)
    assert ran.returncode == 2
    assert "is not empty" in ran.stderr
    assert [entry.name for entry in folder.iterdir()] == ["thing"]
