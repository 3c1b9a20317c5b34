"""The command answers at once, and knows what it was asked."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.cli.commands import WALFLOW, Room
from walflow import errors
from walflow.errors import WalflowError

HEAVY = ("pyspark", "pyarrow", "pandas", "numpy", "pydantic", "psycopg", "rich", "structlog")


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from walflow.cli import _exit_code\n"
        "assert _exit_code(['--help']) == 0\n"
        f"print(','.join(sorted(set({HEAVY!r}) & set(sys.modules))), file=sys.stderr)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stderr.strip() == ""
    for command in (
        "init",
        "run",
        "status",
        "as-of",
        "retry",
        "rollback",
        "resync",
        "drop",
        "demo",
        "bench",
    ):
        assert f"  {command} " in ran.stdout


def test_help_takes_less_than_0_3_s() -> None:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([WALFLOW, "--help"], capture_output=True, check=True, timeout=60)
        times.append(time.perf_counter() - began)
    print(f"walflow --help: {min(times):.2f} s at best of {len(times)}")
    assert min(times) < 0.3


def test_all_exit_codes_are_listed(room: Room) -> None:
    listed: set[int] = set()
    shown = room.run("--help").stdout.partition("Exit codes:\n")[2]
    for line in shown.splitlines():
        for run in line.strip().partition("  ")[0].split(", "):
            first, _, last = run.partition("-")
            listed |= set(range(int(first), int(last or first) + 1))
    named = [getattr(errors, name) for name in errors.__all__]
    codes = {error.exit_code for error in named if issubclass(error, WalflowError)}
    assert listed == {0, *codes, 130, 143}
    for words in ("10-29, 80", "source and destination were compared and differ", "52: tables"):
        assert words in shown


def test_a_file_is_named_in_one_way(room: Room) -> None:
    file = room.path / "shop.yaml"
    file.write_text(f"name: shop\nlog: {{folder: {room.path / 'log'}}}")
    for named in ([file], ["--file", file], ["-f", file]):
        ran = room.run("status", *named)
        assert "There is no state of a pipeline 'shop'" in ran.stderr
    ran = room.run("status", file, "--file", file)
    assert ran.returncode == 2
    assert "Give one FILE" in ran.stderr


def test_wrong_usage_exits_with_2(room: Room) -> None:
    for arguments in (["run", "--nonsense"], ["run", "--set", "novalue"], ["walk"]):
        ran = room.run(*arguments)
        assert ran.returncode == 2
        assert "Usage:" in ran.stderr
        assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    "arguments",
    [["--debug", "run"], ["run", "--debug"], ["demo", "--debug", "--folder", "/dev/null/x"]],
)
def test_debug_is_taken_before_and_after_the_command(room: Room, arguments: list[str]) -> None:
    ran = room.run(*arguments)
    assert ran.returncode == 2
    assert "Traceback" in ran.stderr
    assert "Usage:" not in ran.stderr


def test_bench_takes_debug(room: Room) -> None:
    for command in ("capture", "copy"):
        assert "--debug" in room.run("bench", command, "--help").stdout


def test_the_version(room: Room) -> None:
    assert room.run("--version").stdout.startswith("walflow 0.")
