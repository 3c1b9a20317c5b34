"""Reads the rows and messages that answer a command, in large pieces.

libpq hands out one message a call, which costs more than decoding the message. So if the connection
is not encrypted, many messages at a time are read from its socket: libpq has set the connection up,
sees neither the command nor the answer, and can be used again afterwards. If it is encrypted,
messages come through libpq. Both ways give the same frames. The live stream, backlogs and copies
are all read by this.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from abc import ABC, abstractmethod

import numpy as np
import psycopg
from psycopg import pq

from walflow.errors import ConnectionLost, SourceError
from walflow.source.codec.cells import PADDING, Bytes, Positions
from walflow.source.wire.frames import FRAME_HEADER, frame_starts
from walflow.source.wire.protocol import is_encrypted, query_frame, refusal, server_error

__all__ = ["WireReader", "open_reader"]

_SEND_SECONDS = 60.0
_FLOWING_LOW_WATER = 128 << 10
_FLOWING_SECONDS = 0.01
_SLACK = 64 << 10
_DATA, _ERROR, _READY, _COPY_OUT, _COPY_BOTH = b"dEZHW"


def open_reader(pgconn: pq.abc.PGconn, command: bytes, doing: str) -> WireReader:
    """Send a command that is answered with CopyData messages. ``doing`` completes "Could not …" in
    errors.

    The reader must be closed before the connection is used for anything else.
    """
    kind = _ThroughLibpq if is_encrypted(pgconn) else _FromSocket
    reader = kind(pgconn, doing)
    try:
        reader._begin(command)
    except BaseException:
        reader.close()
        raise
    return reader


class WireReader(ABC):
    """The messages of an answer. Used by one thread.

    They are collected in ``buffer`` until ``cut`` hands over its beginning.
    """

    def __init__(self, pgconn: pq.abc.PGconn, doing: str) -> None:
        self._pgconn = pgconn
        self._doing = doing
        # Of a duplicate, because closing a socket object closes the connection's socket too.
        self._socket = socket.socket(fileno=os.dup(pgconn.socket))
        self._low_water = 1
        self.buffer: Bytes = np.empty(_SLACK, np.uint8)
        self._have = 0
        self._whole = 0
        """Messages are whole up to here."""
        self.begun = False
        """Whether the server has accepted the command."""
        self.over = False
        """Whether the answer has ended, with or without an error: see ``failure``."""

    @abstractmethod
    def receive(self, limit: int) -> tuple[Positions, Positions]:
        """Read what has arrived, until about ``limit`` bytes of whole messages are in the buffer.
        Returns where the contents of the new messages begin and end. Never waits."""

    @abstractmethod
    def send(self, message: bytes) -> None:
        """Send a CopyData message, without waiting for it to be read."""

    @abstractmethod
    def send_end(self) -> None:
        """Tell the server that nothing more will be sent."""

    @abstractmethod
    def failure(self) -> SourceError | None:
        """The error that ended the answer. None: it ended in order."""

    @abstractmethod
    def _begin(self, command: bytes) -> None: ...

    def cut(self, size: int) -> Bytes:
        """Hand over this many bytes of the buffer, with padding after them. Positions in the rest
        of the buffer are lower by this size from now on."""
        whole, rest = self.buffer, self._have - size
        if size >= len(whole) // 4:
            # Handed over as it is; what follows moves to a new buffer, which grows when need be.
            data = whole[: size + PADDING]
            self.buffer = np.empty(rest + _SLACK, np.uint8)
            self.buffer[:rest] = whole[size : self._have]
        else:
            data = whole[: size + PADDING].copy()
            whole[:rest] = whole[size : self._have].copy()
        self._have -= size
        self._whole -= size
        return data

    def drop_waiting(self) -> None:
        """Drop the whole messages in the buffer."""
        if self._whole:
            self.cut(self._whole)

    def wait(self, seconds: float, *, flowing: bool) -> None:
        """Sleep until something arrives.

        While messages flow, waits for a few milliseconds' worth of them: the server sends them in
        small pieces, and waking up for each would cost more than everything else that is done with
        it.
        """
        if self._socket.fileno() < 0:
            raise ConnectionLost(f"Could not {self._doing}: the connection was closed.")
        self._set_low_water(_FLOWING_LOW_WATER if flowing else 1)
        longest = min(seconds, _FLOWING_SECONDS) if flowing else seconds
        select.select([self._socket], [], [], max(0.0, longest))

    def close(self) -> None:
        """Release the socket. The connection is not closed. Repeats safely."""
        if self._socket.fileno() >= 0:
            # It is the connection's setting: libpq would wait for as much.
            self._set_low_water(1)
            self._socket.close()

    def _set_low_water(self, size: int) -> None:
        if size != self._low_water:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            self._low_water = size

    def _make_room(self, size: int) -> None:
        """Make the buffer large enough for this many bytes."""
        if len(self.buffer) < size + PADDING:
            # At least twice as much, so that a message of any size is moved only a few times.
            larger = np.empty(max(size + _SLACK, 2 * len(self.buffer)), np.uint8)
            larger[: self._have] = self.buffer[: self._have]
            self.buffer = larger

    def _lost(self, why: object) -> ConnectionLost:
        return ConnectionLost(f"Could not {self._doing}: {why}")


class _FromSocket(WireReader):
    def __init__(self, pgconn: pq.abc.PGconn, doing: str) -> None:
        super().__init__(pgconn, doing)
        self._socket.setblocking(False)
        self._error: bytes | None = None
        self._closed = False

    def _begin(self, command: bytes) -> None:
        self._send(query_frame(command))

    def receive(self, limit: int) -> tuple[Positions, Positions]:
        limit += self._have - self._whole  # The beginning of one more message does not count.
        try:
            while self._have < limit:
                self._make_room(limit)
                room = self.buffer.data[self._have : len(self.buffer) - PADDING]
                size = self._socket.recv_into(room)
                room.release()
                if size == 0:
                    self._closed = self.over = True
                    break
                self._have += size
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._lost(error) from error
        return self._new_frames()

    def _new_frames(self) -> tuple[Positions, Positions]:
        borders = frame_starts(self.buffer, self._whole, self._have)
        self._whole = int(borders[-1])
        starts, ends = borders[:-1], borders[1:]
        is_data = self.buffer[starts] == _DATA
        if not is_data.all():
            for start, end in zip(starts[~is_data].tolist(), ends[~is_data].tolist(), strict=True):
                self._hear(self.buffer[start:end].tobytes())
            starts, ends = starts[is_data], ends[is_data]
        return starts + FRAME_HEADER, ends

    def _hear(self, frame: bytes) -> None:
        """Handle a frame that is not CopyData."""
        match frame[0]:
            case kind if kind in (_COPY_OUT, _COPY_BOTH):
                self.begun = True
            case kind if kind == _ERROR:
                self._error = frame[FRAME_HEADER:]
            case kind if kind == _READY:
                self.over = True

    def send(self, message: bytes) -> None:
        self._send(b"d" + struct.pack("!I", len(message) + 4) + message)

    def send_end(self) -> None:
        self._send(b"c" + struct.pack("!I", 4))

    def _send(self, data: bytes) -> None:
        deadline = time.monotonic() + _SEND_SECONDS
        try:
            while data:
                try:
                    data = data[self._socket.send(data) :]
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise self._lost("the server takes nothing any more") from None
                    select.select([], [self._socket], [], 1.0)
        except OSError as error:
            raise self._lost(error) from error

    def failure(self) -> SourceError | None:
        if self._error is not None:
            return server_error(self._error, self._doing)
        return self._lost("the server closed the connection.") if self._closed else None


class _ThroughLibpq(WireReader):
    def _begin(self, command: bytes) -> None:
        self._pgconn.nonblocking = 1
        self._failure: SourceError | None = None
        try:
            self._pgconn.send_query(command)
            self._pgconn.flush()
        except psycopg.Error as error:
            raise self._lost(error) from error

    def receive(self, limit: int) -> tuple[Positions, Positions]:
        data, sizes = bytearray(), []
        try:
            self._pgconn.consume_input()
            if self._has_begun():
                get, room = self._pgconn.get_copy_data, limit - self._whole
                while room > 0:
                    size, message = get(1)
                    if size <= 0:
                        if size < 0:
                            self._end()
                        break
                    data += message
                    sizes.append(size)
                    room -= size
        except psycopg.Error as error:
            raise self._lost(error) from error
        self._make_room(self._have + len(data))
        self.buffer[self._have : self._have + len(data)] = np.frombuffer(data, np.uint8)
        ends = self._have + np.cumsum(np.array(sizes, np.int64))
        self._have += len(data)
        self._whole = self._have
        return ends - np.array(sizes, np.int64), ends

    def _has_begun(self) -> bool:
        if not self.begun and not self.over and not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            statuses = pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH
            if result is not None and result.status in statuses:
                self.begun = True
            else:
                self._failure = refusal(result, self._doing)
                self._end()
        return self.begun and not self.over

    def _end(self) -> None:
        """Read the server's last message."""
        self.over = True
        while (result := self._pgconn.get_result()) is not None:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                self._failure = self._failure or refusal(result, self._doing)
            elif result.status in (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_BOTH):
                break  # The server waits for our end.

    def send(self, message: bytes) -> None:
        try:
            self._pgconn.put_copy_data(message)
            self._pgconn.flush()
        except psycopg.Error as error:
            raise self._lost(error) from error

    def send_end(self) -> None:
        try:
            self._pgconn.put_copy_end()
            self._pgconn.flush()
        except psycopg.Error as error:
            raise self._lost(error) from error

    def failure(self) -> SourceError | None:
        return self._failure
