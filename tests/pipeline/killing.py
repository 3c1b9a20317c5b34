"""A pipeline that is killed and started again, as processes, while its source goes on to change."""

from __future__ import annotations

import contextlib
import io
import json
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psycopg

from tests.cli.commands import Room, ended
from tests.conftest import Database
from tests.pipeline.capturing import wait_for
from walflow.changelog import CopyFolder
from walflow.cli import _exit_code
from walflow.config import Settings, load_settings
from walflow.model import TableName
from walflow.stores import open_store
from walflow.stores.base import Action, Request

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "KILLED",
    "MAKE",
    "PUBLISH_LATE",
    "TABLES",
    "Killable",
    "Process",
    "Writers",
    "in_lake",
    "in_source",
]

KILLED = -9
_RUN_SECONDS = 240
_END_SECONDS = 90
_LEASE_SECONDS = 3600.0

Line = dict[str, Any]
Rows = Counter[tuple[Any, ...]]
_Notes = dict[int, tuple[int, int]]
"""By number of the range: what changes when its note is written again."""

TABLES = ("docs", "accounts", "events", "late")
MAKE = (
    # Large for ranges of some pages; what lies outside of the rows is not sent when they change.
    "CREATE TABLE docs (id int PRIMARY KEY, pad text, doc text, n int NOT NULL)",
    "ALTER TABLE docs ALTER doc SET STORAGE EXTERNAL",
    "INSERT INTO docs SELECT i, repeat('p', 300),"
    " CASE WHEN i % 5 = 0 THEN repeat(md5(i::text), 100) END, 0 FROM generate_series(1, 1000) i",
    "CREATE TABLE accounts (owner text, number int, balance numeric(12, 2), pad text,"
    " PRIMARY KEY (owner, number))",
    "INSERT INTO accounts SELECT 'owner ' || i % 7, i, i / 100.0, repeat('p', 500)"
    " FROM generate_series(1, 600) i",
    "CREATE TABLE events (kind int, what text)",
    "ALTER TABLE events REPLICA IDENTITY FULL",
    "INSERT INTO events SELECT i % 10, 'event ' || i % 30 FROM generate_series(1, 200) i",
    "CREATE TABLE late (id int PRIMARY KEY, v text)",
    "INSERT INTO late SELECT i, 'late ' || i FROM generate_series(1, 300) i",
    "ANALYZE",
    "CREATE PUBLICATION walflow FOR TABLE docs, accounts, events",
)
PUBLISH_LATE = "ALTER PUBLICATION walflow ADD TABLE late"


class Writers:
    """Write to all tables until the end of the block."""

    def __init__(self, database: Database, seed: int, pause: float = 0.08) -> None:
        self._database = database
        self._seed = seed
        self._pause = pause
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="test-writers")
        self._error: BaseException | None = None
        self.transactions = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(60)
        if error is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        chance = random.Random(self._seed)
        try:
            with self._database.connect() as connection:
                while not self._over.wait(self._pause):
                    with (
                        contextlib.suppress(psycopg.errors.UniqueViolation),
                        connection.transaction(force_rollback=chance.random() < 0.05),
                    ):
                        for _ in range(chance.choice((1, 2, 4))):
                            connection.execute(_statement(chance).encode())
                    self.transactions += 1
        except BaseException as error:
            self._error = error


