"""Answers by which Postgres refuses a command on the low-level connections."""

from __future__ import annotations

from psycopg import pq
from psycopg.pq.abc import PGresult

from walflow.errors import SourceError
from walflow.source.connection import source_error

__all__ = ["refusal"]


def refusal(result: PGresult | None, doing: str) -> SourceError:
    """The error for a command that was not carried out; ``doing`` completes "Could not …"."""
    if result is None:
        return source_error(None, None, doing)
    return source_error(
        result.error_message, result.error_field(pq.DiagnosticField.SQLSTATE), doing
    )
