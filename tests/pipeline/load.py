"""A write load that touches everything a replay can get wrong, and is cheap to compare."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from types import TracebackType
from typing import Self

import psycopg

from tests.pipeline.capturing import changes
from tests.pipeline.replaying import Replayer, Value, frozen
from walflow.changelog import ChangeLog

TABLES = ("keyed", "pair", "loose")
MAKE = (
    "CREATE TABLE keyed (id bigint PRIMARY KEY, n int, note text, big text)",
    "CREATE TABLE pair (a int, b text, n int, PRIMARY KEY (a, b))",
    "CREATE TABLE loose (a int, b text)",
    "ALTER TABLE loose REPLICA IDENTITY FULL",
    "CREATE PUBLICATION p FOR TABLE keyed, pair, loose",
)


class Load:
    """Threads that write until the end of the block; a server that goes away is waited for."""

    def __init__(self, uri: str, threads: int = 2, pause: float = 0.0) -> None:
        self._uri = uri
        self._pause = pause
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(threads)
        ]
        self.transactions = 0
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
        if self.error is not None:
            raise self.error

    def _run(self, number: int) -> None:
        chance = random.Random(number)
        try:
            while not self._over.is_set():
                with contextlib.suppress(psycopg.OperationalError):
                    self._write(number, chance)
                self._over.wait(0.05)
        except BaseException as error:
            self.error = error

    def _write(self, number: int, chance: random.Random) -> None:
        with psycopg.connect(self._uri, autocommit=True) as connection:
            while not self._over.is_set():
                with (
                    contextlib.suppress(psycopg.errors.UniqueViolation),
                    connection.transaction(force_rollback=chance.random() < 0.05),
                ):
                    for _ in range(chance.choice((1, 1, 2, 5, 30))):
                        connection.execute(statement(number, chance))
                self.transactions += 1
                if self._pause:
                    self._over.wait(self._pause)


def statement(number: int, chance: random.Random) -> str:
    """Threads write rows of their own, so that they do not wait for each other."""
    some = chance.randrange(200) * 10 + number
    return chance.choice(
        (
            f"INSERT INTO keyed VALUES ({some}, 1, 'new', repeat(md5(random()::text), 200))"
            " ON CONFLICT (id) DO UPDATE SET n = keyed.n + 1",
            f"UPDATE keyed SET note = 'changed {chance.random()}' WHERE id = {some}",
            f"UPDATE keyed SET id = {chance.randrange(200, 400) * 10 + number} WHERE id = {some}",
            f"DELETE FROM keyed WHERE id % 10 = {number} AND id > {some} AND id < {some + 100}",
            f"INSERT INTO pair SELECT {some}, 'b' || i, i FROM generate_series(1, 5) i"
            " ON CONFLICT DO NOTHING",
            f"UPDATE pair SET b = b || 'x', n = NULL WHERE a = {some} AND n IS NOT NULL",
            f"DELETE FROM pair WHERE a % 10 = {number} AND a < {some}",
            f"INSERT INTO loose VALUES ({number}, 'same'), ({number}, 'same'), ({some}, NULL)",
            f"UPDATE loose SET b = 'other' WHERE a = {some}",
            f"DELETE FROM loose WHERE a = {number}",
        )
    )


def assert_replays(uri: str, log: ChangeLog) -> None:
    """What the log replays to, from empty tables, is what the source has now."""
    found = changes(log)
    with psycopg.connect(uri, autocommit=True) as connection:
        for table in TABLES:
            rows = connection.execute(f"SELECT * FROM {table}").fetchall()
            (oid,) = connection.execute("SELECT %s::regclass::oid", [table]).fetchone() or (0,)
            pairs = found.get(oid, [])
            theirs: Counter[tuple[Value, ...]] = Counter(
                tuple((frozen(value), None) for value in row) for row in rows
            )
            if not pairs:
                assert not theirs
                continue
            replayer = Replayer(pairs[-1][0])
            replayer.replay(row for _, row in pairs)
            assert replayer.rows == theirs, table
