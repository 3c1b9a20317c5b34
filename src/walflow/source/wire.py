"""The replication connection: slots, and the live stream of the walsender.

It stands on psycopg's binding of libpq, so TLS, authentication and every connection parameter
are libpq's own. The stream is read by one thread, which does nothing else: replies to keepalives
leave on time however slow decoding, the disk or a destination may be.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import psycopg
from psycopg import pq

from walflow.errors import ConnectionLost
from walflow.model import Lsn, quote_identifier
from walflow.source.connection import connect
from walflow.source.frames import LIVE_HEADER, FrameBuffer, Frames
from walflow.source.refusals import refusal
from walflow.source.values import SESSION_OPTIONS

__all__ = ["CreatedSlot", "Replication", "SystemIdentity", "output_options"]

_POSTGRES_EPOCH = 946_684_800_000_000
_KEEPALIVE_SIZE = 18
_STATUS_SECONDS = 5.0
_FLOWING_LOW_WATER = 128 << 10
_FLOWING_SECONDS = 0.01
_RECEIVE_OPTIONS = "-c logical_decoding_work_mem=256MB -c wal_sender_timeout=5min"


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    system_id: str
    timeline: int
    position: Lsn


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    consistent_point: Lsn
    """Transactions that commit after this are in the stream; those before, in the snapshot."""
    snapshot: str
    """Importable until the connection's next command."""


def output_options(publication: str) -> dict[str, str]:
    """Options of the output plugin, the same for the live and the bulk path."""
    return {"proto_version": "1", "publication_names": quote_identifier(publication)}


