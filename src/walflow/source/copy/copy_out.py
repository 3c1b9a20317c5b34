"""Reading ``COPY … TO STDOUT (FORMAT binary)`` in large pieces.

libpq hands out one row a call, and a call costs more than decoding the row. So where the
connection is not encrypted, the rows are read from its socket directly, many at a time; libpq
neither sends the query nor sees the answer, and can be used again afterwards. Encrypted
connections go through libpq. Both give the same pieces.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg import pq

from walflow.errors import ConnectionLost, SourceError
from walflow.source.codec.cells import PADDING, Positions, pad
from walflow.source.connection import Session
from walflow.source.stream.protocol import (
    FRAME_HEADER,
    frame_starts,
    is_encrypted,
    query_frame,
    server_error,
)
from walflow.source.stream.refusals import refusal

__all__ = ["Piece", "PreparationTimeout", "copy_out"]

_SIGNATURE_SIZE = 19
_TRAILER_SIZE = 2
_DATA, _ERROR, _READY = b"dEZ"
_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole rows: ``data[start[i]:end[i]]``, with padding behind the data."""

    data: npt.NDArray[np.uint8]
    start: Positions
    end: Positions

    def __len__(self) -> int:
        return len(self.start)


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
) -> Iterator[Piece]:
    """Run a COPY and give its rows in pieces of about ``piece_bytes``, none of them empty.

    ``doing`` completes "Could not …" in errors. Raises PreparationTimeout if the first row takes
    longer than ``first_row_seconds``, or if it is ``cancelled`` before. A caller that stops early
    must close the connection.
    """
    patience = _Patience(first_row_seconds, cancelled)
    pieces = (_through_libpq if is_encrypted(connection.pgconn) else _from_socket)(
        connection.pgconn, query, doing, piece_bytes, patience
    )
    first = True
    for piece in pieces:
        start, end = piece.start, piece.end
        if first and len(start):
            # The signature stands before the first row, in its frame or in one of its own.
            start = start.copy()
            start[0] += _SIGNATURE_SIZE
            first = False
        rows = end - start > _TRAILER_SIZE
        if rows.all():
            yield Piece(piece.data, start, end)
        elif rows.any():
            yield Piece(piece.data, start[rows], end[rows])


class _Patience:
    """How long the first row is waited for."""

    def __init__(self, seconds: float | None, cancelled: Callable[[], bool]) -> None:
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._cancelled = cancelled

    def wait(self, pgconn: pq.abc.PGconn) -> None:
        """Return when there is something to read; else cancel the query and raise."""
        while not select.select([pgconn.socket], [], [], _LOOK_SECONDS)[0]:
            late = self._deadline is not None and time.monotonic() >= self._deadline
            if late or self._cancelled():
                pgconn.get_cancel().cancel()
                raise PreparationTimeout


def _from_socket(
    pgconn: pq.abc.PGconn, query: bytes, doing: str, piece_bytes: int, patience: _Patience
) -> Iterator[Piece]:
    wire = socket.socket(fileno=os.dup(pgconn.socket))
    try:
        wire.setblocking(True)
        wire.sendall(query_frame(query))
        patience.wait(pgconn)
        buffer = np.empty(piece_bytes + (64 << 10) + PADDING, np.uint8)
        have = 0
        error: bytes | None = None
        while True:
            room = buffer.data[have : len(buffer) - PADDING]
            got = wire.recv_into(room)
            del room
            have += got
            if got == 0:
                raise _closed(buffer, have, doing)
            # A frame of type Z ends the answer, and is the last thing that the server sends.
            over = have >= 6 and bytes(buffer[have - 6 : have - 1]) == b"Z\0\0\0\5"
            if have < piece_bytes and not over:
                continue
            frames = frame_starts(buffer, 0, have)
            used = int(frames[-1])
            if used == 0:
                if have + PADDING >= len(buffer):  # one row is larger than the buffer
                    buffer = np.concatenate([buffer, np.empty(len(buffer), np.uint8)])
                continue
            rest = buffer[used:have].copy()
            whole, buffer = (
                buffer,
                np.empty(max(piece_bytes, len(rest)) + (64 << 10) + PADDING, np.uint8),
            )
            buffer[: len(rest)] = rest
            have = len(rest)
            whole[used : used + PADDING] = 0
            kinds = whole[frames[:-1]]
            for at in frames[:-1][kinds == _ERROR]:
                following = frames[np.searchsorted(frames, at) + 1]
                error = whole[at + FRAME_HEADER : following].tobytes()
            data = kinds == _DATA
            yield Piece(whole, frames[:-1][data] + FRAME_HEADER, frames[1:][data])
            if over and kinds[-1] == _READY:
                break
        if error is not None:
            raise server_error(error, doing)
    except OSError as lost:
        raise ConnectionLost(f"Could not {doing}: {lost}") from lost
    finally:
        wire.setblocking(False)  # the setting is the connection's own: libpq expects it so
        wire.close()


def _closed(buffer: npt.NDArray[np.uint8], have: int, doing: str) -> SourceError:
    """The error for a closed connection: the server's last word, if it sent one."""
    frames = frame_starts(buffer, 0, have)
    for start, end in itertools.pairwise(frames.tolist()):
        if buffer[start] == _ERROR:
            return server_error(buffer[start + FRAME_HEADER : end].tobytes(), doing)
    return ConnectionLost(f"Could not {doing}: the server closed the connection.")


def _through_libpq(
    pgconn: pq.abc.PGconn, query: bytes, doing: str, piece_bytes: int, patience: _Patience
) -> Iterator[Piece]:
    pgconn.send_query(query)
    while pgconn.is_busy():
        patience.wait(pgconn)
        pgconn.consume_input()
    result = pgconn.get_result()
    if result is None or result.status != pq.ExecStatus.COPY_OUT:
        raise refusal(result, doing)
    data, sizes = bytearray(), []
    get = pgconn.get_copy_data
    try:
        while True:
            # Waiting inside libpq would stop every other thread of this process too.
            size, row = get(1)
            if size == 0:
                # Not for ever: an encryption layer may hold what the socket no longer does.
                select.select([pgconn.socket], [], [], 1.0)
                pgconn.consume_input()
                continue
            if size < 0:
                break
            data += row
            sizes.append(size)
            if len(data) >= piece_bytes:
                yield _piece(data, sizes)
                data, sizes = bytearray(), []
    except psycopg.Error as error:
        raise ConnectionLost(f"Could not {doing}: {error}") from error
    if sizes:
        yield _piece(data, sizes)
    while (answer := pgconn.get_result()) is not None:
        if answer.status == pq.ExecStatus.FATAL_ERROR:
            raise refusal(answer, doing)


def _piece(data: bytearray, sizes: list[int]) -> Piece:
    size = np.array(sizes, np.int64)
    end = np.cumsum(size)
    return Piece(pad(data), end - size, end)
