"""The command answers at once, and knows what it was asked."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from tests.cli.commands import WALFLOW, Room
from walflow import errors
from walflow.cli import walflow
from walflow.cli.failures import UNEXPECTED
from walflow.config.keys import variable_of
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
    for command in walflow.commands:
        assert f"  {command} " in ran.stdout
    assert len(walflow.commands) == 13


def test_help_is_told_at_once() -> None:
    """Printed is the time (goal: 0.3 s). What it costs is compared with what it needs most."""
    commands = {
        "walflow --help": [str(WALFLOW), "--help"],
        "import click": [sys.executable, "-c", "import click"],
    }
    costs = {}
    for name, command in commands.items():
        # The first one after an installation compiles what it imports.
        _cpu_seconds(command)
        times, work = [], []
        for _ in range(5):
            began = time.perf_counter()
            work.append(_cpu_seconds(command))
            times.append(time.perf_counter() - began)
        print(f"{name}: {min(times):.2f} s, {min(work):.3f} CPU s at best of {len(times)}")
        costs[name] = min(work)
    assert costs["walflow --help"] < 6 * costs["import click"]


def _cpu_seconds(command: list[str]) -> float:
    """Of one process, and of no other child of ours."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


def test_all_exit_codes_are_listed(room: Room) -> None:
    listed: set[int] = set()
    shown = room.run("--help").stdout.partition("Exit codes:\n")[2]
    for line in shown.splitlines():
        for run in line.strip().partition("  ")[0].split(", "):
            first, _, last = run.partition("-")
            listed |= set(range(int(first), int(last or first) + 1))
    named = [getattr(errors, name) for name in errors.__all__]
    codes = {error.exit_code for error in named if issubclass(error, WalflowError)}
    assert listed == {0, *codes, UNEXPECTED, 130, 143}
    for words in ("10-29, 80", "source and destination differ", "52: tables"):
        assert words in shown


def test_a_file_is_named_in_one_way(room: Room) -> None:
    file = room.path / "shop.yaml"
    file.write_text(f"name: shop\nlog: {{folder: {room.path / 'log'}}}")
    for named in ([file], ["--file", file], ["-f", file]):
        ran = room.run("status", *named)
        assert "The pipeline 'shop' has no state" in ran.stderr
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


def shown(*command: str) -> str:
    return CliRunner().invoke(walflow, [*command, "--help"], prog_name="walflow").output


@pytest.mark.parametrize("command", sorted(set(walflow.commands) - {"bench"}))
def test_every_command_has_examples_that_it_understands(command: str) -> None:
    text = shown(command)
    examples = text.partition("\nExamples:\n")[2].strip().splitlines()
    assert examples
    for line in examples:
        if line.split()[0] == "echo":
            continue
        words = shlex.split(re.split(r"\||&&|>", line)[0])
        assert words[0] == "walflow"
        assert words[1] in walflow.commands
        # What stands before the options is another command's where that is the next step.
        known = text if words[1] == command else shown(words[1])
        options = {word for word in words[2:] if word.startswith("-")}
        assert all(re.search(rf"(?<![\w-]){option}(?![\w-])", known) for option in options), line


def test_options_are_in_groups_and_say_their_names_in_the_environment() -> None:
    text = shown("run")
    which, options = text.index("\nWhich pipeline:\n"), text.index("\nOptions:\n")
    assert which < text.index("  --from URI") < options < text.index("  --until-caught-up")
    words = " ".join(text.split())
    names = {"source.uri": "WALFLOW_SOURCE__URI", "log.folder": "WALFLOW_LOG__FOLDER"}
    for key, name in names.items():
        assert variable_of(key.split(".")) == name
        assert name in words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    ran = CliRunner().invoke(walflow, ["completion", shell], prog_name="walflow")
    assert ran.exit_code == 0
    assert f"_WALFLOW_COMPLETE={shell}_complete" in ran.output


def test_bash_completes_commands_and_options(room: Room) -> None:
    program = """
        eval "$(walflow completion bash)"
        complete -p walflow
        for words in 'walflow ch' 'walflow check --qu' 'walflow completion f'; do
            COMPREPLY=() COMP_WORDS=($words)
            COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            _walflow_completion walflow "${COMP_WORDS[COMP_CWORD]}"
            echo "${COMPREPLY[@]}"
        done
    """
    environment = room.environment | {"PATH": f"{WALFLOW.parent}:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["bash", "--norc", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stderr == ""
    assert ran.stdout.splitlines()[1:] == ["check", "--quick", "fish"]