class Replication:
    """One replication connection. Used by one thread."""

    def __init__(self, uri: str, *, application_name: str) -> None:
        self._connection = connect(
            uri,
            application_name=application_name,
            options=f"{SESSION_OPTIONS} {_RECEIVE_OPTIONS}",
            replication="database",
        )
        self._pgconn = self._connection.pgconn
        self._socket: socket.socket | None = None
        self._low_water = 1
        self._buffer = FrameBuffer(LIVE_HEADER)
        self._last_status = 0.0
        self.durable = Lsn(0)
        """Reported as flushed. Any thread may move it on."""
        self.wal_end = Lsn(0)
        """How far the server's log reached when it last said so."""
        self.reply_asked = False
        """Set when the server asked how far we are, as it does before it shuts down."""
        self.received = Lsn(0)
        """The newest position seen in a message."""
        self.status_updates = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection at once. Repeats safely."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._connection.close()

    def identify(self) -> SystemIdentity:
        row = self._command("IDENTIFY_SYSTEM", "identify the server")
        return SystemIdentity(row["systemid"], int(row["timeline"]), Lsn.parse(row["xlogpos"]))

    def create_slot(self, name: str, *, temporary: bool = False) -> CreatedSlot:
        """Make a logical slot and export the snapshot of the moment from which it streams."""
        kind = "TEMPORARY " if temporary else ""
        # The parenthesised options came with 15; this form works on all.
        row = self._command(
            f"CREATE_REPLICATION_SLOT {quote_identifier(name)} {kind}"
            "LOGICAL pgoutput EXPORT_SNAPSHOT",
            f"create the slot {name}",
        )
        return CreatedSlot(Lsn.parse(row["consistent_point"]), row["snapshot_name"])

    def _command(self, sql: str, doing: str) -> dict[str, str]:
        result = self._pgconn.exec_(sql.encode())
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            raise refusal(result, doing)
        if not result.ntuples:
            return {}
        return {
            (result.fname(field) or b"").decode(): (result.get_value(0, field) or b"").decode()
            for field in range(result.nfields)
        }

    def start(self, slot: str, position: Lsn, publication: str) -> None:
        """Begin to stream transactions that end after the position."""
        options = ", ".join(
            f"{quote_identifier(name)} '{value.replace(chr(39), chr(39) * 2)}'"
            for name, value in output_options(publication).items()
        )
        command = f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {position} ({options})"
        result = self._pgconn.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise refusal(result, f"read the slot {slot}")
        self._pgconn.nonblocking = 1
        self._socket = socket.socket(fileno=os.dup(self._pgconn.socket))
        self.durable = self.received = position
        self.send_status()

    def read(self, max_bytes: int, seconds: float) -> Frames | None:
        """Collect messages until ``max_bytes`` are there or the time is over.

        Gives what is complete (see FrameBuffer), or None. Raises ConnectionLost when the server
        ended the stream.
        """
        deadline = time.monotonic() + seconds
        buffer = self._buffer
        while True:
            before = len(buffer.data)
            ended = self._drain(max_bytes)
            flowing = len(buffer.data) > before
            if len(buffer.data) >= max_bytes:
                return buffer.cut(partial=True)
            if ended:
                raise self._end_of_stream()
            self.keep_alive()
            now = time.monotonic()
            if now >= deadline:
                return buffer.cut(partial=False)
            self._wait(deadline - now, flowing=flowing)

    def _drain(self, max_bytes: int) -> bool:
        """Take the messages that libpq has, up to the limit. True at the end of the stream."""
        buffer = self._buffer
        data, append, get = buffer.data, buffer.lengths.append, self._pgconn.get_copy_data
        room = max_bytes - len(data)
        try:
            while room > 0:
                size, message = get(1)
                if size > _KEEPALIVE_SIZE:
                    data += message
                    append(size)
                    room -= size
                elif size == _KEEPALIVE_SIZE:
                    self._keepalive(message)
                else:
                    return size < 0
        except psycopg.Error as error:
            raise ConnectionLost(f"the replication stream broke: {error}") from error
        finally:
            if buffer.lengths:
                last = len(data) - buffer.lengths[-1]
                self.received = Lsn(int.from_bytes(data[last + 9 : last + 17], "big"))
        return False

    def _keepalive(self, message: memoryview) -> None:
        end, _clock, reply = struct.unpack_from("!QqB", message, 1)
        self.wal_end = Lsn(end)
        if reply:
            self.reply_asked = True
            self.send_status()

    def _wait(self, seconds: float, *, flowing: bool) -> None:
        """Sleep until there is something to read, then let libpq read it.

        While messages flow, a few milliseconds' worth of them is waited for: the walsender sends
        each by itself, and waking for each costs more than all else that is done with it.
        """
        if self._socket is None:
            raise ConnectionLost("the replication stream was closed")
        low_water = _FLOWING_LOW_WATER if flowing else 1
        if low_water != self._low_water:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)
            self._low_water = low_water
        longest = _FLOWING_SECONDS if flowing else _STATUS_SECONDS
        select.select([self._socket], [], [], max(0.0, min(seconds, longest)))
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            raise ConnectionLost(f"the replication stream broke: {error}") from error

    @property
    def pending(self) -> bool:
        """Whether messages were read that have not been handed over yet."""
        return bool(self._buffer.lengths)

    def keep_alive(self) -> None:
        """Say that we live, if that is due: for a reader that pauses."""
        if time.monotonic() - self._last_status >= _STATUS_SECONDS:
            self.send_status()

    def send_status(self, *, ask_for_reply: bool = False) -> None:
        """Tell the server what is durable. Never waits for the server to read it."""
        durable = self.durable
        message = struct.pack(
            "!cQQQqB",
            b"r",
            max(self.received, durable),
            durable,
            durable,
            int(time.time() * 1e6) - _POSTGRES_EPOCH,
            ask_for_reply,
        )
        try:
            self._pgconn.put_copy_data(message)
            self._pgconn.flush()
        except psycopg.Error as error:
            raise ConnectionLost(f"the replication stream broke: {error}") from error
        self._last_status = time.monotonic()
        self.status_updates += 1

    def _end_of_stream(self) -> ConnectionLost:
        """The reason the server gave: a FATAL, or a plain end (it is shutting down)."""
        reason = "the server ended the stream"
        with contextlib.suppress(psycopg.Error):
            while (result := self._pgconn.get_result()) is not None:
                if result.error_message:
                    reason = result.error_message.decode(errors="replace").strip()
        return ConnectionLost(f"the replication stream ended: {reason}")

    def stop(self, seconds: float = 5.0) -> None:
        """End the stream in order: last status, CopyDone, drain; then close. Never raises for a
        connection that is gone already."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(psycopg.Error, ConnectionLost, OSError):
            self.send_status()
            self._pgconn.put_copy_end()
            while self._pgconn.flush() and time.monotonic() < deadline:
                select.select([], [self._pgconn.socket], [], 0.1)
            if self._socket is not None:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            while time.monotonic() < deadline:
                size, _ = self._pgconn.get_copy_data(1)
                if size < 0:
                    break
                if size == 0:
                    select.select([self._pgconn.socket], [], [], 0.1)
                    self._pgconn.consume_input()
        self.close()
