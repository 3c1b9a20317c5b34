"""The live stream of the walsender: its messages, and the keepalives between them."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import numpy as np
from psycopg import pq

from walflow.errors import ConnectionLost, SourceError
from walflow.model import Lsn
from walflow.source.codec.cells import Positions
from walflow.source.wire.frames import Frames
from walflow.source.wire.wire_reader import open_reader

__all__ = ["Keepalive", "LiveStream"]

Keepalive = Callable[[Lsn, bool], None]
"""Called with the server's position, and whether it asks for an answer."""

_ANSWER_SECONDS = 60.0
_SLACK = 64 << 10
_WAL, _KEEPALIVE = b"wk"
_HEADER = 25
"""Bytes before a message: 'w', two positions, a clock."""
_COMMIT = ord("C")


class LiveStream:
    """A stream that has begun. Used by one thread."""

    def __init__(
        self, pgconn: pq.abc.PGconn, command: str, doing: str, keepalive: Keepalive
    ) -> None:
        """Start the stream with this command. ``doing`` completes "Could not …" in errors."""
        self.received = Lsn(0)
        """The newest position seen in a message."""
        self._keepalive = keepalive
        self._starts: list[Positions] = []
        self._ends: list[Positions] = []
        self._reader = open_reader(pgconn, command.encode(), doing)
        try:
            deadline = time.monotonic() + _ANSWER_SECONDS
            while not self._reader.begun:
                if time.monotonic() > deadline:
                    raise ConnectionLost(f"Could not {doing}: the server does not answer.")
                self._reader.wait(1.0, flowing=False)
                if self.take(_SLACK) and not self._reader.begun:
                    raise self.failure()
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """How many bytes of messages wait to be handed over."""
        return int(self._ends[-1][-1]) if self._ends else 0

    def take(self, limit: int) -> bool:
        """Read what has arrived, until about ``limit`` bytes wait. True: the stream ended."""
        reader = self._reader
        starts, ends = reader.receive(limit)
        is_wal = reader.buffer[starts] == _WAL
        if not is_wal.all():
            for start in starts[~is_wal].tolist():
                self._hear(start)
            starts, ends = starts[is_wal], ends[is_wal]
        if len(starts):
            at = int(starts[-1]) + 9
            self.received = Lsn(int.from_bytes(reader.buffer[at : at + 8].tobytes(), "big"))
            self._starts.append(starts + _HEADER)
            self._ends.append(ends)
        elif not self._starts:
            # Of keepalives nothing is kept: there may be weeks of nothing else.
            reader.drop_waiting()
        return reader.over

    def _hear(self, at: int) -> None:
        if self._reader.buffer[at] == _KEEPALIVE:
            end, _clock, reply = struct.unpack_from("!QqB", self._reader.buffer.data, at + 1)
            self._keepalive(Lsn(end), bool(reply))

    def cut(self, *, partial: bool) -> Frames | None:
        """Hand over the waiting messages, up to the last commit. None: there is none.

        A segment of the change log may end only where a hand-over ends with a commit, so what
        follows the last commit waits for the next hand-over. Only if there is no commit among the
        messages, and ``partial`` is true, all are handed over: they are pieces of a large
        transaction.
        """
        if not self._starts:
            return None
        starts, ends = np.concatenate(self._starts), np.concatenate(self._ends)
        commits = np.flatnonzero(self._reader.buffer[starts] == _COMMIT)
        if len(commits):
            count = int(commits[-1]) + 1
        elif partial:
            count = len(starts)
        else:
            return None
        border = int(ends[count - 1])
        frames = Frames(self._reader.cut(border), starts[:count], ends[:count])
        rest = count < len(starts)
        self._starts = [starts[count:] - border] if rest else []
        self._ends = [ends[count:] - border] if rest else []
        return frames

    def wait(self, seconds: float, *, flowing: bool) -> None:
        """Sleep until something arrives. See ``WireReader.wait``."""
        self._reader.wait(seconds, flowing=flowing)

    def send(self, message: bytes) -> None:
        """Send a message to the server, without waiting for it to be read."""
        self._reader.send(message)

    def failure(self) -> SourceError:
        """Why the server ended the stream."""
        return self._reader.failure() or ConnectionLost("the server ended the stream")

    def finish(self, deadline: float) -> None:
        """End the stream in order. What still arrives is discarded."""
        self._reader.send_end()
        while not self._reader.over and time.monotonic() < deadline:
            self._reader.wait(0.1, flowing=False)
            self._reader.receive(_SLACK)
            self._reader.drop_waiting()

    def close(self) -> None:
        """Release the socket. The connection is not closed. Repeats safely."""
        self._reader.close()
