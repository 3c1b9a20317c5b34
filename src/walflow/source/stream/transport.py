"""How the live stream comes in: from the socket itself, or through libpq where it is encrypted.

libpq hands out one message a call, which costs more than decoding the message. So where the
connection is not encrypted, messages are taken from its socket many at a time; libpq has set the
connection up, and sees nothing of the stream. Both give the same frames.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg import pq

from walflow.errors import ConnectionLost, SourceError
from walflow.model import Lsn
from walflow.source.codec.cells import PADDING
from walflow.source.stream.frames import LIVE_HEADER, FrameBuffer, Frames, through_last_commit
from walflow.source.stream.protocol import (
    FRAME_HEADER,
    frame_starts,
    is_encrypted,
    query_frame,
    server_error,
)
from walflow.source.stream.refusals import refusal

__all__ = ["Keepalive", "Transport", "open_transport"]

Keepalive = Callable[[Lsn, bool], None]
"""Called with how far the server is, and whether it asks for an answer."""

_KEEPALIVE_SIZE = 18
_STREAM_ANSWER_SECONDS = 60.0
_FLOWING_LOW_WATER = 128 << 10
_FLOWING_SECONDS = 0.01
_SLACK = 64 << 10
_DATA, _ERROR, _DONE, _STREAMS, _WAL, _ALIVE = b"dEcWwk"


class Transport(Protocol):
    """A stream that has begun. Used by one thread."""

    received: Lsn
    """The newest position seen in a message."""

    @property
    def size(self) -> int:
        """How many bytes of messages wait to be cut off."""

    def take(self, limit: int) -> bool:
        """Take what has arrived, up to about ``limit`` waiting bytes. True: the stream ended."""

    def cut(self, *, partial: bool) -> Frames | None:
        """Hand over what waits, up to the last commit (see FrameBuffer.cut)."""

    def wait(self, seconds: float, *, flowing: bool) -> None:
        """Sleep until something arrives.

        While messages flow, a few milliseconds' worth of them is waited for: the walsender sends
        each by itself, and waking for each costs more than all else that is done with it.
        """

    def send(self, message: bytes) -> None:
        """Send a message to the server, without waiting for it to be read."""

    def failure(self) -> SourceError:
        """Why the server ended the stream."""

    def finish(self, deadline: float) -> None:
        """End the stream in order. What still comes is discarded."""

    def close(self) -> None:
        """Let go of the socket; the connection is not closed. Repeats safely."""


def open_transport(
    pgconn: pq.abc.PGconn, command: str, doing: str, keepalive: Keepalive
) -> Transport:
    """Start the stream by this command; ``doing`` completes "Could not …" if it is refused."""
    kind = _ThroughLibpq if is_encrypted(pgconn) else _FromSocket
    return kind(pgconn, command, doing, keepalive)


class _Waiting:
    """Sleeping on the connection's socket."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self._socket = socket.socket(fileno=os.dup(pgconn.socket))
        self._socket.setblocking(False)
        self._low_water = 1

    def close(self) -> None:
        self._socket.close()

    def _sleep(self, seconds: float, *, flowing: bool) -> None:
        if self._socket.fileno() < 0:
            raise ConnectionLost("the replication stream was closed")
        low_water = _FLOWING_LOW_WATER if flowing else 1
        if low_water != self._low_water:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)
            self._low_water = low_water
        longest = min(seconds, _FLOWING_SECONDS) if flowing else seconds
        select.select([self._socket], [], [], max(0.0, longest))


