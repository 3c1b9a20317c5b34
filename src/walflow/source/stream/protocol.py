"""The little of Postgres's wire protocol that is spoken past libpq: frames of a kind and a size."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
from psycopg import pq

from walflow.errors import SourceError
from walflow.source.connection import source_error

__all__ = [
    "FRAME_HEADER",
    "POSTGRES_EPOCH",
    "frame_starts",
    "is_encrypted",
    "query_frame",
    "server_error",
]

POSTGRES_EPOCH = 946_684_800_000_000
"""2000-01-01, from which the stream's clocks count, in microseconds since 1970."""

FRAME_HEADER = 5
"""Before a frame's content: its kind, and its size without the kind."""

_size_at = struct.Struct("!I").unpack_from


def is_encrypted(pgconn: pq.abc.PGconn) -> bool:
    """Whether what goes over the connection's socket is not what we would read from it."""
    if pgconn.ssl_in_use:
        return True
    result = pgconn.exec_(
        b"SELECT 1 FROM pg_catalog.pg_stat_gssapi WHERE pid = pg_backend_pid() AND encrypted"
    )
    return result.status != pq.ExecStatus.TUPLES_OK or result.ntuples > 0


def query_frame(query: bytes) -> bytes:
    return b"Q" + struct.pack("!I", len(query) + 5) + query + b"\0"


def frame_starts(buffer: npt.NDArray[np.uint8], first: int, have: int) -> npt.NDArray[np.int64]:
    """Where the whole frames in ``buffer[first:have]`` start, and last where the next one does."""
    view = buffer.data[:have]
    starts: list[int] = []
    append = starts.append
    at = first
    # One step a frame is all that is done singly, so it is as short as can be: it runs over the
    # end, and steps back.
    try:
        while True:
            append(at)
            at += 1 + _size_at(view, at + 1)[0]
    except struct.error:
        pass
    while starts[-1] > have:
        starts.pop()
    return np.array(starts, np.int64)


def server_error(fields: bytes, doing: str) -> SourceError:
    """What an ErrorResponse means: fields of a code and a text each."""
    texts = {field[:1]: field[1:] for field in fields.split(b"\0") if field}
    return source_error(texts.get(b"M"), texts.get(b"C"), doing)
