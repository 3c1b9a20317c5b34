"""The few parts of Postgres's wire protocol that are used without libpq, and errors from the
server."""

from __future__ import annotations

import struct

from psycopg import pq
from psycopg.pq.abc import PGresult

from walflow.errors import SourceError
from walflow.source.connection import source_error

__all__ = ["POSTGRES_EPOCH", "is_encrypted", "query_frame", "refusal", "server_error"]

POSTGRES_EPOCH = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970: the stream's clocks count from there."""


def is_encrypted(pgconn: pq.abc.PGconn) -> bool:
    """Whether the connection's socket carries encrypted data."""
    if pgconn.ssl_in_use:
        return True
    result = pgconn.exec_(
        b"SELECT 1 FROM pg_catalog.pg_stat_gssapi WHERE pid = pg_backend_pid() AND encrypted"
    )
    return result.status != pq.ExecStatus.TUPLES_OK or result.ntuples > 0


def query_frame(query: bytes) -> bytes:
    return b"Q" + struct.pack("!I", len(query) + 5) + query + b"\0"


def server_error(fields: bytes, doing: str) -> SourceError:
    """The error for an ErrorResponse, whose fields are a code and a text each."""
    texts = {field[:1]: field[1:] for field in fields.split(b"\0") if field}
    return source_error(texts.get(b"M"), texts.get(b"C"), doing)


def refusal(result: PGresult | None, doing: str) -> SourceError:
    """The error for a command that failed. ``doing`` completes "Could not …"."""
    if result is None:
        return source_error(None, None, doing)
    return source_error(
        result.error_message, result.error_field(pq.DiagnosticField.SQLSTATE), doing
    )