class _FromSocket(_Waiting):
    def __init__(
        self, pgconn: pq.abc.PGconn, command: str, doing: str, keepalive: Keepalive
    ) -> None:
        super().__init__(pgconn)
        self.received = Lsn(0)
        self._keepalive = keepalive
        self._buffer = np.empty(_SLACK, np.uint8)
        self._have = 0
        self._split = 0
        """Up to here frames are known."""
        self._starts: list[npt.NDArray[np.int64]] = []
        self._ends: list[npt.NDArray[np.int64]] = []
        self._ended: str | None = None
        self._error: bytes | None = None
        self._streaming = False
        try:
            self._send_all(query_frame(command.encode()))
            deadline = time.monotonic() + _STREAM_ANSWER_SECONDS
            while not self._streaming:
                if time.monotonic() > deadline:
                    raise ConnectionLost(f"Could not {doing}: the server does not answer.")
                self._sleep(1.0, flowing=False)
                if self.take(_SLACK) and not self._streaming:
                    raise self._refused(doing)
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        return self._split if self._starts else 0

    def take(self, limit: int) -> bool:
        # The limit is for whole messages: the beginning of one more does not count.
        limit += self._have - self._split
        try:
            while self._have < limit:
                self._make_room(limit)
                room = self._buffer.data[self._have : len(self._buffer) - PADDING]
                got = self._socket.recv_into(room)
                room.release()
                if got == 0:
                    self._ended = self._ended or "the server closed the connection"
                    break
                self._have += got
        except BlockingIOError:
            pass
        except OSError as error:
            raise ConnectionLost(f"the replication stream broke: {error}") from error
        self._find_frames()
        return self._ended is not None

    def _make_room(self, limit: int) -> None:
        if len(self._buffer) >= limit + PADDING:
            return
        # At least twice as much, so that a message of any size is moved only a few times.
        larger = np.empty(max(limit + _SLACK, 2 * len(self._buffer)), np.uint8)
        larger[: self._have] = self._buffer[: self._have]
        self._buffer = larger

    def _find_frames(self) -> None:
        borders = frame_starts(self._buffer, self._split, self._have)
        self._split = int(borders[-1])
        starts, ends = borders[:-1], borders[1:]
        if not len(starts):
            return
        kinds = self._buffer[starts]
        wal = (kinds == _DATA) & (self._buffer[starts + FRAME_HEADER] == _WAL)
        if not wal.all():
            for start, end in zip(starts[~wal].tolist(), ends[~wal].tolist(), strict=True):
                self._control(self._buffer[start:end].tobytes())
            starts, ends = starts[wal], ends[wal]
        if len(starts):
            self._starts.append(starts + (FRAME_HEADER + LIVE_HEADER))
            self._ends.append(ends)
            at = int(starts[-1]) + FRAME_HEADER + 9
            self.received = Lsn(int.from_bytes(self._buffer[at : at + 8].tobytes(), "big"))

    def _control(self, frame: bytes) -> None:
        match frame[0]:
            case kind if kind == _DATA and frame[FRAME_HEADER] == _ALIVE:
                end, _clock, reply = struct.unpack_from("!QqB", frame, FRAME_HEADER + 1)
                self._keepalive(Lsn(end), bool(reply))
            case kind if kind == _STREAMS:
                self._streaming = True
            case kind if kind == _ERROR:
                self._error = frame[FRAME_HEADER:]
                self._ended = "the server ended the stream with an error"
            case kind if kind == _DONE:
                self._ended = self._ended or "the server ended the stream"

    def _refused(self, doing: str) -> SourceError:
        if self._error is None:
            return ConnectionLost(f"Could not {doing}: {self._ended}")
        return server_error(self._error, doing)

    def cut(self, *, partial: bool) -> Frames | None:
        if not self._starts:
            return None
        starts, ends = np.concatenate(self._starts), np.concatenate(self._ends)
        count = through_last_commit(self._buffer, starts) or (len(starts) if partial else 0)
        if not count:
            return None
        border = int(ends[count - 1])
        whole, have = self._buffer, self._have
        if border >= len(whole) // 4:
            # Handed over as it is; what follows moves to a new buffer.
            data = whole[: border + PADDING]
            self._buffer = np.empty(len(whole), np.uint8)
            self._buffer[: have - border] = whole[border:have]
        else:
            data = whole[: border + PADDING].copy()
            whole[: have - border] = whole[border:have].copy()
        frames = Frames(data, starts[:count], ends[:count])
        self._have -= border
        self._split -= border
        rest = count < len(starts)
        self._starts = [starts[count:] - border] if rest else []
        self._ends = [ends[count:] - border] if rest else []
        return frames

    def wait(self, seconds: float, *, flowing: bool) -> None:
        self._sleep(seconds, flowing=flowing)

    def send(self, message: bytes) -> None:
        self._send_all(b"d" + struct.pack("!I", len(message) + 4) + message)

    def _send_all(self, data: bytes) -> None:
        deadline = time.monotonic() + _STREAM_ANSWER_SECONDS
        try:
            while data:
                try:
                    data = data[self._socket.send(data) :]
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ConnectionLost("the server takes nothing any more") from None
                    select.select([], [self._socket], [], 1.0)
        except OSError as error:
            raise ConnectionLost(f"the replication stream broke: {error}") from error

    def failure(self) -> SourceError:
        return self._refused("go on reading")

    def finish(self, deadline: float) -> None:
        self._send_all(b"c" + struct.pack("!I", 4))
        while self._ended is None and time.monotonic() < deadline:
            self._sleep(0.1, flowing=False)
            self.take(self._split + _SLACK)
            self._starts, self._ends = [], []
            if self._split == self._have:
                self._have = self._split = 0


