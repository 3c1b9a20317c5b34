"""The table of most benchmarks, and its changes read by Postgres's own client."""

from __future__ import annotations

import subprocess

from walflow.bench.measure import Timing, measured
from walflow.model import Lsn
from walflow.testing.postgres import EmbeddedPostgres

__all__ = ["COLUMNS", "ROW", "read_to_nowhere", "wal_end"]

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
