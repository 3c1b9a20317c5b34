"""Folders that this user may not see, write or make: said in one message, with what to do."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.cli.commands import Room
from walflow.config import load_settings
from walflow.pipeline.state.pipeline_notes import write_notes

# Root without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH is a user like any other.
GIVE_UP_RIGHTS = """
import ctypes, os, sys
PR_CAPBSET_DROP = 24
if os.geteuid() == 0:
    for right in (1, 2):
        assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, right, 0, 0, 0) == 0
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""

# Several commands in one process, because starting one takes a second.
PROGRAM = """
import contextlib, io, sys
from walflow.cli import main
for line in sys.stdin.read().splitlines():
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(err):
        try:
            main(line.split("\\t"))
        except SystemExit as end:
            code = end.code
    print(f"{code} {' '.join(err.getvalue().split())}")
"""


def told(room: Room, *commands: Sequence[object], **environment: str | Path) -> list[str]:
    """Exit code and words of each command."""
    ran = subprocess.run(
        [sys.executable, "-c", GIVE_UP_RIGHTS, "-c", PROGRAM],
        input="\n".join("\t".join(map(str, command)) for command in commands),
        env=room.environment | {"COLUMNS": "1000"} | {k: str(v) for k, v in environment.items()},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == len(commands)
    return lines


@pytest.fixture
def closed(room: Room) -> Iterator[Path]:
    """A folder with others in it that may be seen only, or not even that; and a file."""
    modes = {"there": 0o500, "seen": 0o500, "unseen": 0}
    (room.path / "file").touch()
    for name, mode in modes.items():
        (room.path / name).mkdir(mode=mode)
    yield room.path
    for name in modes:
        if (room.path / name).exists():
            (room.path / name).chmod(0o700)


PLACES = {
    "file/log": "Not a directory",
    "there": "unable to open database file (permission denied)",
    "seen/log": "Permission denied",
    "unseen/log": "Permission denied",
    "unseen/a/b/log": "Permission denied",
}


def test_a_log_that_cannot_be_made(room: Room, closed: Path) -> None:
    # Nobody listens there: who asks the source first would say so.
    ends = ["--from", "postgresql://me@127.0.0.1:9/x", "--to", f"iceberg://{closed}/lake"]
    commands: dict[str, list[str | Path]] = {
        place: ["run", *ends, "--log", closed / place] for place in PLACES
    }
    for place, line in zip(PLACES, told(room, *commands.values()), strict=True):
        assert line.startswith("70 "), (place, line)
        assert f"The store {closed / place}/state.db cannot be opened" in line
        assert PLACES[place] in line
        assert "[StoreError] What to do: Name another folder (--log FOLDER" in line
        assert "the pipeline could not be closed completely" not in line


def test_a_log_that_cannot_be_seen(room: Room, closed: Path) -> None:
    log, uri = closed / "unseen" / "log", f"sqlite:///{closed}/unseen/state.db"
    ends = ["--from", "postgresql://me@127.0.0.1:9/x", "--to", f"iceberg://{closed}/lake"]
    lines = told(
        room,
        ["status", "--log", log],
        ["retry", "public.t", "--log", log],
        ["drop", "--yes", *ends, "--log", log],
        ["status", "--set", f"store.uri={uri}", "--log", closed / "log"],
        ["run", *ends, "--set", f"store.uri={uri}", "--log", closed / "log"],
    )
    for line in lines:
        assert line.startswith("70 "), line
        assert "state.db cannot be opened" in line
        assert "permission denied" in line.lower()
        assert "What to do: Name another folder" in line
    ((code, words),) = [
        line.split(" ", 1) for line in told(room, ["check", "--quick", *ends, "--log", log])
    ]
    assert code != "99", words
    assert "could not be looked at" not in words
    assert words.count("Name another folder") + words.count("or name another folder") >= 2, words


def test_a_log_whose_store_is_elsewhere(room: Room, closed: Path) -> None:
    memory = ["--set", "store.uri=memory:"]
    ends = ["--from", "postgresql://me@127.0.0.1:9/x", "--to", f"iceberg://{closed}/lake"]
    drops: list[list[str | Path]] = [
        ["drop", "--yes", *ends, *memory, "--log", closed / place] for place in PLACES
    ]
    for place, line in zip(PLACES, told(room, *drops), strict=True):
        assert not line.startswith("99 "), (place, line)
        if place.startswith("unseen"):
            assert "The change log" in line
            assert "Permission denied" in line


def test_list_with_a_store_that_cannot_be_seen(room: Room, closed: Path) -> None:
    stores = {"hidden": closed / "unseen" / "state.db", "shown": closed / "logs" / "state.db"}
    for name, store in stores.items():
        settings = load_settings(
            None,
            {
                "name": name,
                "source.uri": "postgresql://me@127.0.0.1:9/x",
                "destination.uri": f"iceberg://{closed}/lake",
                "log.folder": str(closed / "logs" / name),
                "store.uri": f"sqlite:///{store}",
            },
            {},
        )
        settings.log_folder.mkdir(parents=True)
        write_notes(settings.with_publication("p"), "7/x")
    (line,) = told(room, ["list", "--log", closed / "logs"])
    assert line.startswith("0 "), line
    assert "hidden does not run on this machine" in line
    assert "shown does not run" in line


def test_a_file_or_a_folder_that_cannot_be_seen(room: Room, closed: Path) -> None:
    ends = ["--from", "postgresql://me@127.0.0.1:9/x", "--to", f"iceberg://{closed}/lake"]
    init, position, *demos = told(
        room,
        ["init", closed / "unseen" / "pipeline.yaml", *ends],
        ["as-of", closed / "unseen" / "pipeline", *ends],
        *(["demo", "--folder", closed / place] for place in ("unseen/lake", "seen/lake")),
    )
    # The database is asked first, and nobody listens there.
    assert init.startswith("11 "), init
    assert position.startswith("2 "), position
    assert "is not a log position" in position
    for line in demos:
        assert line.startswith("2 "), line
        assert re.search(r"The folder \S+ cannot be made: Permission denied\.", line), line
        assert "Name another --folder" in line


def test_a_cache_that_cannot_be_written(room: Room, closed: Path) -> None:
    command: list[str | Path] = [
        *("as-of", "--to", f"iceberg://{closed}/lake", "--log", closed / "unseen" / "log"),
        *("--set", f"store.uri=sqlite:///{closed}/state.db"),
    ]
    for place in ("unseen", "seen"):
        cache = closed / place / "cache"
        (line,) = told(room, command, WALFLOW_CACHE=cache)
        assert line.startswith("42 "), line
        assert f"could not be fetched into {cache}/jars: Permission denied" in line
        assert "WALFLOW_CACHE" in line