def _statement(chance: random.Random) -> str:
    one, other = chance.randrange(1, 1200), chance.randrange(1, 1200)
    return chance.choice(
        (
            f"UPDATE docs SET n = n + 1 WHERE id BETWEEN {one} AND {one + 4}",
            f"UPDATE docs SET pad = repeat('q', {other % 700}), n = n + 1 WHERE id = {one}",
            f"UPDATE docs SET doc = repeat(md5('{one} {other}'), 90) WHERE id = {one}",
            f"UPDATE docs SET id = {other} WHERE id = {one}",
            f"DELETE FROM docs WHERE id BETWEEN {one} AND {one + 1}",
            f"INSERT INTO docs VALUES ({one}, 'new', repeat(md5('{other}'), 80), {other})"
            f" ON CONFLICT (id) DO UPDATE SET n = docs.n + 1",
            f"INSERT INTO docs VALUES ({other}, repeat('n', 400), NULL, 0) ON CONFLICT DO NOTHING",
            f"UPDATE accounts SET balance = balance + 0.01 WHERE number % 100 = {one % 100}",
            f"UPDATE accounts SET owner = 'heir of ' || right(owner, 7) WHERE number = {one}",
            f"UPDATE accounts SET number = {other}, pad = 'moved' WHERE number = {one}",
            f"DELETE FROM accounts WHERE number = {one}",
            f"INSERT INTO accounts VALUES ('owner {one % 7}', {other}, NULL, repeat('n', 300))",
            f"INSERT INTO events VALUES ({one % 10}, 'event {one % 30}'), ({one % 10}, NULL)",
            f"DELETE FROM events WHERE kind = {one % 10} AND what = 'event {other % 30}'",
            f"UPDATE events SET what = 'again' WHERE kind = {one % 10} AND what IS NULL",
            f"INSERT INTO late VALUES ({one}, 'new') ON CONFLICT (id) DO UPDATE SET v = 'again'",
            f"UPDATE late SET id = {other} WHERE id = {one}",
            f"DELETE FROM late WHERE id = {one}",
        )
    )