class _ThroughLibpq(_Waiting):
    def __init__(
        self, pgconn: pq.abc.PGconn, command: str, doing: str, keepalive: Keepalive
    ) -> None:
        result = pgconn.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise refusal(result, doing)
        pgconn.nonblocking = 1
        super().__init__(pgconn)
        self.received = Lsn(0)
        self._pgconn = pgconn
        self._keepalive = keepalive
        self._buffer = FrameBuffer(LIVE_HEADER)

    @property
    def size(self) -> int:
        return len(self._buffer.data)

    def take(self, limit: int) -> bool:
        buffer = self._buffer
        data, append, get = buffer.data, buffer.lengths.append, self._pgconn.get_copy_data
        room = limit - len(data)
        ended = False
        try:
            self._pgconn.consume_input()
            while room > 0:
                size, message = get(1)
                if size > _KEEPALIVE_SIZE:
                    data += message
                    append(size)
                    room -= size
                elif size == _KEEPALIVE_SIZE:
                    end, _clock, reply = struct.unpack_from("!QqB", message, 1)
                    self._keepalive(Lsn(end), bool(reply))
                else:
                    ended = size < 0
                    break
        except psycopg.Error as error:
            raise ConnectionLost(f"the replication stream broke: {error}") from error
        if buffer.lengths:
            last = len(data) - buffer.lengths[-1]
            self.received = Lsn(int.from_bytes(data[last + 9 : last + 17], "big"))
        return ended

    def cut(self, *, partial: bool) -> Frames | None:
        return self._buffer.cut(partial=partial)

    def wait(self, seconds: float, *, flowing: bool) -> None:
        self._sleep(seconds, flowing=flowing)

    def send(self, message: bytes) -> None:
        try:
            self._pgconn.put_copy_data(message)
            self._pgconn.flush()
        except psycopg.Error as error:
            raise ConnectionLost(f"the replication stream broke: {error}") from error

    def failure(self) -> SourceError:
        with contextlib.suppress(psycopg.Error):
            while (result := self._pgconn.get_result()) is not None:
                if result.error_message:
                    return refusal(result, "go on reading")
        return ConnectionLost("the server ended the stream")

    def finish(self, deadline: float) -> None:
        self._pgconn.put_copy_end()
        while self._pgconn.flush() and time.monotonic() < deadline:
            select.select([], [self._socket], [], 0.1)
        while time.monotonic() < deadline and self._pgconn.get_copy_data(1)[0] >= 0:
            self._sleep(0.1, flowing=False)
            self._pgconn.consume_input()
