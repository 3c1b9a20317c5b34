"""Reading ``COPY … TO STDOUT (FORMAT binary)`` in large pieces."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from walflow.source.codec.cells import Positions
from walflow.source.connection import Session
from walflow.source.wire.frames import Frames
from walflow.source.wire.wire_reader import open_reader

__all__ = ["PreparationTimeout", "copy_out"]

_SIGNATURE_SIZE = 19
_TRAILER_SIZE = 2
_LOOK_SECONDS = 0.2
_FLOWING_BYTES = 256 << 10
"""From here on rows come faster than one by one: see ``WireReader.wait``."""


class PreparationTimeout(Exception):
    """The server did not send anything in the time that it was given; the query is cancelled."""


def copy_out(
    connection: Session,
    query: bytes,
    doing: str,
    *,
    piece_bytes: int,
    first_row_seconds: float | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[Frames]:
    """Run a COPY and give its rows in pieces of about ``piece_bytes``, none of them empty.

    ``doing`` completes "Could not …" in errors. Raises PreparationTimeout if the first row takes
    longer than ``first_row_seconds``, or if it is ``cancelled`` before. A caller that stops early
    must close the connection.
    """
    reader = open_reader(connection.pgconn, query, doing)
    try:
        deadline = None if first_row_seconds is None else time.monotonic() + first_row_seconds
        starts: list[Positions] = []
        ends: list[Positions] = []
        size, has_signature = 0, True
        while not reader.over:
            new_starts, new_ends = reader.receive(piece_bytes)
            if len(new_starts):
                starts.append(new_starts)
                ends.append(new_ends)
                size = int(new_ends[-1])
            if starts and (size >= piece_bytes or reader.over):
                start, end = np.concatenate(starts), np.concatenate(ends)
                if has_signature:
                    # It stands before the first row, in its frame or in one of its own.
                    start[0] += _SIGNATURE_SIZE
                    has_signature = False
                rows = end - start > _TRAILER_SIZE
                data = reader.cut(size)
                starts, ends, size = [], [], 0
                if rows.all():
                    yield Frames(data, start, end)
                elif rows.any():
                    yield Frames(data, start[rows], end[rows])
            elif not reader.begun and not reader.over:
                if cancelled() or (deadline is not None and time.monotonic() >= deadline):
                    connection.pgconn.get_cancel().cancel()
                    raise PreparationTimeout
                reader.wait(_LOOK_SECONDS, flowing=False)
            elif not reader.over:
                # Not for ever: an encryption layer may hold what the socket no longer does.
                reader.wait(1.0, flowing=size >= _FLOWING_BYTES)
        if (failure := reader.failure()) is not None:
            raise failure
    finally:
        reader.close()