class Process:
    """One ``walflow run``; its log lines are read as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._began = time.monotonic()
        self.seconds = 0.0
        """How long it ran."""
        self.lines: list[Line] = []
        self.other: list[str] = []
        """What is not a log line: there should be nothing."""
        self._reader = threading.Thread(target=self._read, name="test-lines", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for text in self._process.stderr:
            try:
                self.lines.append(json.loads(text))
            except ValueError:
                self.other.append(text)

    def has_told(self, event: str, **fields: str) -> bool:
        wanted = {"event": event, **fields}.items()
        return any(wanted <= line.items() for line in self.lines)

    def wait_for_line(self, event: str, **fields: str) -> None:
        wait_for(
            lambda: self.has_told(event, **fields), _RUN_SECONDS, f"{event} {fields}", self._check
        )

    def _check(self) -> None:
        assert self._process.poll() is None, f"it ended by itself: {self}"

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int:
        """The exit code; all that the process has started has ended, too."""
        try:
            code = self._process.wait(_RUN_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it still runs: {self}") from None
        self.seconds = time.monotonic() - self._began
        # Spark's JVM has the other end of the pipe for as long as it lives.
        self._reader.join(_END_SECONDS)
        assert not self._reader.is_alive()
        return code

    def __str__(self) -> str:
        return "\n".join([*map(json.dumps, self.lines[-30:]), *self.other[-50:]])


class Killable:
    """A pipeline in a room, with the default store and Iceberg tables."""

    def __init__(self, database: Database, room: Room) -> None:
        self.database = database
        self.room = room
        self.slot = f"{database.name}_slot"
        self.log = room.path / "log"
        self.lake = room.path / "lake"

    @contextmanager
    def process(self, failpoints: str = "", *more: str) -> Iterator[Process]:
        self.room.failpoints = failpoints
        arguments = [
            *("run", "--json", "--name", "killed", "--slot", self.slot),
            *("--from", self.database.uri, "--to", f"iceberg://{self.lake}"),
            *("--log", str(self.log), "--set", "batch.max_fill_ms=50"),
            # One connection reads eight ranges at a time.
            *("--set", "copy.range_bytes=60000", "--set", "max_copy_connections=1"),
            *("--set", "spark.driver_memory=1g"),
            *more,
        ]
        held = self._prolong_lease()
        with ended(self.room.start(*arguments)) as process:
            run = Process(process)
            yield run
        # From one that has died it is taken at once: nobody waits until it has run out.
        assert not held or run.has_told("taking over from a process that has died"), run

    def until_killed(
        self, failpoint: str, meanwhile: Callable[[Process], None] = lambda process: None
    ) -> Process:
        """Run until the process dies at this point, as it must."""
        with self.process(f"{failpoint}=kill") as process:
            meanwhile(process)
            code = process.wait()
        assert code == KILLED, f"{failpoint} was not reached: exit code {code}\n{process}"
        return process

    def catch_up(self) -> Process:
        with self.process("", "--until-caught-up") as process:
            code = process.wait()
        assert code == 0, process
        return process

    def check_nothing_left(self) -> None:
        """Of a process that was killed nothing stays but what is to be gone on with."""
        assert self.room.processes_after(_END_SECONDS) == []
        with self.database.connect() as connection:
            deadline = time.monotonic() + _END_SECONDS
            while left := self._sessions(connection):
                assert time.monotonic() < deadline, left
                time.sleep(0.05)
            slots = connection.execute(
                "SELECT slot_name, temporary, active FROM pg_replication_slots"
                " WHERE database = current_database()"
            ).fetchall()
        assert slots in ([], [(self.slot, False, False)])

    def _sessions(self, connection: psycopg.Connection[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return connection.execute(
            "SELECT application_name, state, query FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'walflow%'"
        ).fetchall()

    def status(self) -> dict[str, Any]:
        """What ``walflow status`` says."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = _exit_code(["status", "--json", "--name", "killed", "--log", str(self.log)])
        assert code == 0
        said: dict[str, Any] = json.loads(out.getvalue())
        return said

    def _prolong_lease(self) -> bool:
        """Let the lease of a process that has died, if there is one, hold for so long that the next
        process finds it held, however slow the machine is."""
        if not (self.log / "state.db").exists():
            return False
        store = open_store(self.settings)
        try:
            lease = store.get_lease()
            if lease is not None:
                store.acquire_lease(lease.holder, _LEASE_SECONDS)
            return lease is not None
        finally:
            store.close()

    def phases(self) -> dict[str, str]:
        """As the store has them, by table."""
        return {table["name"]: table["phase"] for table in self.status()["tables"]}

    @property
    def settings(self) -> Settings:
        ends = {"source.uri": self.database.uri, "destination.uri": f"iceberg://{self.lake}"}
        return load_settings(None, {"name": "killed", "log.folder": str(self.log), **ends}, {})

    def ask_for_resync(self, *tables: str) -> None:
        store = open_store(self.settings)
        try:
            for table in tables:
                store.put_request(Request.new(TableName("public", table), Action.RESYNC))
        finally:
            store.close()

    def planned_ranges(self, table: str) -> int:
        plan = self._copy(table).plan()
        return 0 if plan is None else len(plan.ranges)

    def finished_ranges(self, table: str) -> _Notes:
        """What was read of the table's present copy."""
        copy = self._copy(table)
        plan = copy.plan()
        if plan is None:
            return {}
        notes = {number: copy.folder / f"{number:06}.done" for number in copy.finished_ranges(plan)}
        return {number: _written(note) for number, note in notes.items()}

    def _copy(self, table: str) -> CopyFolder:
        ((oid,),) = self.database.execute(f"SELECT 'public.{table}'::regclass::oid::int8")
        return CopyFolder(oid, self.log / "copy" / str(oid))


def _written(note: Path) -> tuple[int, int]:
    found = note.stat()
    return found.st_ino, found.st_mtime_ns


def in_source(database: Database, table: str) -> Rows:
    return Counter(database.execute(f"SELECT * FROM {table}"))


def in_lake(spark: SparkSession, lake: Path, table: str) -> Rows:
    """Read past everything of ours: a session that knows the folder alone."""
    reader = spark.newSession()
    for name, value in {
        "spark.sql.catalog.killed": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.killed.type": "hadoop",
        "spark.sql.catalog.killed.warehouse": str(lake),
        "spark.sql.catalog.killed.cache-enabled": "false",
    }.items():
        reader.conf.set(name, value)
    rows = reader.table(f"killed.public.{table}").drop("_CHANGE_TYPE", "_LSN", "_TIMESTAMP")
    return Counter(tuple(row) for row in rows.collect())
