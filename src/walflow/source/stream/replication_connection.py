"""The replication connection: slots, and the live stream of the walsender.

It uses psycopg's binding of libpq, so TLS, authentication and every connection parameter are
libpq's own. The wire reader reads the stream itself. One thread reads the stream and does nothing
else: replies to keepalives leave on time, however slow decoding, the disk or a destination may be.
"""

from __future__ import annotations

import contextlib
import select
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
import structlog
from psycopg import pq
from psycopg.pq.abc import PGresult

from walflow.errors import ConnectionLost
from walflow.model import Lsn, quote_identifier
from walflow.source.closing import Closing
from walflow.source.codec.values import SESSION_OPTIONS
from walflow.source.connection import connect, source_errors
from walflow.source.stream.live_stream import LiveStream
from walflow.source.stream.slots import require_failover
from walflow.source.wire.frames import Frames
from walflow.source.wire.protocol import POSTGRES_EPOCH, refusal

__all__ = ["CreatedSlot", "Replication", "output_options"]

_STATUS_SECONDS = 5.0
_WARN_SECONDS = 5.0
_RECEIVE_OPTIONS = "-c logical_decoding_work_mem=256MB -c wal_sender_timeout=5min"

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    consistent_point: Lsn
    """Transactions that commit after this are in the stream. Earlier ones are in the snapshot."""
    snapshot: str
    """Can be imported until the connection's next command."""


def output_options(publication: str) -> dict[str, str]:
    """Options of the output plugin, the same for the live and the bulk path."""
    return {"proto_version": "1", "publication_names": quote_identifier(publication)}


class Replication(Closing):
    """One replication connection. Used by one thread."""

    def __init__(self, uri: str, *, application_name: str) -> None:
        self._connection = connect(
            uri,
            application_name=application_name,
            options=f"{SESSION_OPTIONS} {_RECEIVE_OPTIONS}",
            replication="database",
        )
        self._pgconn = self._connection.pgconn
        self._live: LiveStream | None = None
        self._last_status = 0.0
        self._position = Lsn(0)
        self.durable = Lsn(0)
        """The position that is reported as flushed. Any thread may advance it."""
        self.wal_end = Lsn(0)
        """How far the server's log reached at its last message."""
        self.reply_asked = False
        """Set when the server asked for a status, as it does before it shuts down."""
        self.status_updates = 0
        self.heard_at = 0.0
        """When something last arrived, by the monotonic clock."""

    def close(self) -> None:
        """End the connection at once. Repeats safely."""
        if self._live is not None:
            self._live.close()
        self._connection.close()

    def create_slot(
        self,
        name: str,
        *,
        temporary: bool = False,
        failover: bool = False,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> CreatedSlot:
        """Create a logical slot and export the snapshot of the moment from which it streams.

        Postgres waits for every open transaction before it returns the slot. ``failover`` makes it
        one that is synchronized to standbys; not for temporary slots.
        """
        if failover:
            require_failover(self._connection.info.server_version)
        kind = "TEMPORARY " if temporary else ""
        # The parenthesised options came with 15; the older syntax works on all.
        options = "(SNAPSHOT 'export', FAILOVER true)" if failover else "EXPORT_SNAPSHOT"
        row = self._command(
            f"CREATE_REPLICATION_SLOT {quote_identifier(name)} {kind}LOGICAL pgoutput {options}",
            f"create the slot {name}",
            cancelled,
        )
        return CreatedSlot(Lsn.parse(row["consistent_point"]), row["snapshot_name"])

    def timeline_history(self, timeline: int) -> str:
        """The server's history file, which lists the timelines before this one and where they
        ended."""
        row = self._command(
            f"TIMELINE_HISTORY {timeline}", f"read the history of timeline {timeline}"
        )
        return row["content"]

    def _command(
        self, sql: str, doing: str, cancelled: Callable[[], bool] = lambda: False
    ) -> dict[str, str]:
        """Run it, and return the first row of the answer."""
        with source_errors(doing):
            result = self._answer(sql, doing, cancelled)
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            raise refusal(result, doing)
        if not result.ntuples:
            return {}
        return {
            (result.fname(field) or b"").decode(): (result.get_value(0, field) or b"").decode(
                errors="replace"
            )
            for field in range(result.nfields)
        }

    def _answer(self, sql: str, doing: str, cancelled: Callable[[], bool]) -> PGresult | None:
        self._pgconn.send_query(sql.encode())
        began, warned = time.monotonic(), False
        while self._pgconn.is_busy():
            if select.select([self._pgconn.socket], [], [], 0.2)[0]:
                self._pgconn.consume_input()
            elif cancelled():
                self._pgconn.get_cancel().cancel()
            elif not warned and time.monotonic() - began > _WARN_SECONDS:
                warned = True
                _logger.warning(
                    f"waiting to {doing}: open transactions must end first",
                    sql="SELECT pid, xact_start, query FROM pg_stat_activity ORDER BY xact_start",
                )
        result = self._pgconn.get_result()
        while self._pgconn.get_result() is not None:
            pass
        return result

    def start(self, slot: str, position: Lsn, publication: str) -> None:
        """Begin to stream transactions that end after the position."""
        options = ", ".join(
            f"{quote_identifier(name)} '{value.replace(chr(39), chr(39) * 2)}'"
            for name, value in output_options(publication).items()
        )
        command = f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {position} ({options})"
        self.durable = self._position = position
        self._live = LiveStream(self._pgconn, command, f"read the slot {slot}", self._keepalive)
        self.send_status()

    @property
    def _stream(self) -> LiveStream:
        if self._live is None:
            raise ConnectionLost("the replication stream has not begun")
        return self._live

    @property
    def received(self) -> Lsn:
        """The newest position seen in a message."""
        seen = Lsn(0) if self._live is None else self._live.received
        return max(seen, self._position)

    def read(self, max_bytes: int, seconds: float) -> Frames | None:
        """Collect messages until there are ``max_bytes`` or the time is over. Returns complete ones
        (see LiveStream.cut), or None. Raises ConnectionLost when the server ended the stream."""
        deadline = time.monotonic() + seconds
        stream = self._stream
        while True:
            before = stream.size
            ended = stream.take(max_bytes)
            flowing = stream.size > before
            if stream.size >= max_bytes:
                return stream.cut(partial=True)
            if ended:
                raise stream.failure()
            self.keep_alive()
            now = time.monotonic()
            if flowing:
                self.heard_at = now
            if now >= deadline:
                return stream.cut(partial=False)
            stream.wait(min(deadline - now, _STATUS_SECONDS), flowing=flowing)

    def _keepalive(self, end: Lsn, reply: bool) -> None:
        self.wal_end = end
        self.heard_at = time.monotonic()
        if reply:
            self.reply_asked = True
            if self._live is not None:
                self.send_status()

    @property
    def pending(self) -> bool:
        """Whether messages were read that are not handed over yet."""
        return self._stream.size > 0

    def keep_alive(self) -> None:
        """Send a status if one is due: for a reader that pauses."""
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
            int(time.time() * 1e6) - POSTGRES_EPOCH,
            ask_for_reply,
        )
        self._stream.send(message)
        self._last_status = time.monotonic()
        self.status_updates += 1

    def stop(self, seconds: float = 5.0) -> None:
        """End the stream in order: last status, CopyDone, the rest of the messages, close. Does not
        raise for a connection that is already lost."""
        with contextlib.suppress(psycopg.Error, ConnectionLost, OSError):
            self.send_status()
            self._stream.finish(time.monotonic() + seconds)
        self.close()
