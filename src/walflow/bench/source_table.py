"""The table of most benchmarks, its changes, and Postgres's own client, which reads them."""

from __future__ import annotations

import subprocess
from typing import Any

import numpy as np
import psycopg

from walflow.bench.measure import Timing, measured
from walflow.model import Lsn
from walflow.testing.postgres import EmbeddedPostgres

__all__ = ["COLUMNS", "HARD_COLUMNS", "ROW", "SingleRows", "read_to_nowhere", "wal_end"]

COLUMNS = """
    id bigint PRIMARY KEY, customer int, amount numeric(12,2), price float8, paid boolean,
    note text, at timestamptz, extra jsonb
"""
ROW = """
    {id}, ({id} % 100003)::int, ({id} % 1000000) / 100.0, {id} * 1.5, {id} % 3 = 0,
    'note number ' || {id}, timestamptz '2024-01-01' + {id} * interval '1 second',
    jsonb_build_object('n', {id})
"""


def wal_end(server: EmbeddedPostgres) -> Lsn:
    with server.connect() as connection:
        row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def read_to_nowhere(server: EmbeddedPostgres, slot: str, publication: str, end: Lsn) -> Timing:
    """How long pg_recvlogical takes for the slot's changes up to the end."""
    command = [
        str(server.pg_recvlogical),
        *("-d", server.uri, "-S", slot, "--start", "--no-loop", "-f", "/dev/null"),
        *("-o", "proto_version=1", "-o", f"publication_names={publication}", f"--endpos={end}"),
    ]
    return measured(lambda: subprocess.run(command, check=True, capture_output=True))


HARD_COLUMNS = """
    ALTER TABLE bench ADD credit numeric, ADD valid_until timestamptz, ADD manual text;
    ALTER TABLE bench ALTER manual SET STORAGE EXTERNAL;
    UPDATE bench SET manual = repeat(md5(id::text), 90) WHERE id % 1000 = 0;
"""
"""Of a table that has rows."""

_UPSERT = """
    INSERT INTO bench AS b (id, amount, manual) VALUES (%s, 0, repeat(md5(%s::text), 90))
    ON CONFLICT (id) DO UPDATE SET
        amount = b.amount + 1,
        credit = CASE WHEN b.id %% 3 = 0 THEN 'NaN' ELSE 1.0 END,
        valid_until = CASE WHEN b.id %% 2 = 0 THEN timestamptz 'infinity' ELSE now() END
"""
_MOVE = "UPDATE bench SET id = -id WHERE id IN (%s, -%s)"
_MOVES_EVERY = 10


class SingleRows:
    """``change`` changes one of the rows with keys up to so many.

    Plain: an update. Hard: updates with infinity and NaN in every second row, which leave the long
    text out; each tenth changes the key, or changes it back; after a truncate, rows come again.
    """

    def __init__(self, rows: int, *, hard: bool) -> None:
        self._rows = rows
        self._hard = hard
        self._random = np.random.default_rng(11)
        self._number = 0

    def change(self, connection: psycopg.Connection[Any]) -> None:
        """In a transaction of its own."""
        key = int(self._random.integers(1, self._rows + 1))
        if not self._hard:
            connection.execute("UPDATE bench SET amount = amount + 1 WHERE id = %s", [key])
            return
        self._number += 1
        if self._number % 2:
            key -= key % -1000  # one with a long text
        moved = 0
        if self._number % _MOVES_EVERY == 0:
            moved = connection.execute(_MOVE, [key, key]).rowcount
        if not moved:
            connection.execute(_UPSERT, [key, key])

    def empty(self, connection: psycopg.Connection[Any]) -> None:
        """If the changes are hard ones."""
        if self._hard:
            connection.execute("TRUNCATE bench")
