"""The tutorials word by word: what a page tells its readers to type is typed, in its order, and
what it promises is looked for. (your-own-store-and-destination.md has a test of its own.)"""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.commands import WALFLOW, Room, ended, new_room
from tests.conftest import Database
from tests.docs.blocks import ROOT, blocks
from walflow.spark.jars import ICEBERG

TUTORIALS = ROOT / "docs" / "tutorials"
OWN_POSTGRES = TUTORIALS / "your-own-postgres.md"
FIRST = TUTORIALS / "first-pipeline.md"

LEFT = (
    "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()"
    " UNION ALL SELECT pubname::text FROM pg_publication"
)


class Reader:
    """Types what stands on a page, in a folder of their own, with an empty home."""

    def __init__(self, room: Room, database: Database) -> None:
        self.database = database
        role = f"{database.name}_role_reader"
        database.execute(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD 'password'")
        uri = database.server.uri_for(database.name, user=role, password="password")
        self._words = [
            ("postgresql://user:password@host/shop", uri),
            ("postgresql://user:${", uri.partition("password")[0] + "${"),
            ("}@host/shop", "}" + uri.partition("password")[2]),
            ("/data/lake", str(room.path / "lake")),
        ]
        self.room = room
        self.lake = room.path / "lake"
        home = room.with_home()
        self.log = home / ".walflow" / "default"
        self._environment = room.environment | {"PATH": f"{WALFLOW.parent}:{os.environ['PATH']}"}

    def here(self, text: str) -> str:
        for written, real in self._words:
            text = text.replace(written, real)
        return text

    def start(self, script: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """In the shell that the reader has open: what it exports stays."""
        for name, value in re.findall(r"^export (\w+)=(.*)$", script, re.MULTILINE):
            self._environment[name] = value
        return subprocess.Popen(
            ["bash", "-euc", self.here(script)],
            cwd=self.room.path,
            env=self._environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def type(self, script: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        with ended(self.start(script)) as process:
            out, err = process.communicate(timeout=seconds)
        assert process.returncode == 0, f"{script}\n{out}\n{err}"
        return subprocess.CompletedProcess(script, 0, out, err)

    @contextmanager
    def running(self, script: str) -> Iterator[None]:
        """Until Ctrl-C, which goes to all processes of a terminal."""
        log = self.room.path / "run.log"
        process = self.start(script + f" 2> {shlex.quote(str(log))}")
        with ended(process):
            try:
                yield
            except AssertionError as error:
                error.add_note(log.read_text(encoding="utf-8"))
                raise
            assert process.poll() is None, log.read_text(encoding="utf-8")
            os.killpg(process.pid, signal.SIGINT)
            out, _ = process.communicate(timeout=120)
        assert process.returncode == 0, out + log.read_text(encoding="utf-8")

    def wait_for_tables(self, status: str, *names: str, seconds: float = 240) -> None:
        """Until the page's `walflow status` shows them as ready."""
        deadline = time.monotonic() + seconds
        shown: Any = None
        while time.monotonic() < deadline:
            with ended(self.start(f"{status.strip()} --json")) as process:
                out, err = process.communicate(timeout=120)
            shown = json.loads(out) if process.returncode == 0 else err
            if process.returncode == 0:
                assert shown["set_aside"] == 0, shown
                ready = {t["table"] for t in shown["tables"] if t["phase"] == "Ready"}
                if ready == set(names) and shown["report"] is not None:
                    return
            time.sleep(0.2)
        raise AssertionError(shown)


def make_shop(database: Database) -> None:
    database.execute(
        "CREATE TABLE customers (id int PRIMARY KEY, name text)",
        "CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric(10,2))",
        "INSERT INTO customers SELECT n, 'customer ' || n FROM generate_series(1, 5) n",
        "INSERT INTO orders SELECT n, n % 5 + 1, n FROM generate_series(1, 20) n",
    )


SHOP = ("public.customers", "public.orders")


def page() -> list[str]:
    """The blocks of the page, and that they are the ones that the tests here know."""
    found = blocks(OWN_POSTGRES)
    begins = [(kind, text.split()[0], text.split()[1]) for kind, text in found]
    assert begins == [
        ("sql", "SHOW", "wal_level;"),
        ("sql", "ALTER", "SYSTEM"),
        ("sh", "walflow", "check"),
        ("sh", "walflow", "run"),
        ("sh", "walflow", "status"),
        ("python", "from", "pyspark.sql"),
        ("sh", "walflow", "init"),
        ("sh", "export", "WALFLOW_SOURCE_PASSWORD=password"),
        ("yaml", "name:", "default"),
        ("sh", "walflow", "drop"),
    ], "a block has come, gone or changed: have it tried here, too"
    return [text for _, text in found]


@pytest.fixture
def reader(database: Database) -> Iterator[Reader]:
    make_shop(database)
    with new_room() as room:
        yield Reader(room, database)
        assert room.processes_after(60) == []


def test_options_first_and_then_a_file(reader: Reader) -> None:
    """Steps 3, 4 and 6: the file that `init` writes is for the pipeline that is there."""
    _, _, _, run, status, _, init, *_ = page()
    with reader.running(run):
        reader.wait_for_tables(status, *SHOP)
        shown = reader.type(status).stdout
        assert all(name in shown for name in SHOP)
        (listed,) = json.loads(reader.type("walflow list --json").stdout)["pipelines"]
        assert (listed["pipeline"], listed["running"], listed["tables"]) == ("default", True, 2)
    assert reader.database.execute(LEFT) == [("walflow_default",), ("walflow_default",)]
    wrote = reader.type(init)
    assert "is for the pipeline default" in " ".join(wrote.stderr.split())
    assert "export WALFLOW_SOURCE_PASSWORD=" in wrote.stderr
    text = (reader.room.path / "pipeline.yaml").read_text(encoding="utf-8")
    file = yaml.safe_load(text)
    assert file["name"] == "default"
    assert file["source"]["publication"] == "walflow_default"
    # Without a password: none is kept anywhere.
    noted = (reader.log / "pipeline.json").read_text(encoding="utf-8")
    assert "password" not in noted
    assert "stopped" in reader.type("walflow list").stdout
    # And what reads all tables at one commit is known without Spark.
    asked = reader.type("walflow as-of")
    assert asked.stderr == ""
    assert asked.stdout.count("VERSION AS OF") == 2


@pytest.mark.long
def test_your_own_postgres(reader: Reader) -> None:
    show, alter, check, run, status, read, init, run_file, sample, drop = page()
    database = reader.database
    # 1.
    assert database.execute(show) == [("logical",)]
    with database.connect() as connection:
        connection.execute(alter)
        connection.execute("ALTER SYSTEM RESET wal_level")
    # 2.
    checked = reader.type(check).stdout
    verdicts = re.findall(r"^  (ok|warning|error|not tried)  ", checked, re.MULTILINE)
    assert "ok" in verdicts, checked
    assert "error" not in verdicts, checked
    assert database.execute(LEFT) == []
    # 3 and 4.
    with reader.running(run):
        reader.wait_for_tables(status, *SHOP)
        assert "Ready" in reader.type(status).stdout
        # 5.
        rows = read_as_told(read, reader)
        assert rows.count("|  ") >= 20, rows
    # 6.
    reader.type(init)
    with reader.running(run_file):
        reader.wait_for_tables(status, *SHOP)
        database.execute("INSERT INTO orders VALUES (21, 1, 21)")
        wait_for_change(reader, status, "public.orders", 1)
        states = json.loads(reader.type(f"{status.strip()} --json").stdout)["tables"]
        # Nothing was copied again.
        assert {table["table"]: table["rows_copied"] for table in states} == {
            "public.customers": 5,
            "public.orders": 20,
        }
    file = reader.room.path / "pipeline.yaml"
    file.write_text(reader.here(sample), encoding="utf-8")
    with reader.running(run_file):
        wait_for_mode(reader, status, "history")
    # 7.
    listed, done = answered(reader, drop)
    assert "  the replication slot walflow_default" in listed
    assert "  the publication walflow_default" in listed
    promised = [line.strip().removeprefix("the ") for line in listed if line.startswith("  the ")]
    for thing in promised:
        word = thing.split()[-1] if "state" not in thing else "state"
        assert any(word in line for line in done), (thing, done)
    assert not any("left " in line for line in done)
    assert database.execute(LEFT) == []
    assert list(reader.lake.glob("public/*")) == []
    assert not reader.log.exists()


def read_as_told(code: str, reader: Reader) -> str:
    """What the page's program prints, with the jars that are here."""
    assert ICEBERG.coordinate in code
    for line in ("spark.sql.extensions", "spark.sql.catalog.lake.warehouse"):
        assert line in code
    program = reader.here(code)
    ran = subprocess.run(
        [sys.executable, "-c", _WITH_OUR_JARS + program],
        env=reader.room.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


_WITH_OUR_JARS = """
import os
from pyspark.sql import SparkSession
from walflow.spark.jars import ICEBERG, find_jars
from walflow.spark.java import find_java
os.environ.setdefault("JAVA_HOME", str(find_java().home))
_config = SparkSession.Builder.config
def config(self, key=None, value=None, **more):
    if key == "spark.jars.packages":
        key, value = "spark.jars", ",".join(map(str, find_jars([ICEBERG])))
    return _config(self, key, value, **more)
SparkSession.Builder.config = config
"""
"""Instead of fetching them again, from a network that may not be there."""


def wait_for_change(reader: Reader, status: str, table: str, changes: int) -> None:
    wait_for_state(
        reader, status, lambda state: state["table"] != table or state["changes_applied"] >= changes
    )


def wait_for_mode(reader: Reader, status: str, mode: str) -> None:
    """Until orders was copied again."""
    wait_for_state(
        reader,
        f"{status.strip()} pipeline.yaml",
        lambda state: (
            state["phase"] == "Ready"
            and (state["table"] != "public.orders" or state["mode"] == mode)
            and (state["table"] != "public.orders" or state["rows_copied"] == 21)
        ),
    )


def wait_for_state(reader: Reader, status: str, is_there: Any, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        shown = json.loads(reader.type(f"{status.strip()} --json").stdout)
        assert shown["set_aside"] == 0, shown
        if shown["running"] and all(map(is_there, shown["tables"])):
            return
        time.sleep(0.2)
    raise AssertionError(shown)


def answered(reader: Reader, script: str) -> tuple[list[str], list[str]]:
    """Run what asks, and say yes: what was listed before the question, and what was said after."""
    keyboard, terminal = pty.openpty()
    process = reader.start(script, stdin=terminal)
    os.close(terminal)
    with ended(process):
        os.write(keyboard, b"y\n")
        out, err = process.communicate(timeout=300)
    os.close(keyboard)
    assert process.returncode == 0, out + err
    before, question, after = out.partition("Remove all this? [y/N]: ")
    assert question
    return before.splitlines(), after.splitlines()


@pytest.mark.long
def test_your_first_pipeline() -> None:
    found = blocks(FIRST)
    assert found == [("sh", "make demo\n")], "have what is new tried here, too"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(
        r"^demo: .*\n\t@exec \$\(BIN\)/walflow demo \$\(ARGS\)$", makefile, re.MULTILINE
    )
    text = FIRST.read_text(encoding="utf-8")
    (shorter,) = re.findall(r'`make demo ARGS="([^"]+)"`', text)
    (elsewhere,) = re.findall(r"`(--folder [^`]+)`", text)
    with new_room() as room:
        arguments = shlex.split(f"{shorter} {elsewhere}".replace("/tmp/lake", str(room.path / "x")))
        ran = room.run("demo", *arguments)
        assert ran.returncode == 0, ran.stderr
        assert "equal: every key and every value of every table was compared." in ran.stdout
        told = re.search(r"^  (\S.*query\.py.*)$", ran.stdout, re.MULTILINE)
        assert told is not None, ran.stdout
        columns = re.findall(r"^\| `(_[A-Z_]+)` \|", text, re.MULTILINE)
        query = Path(shlex.split(told[1])[-1])
        more = "print(spark.table('lake.shop.orders').columns)"
        query.write_text(f"{query.read_text()}\n{more}\n")
        printed = subprocess.run(
            shlex.split(told[1]),
            env=room.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert printed.returncode == 0, printed.stderr
        assert len(columns) == 3
        assert all(repr(column) in printed.stdout for column in columns), printed.stdout
        assert room.processes_after(60) == []
