"""The bulk path: a long backlog, read through SQL at a multiple of the walsender's speed.

A temporary copy of the slot serves as the read cursor. Each chunk is one
``COPY (SELECT data FROM pg_logical_slot_get_binary_changes(…)) TO STDOUT``: the server decodes a
part of the WAL at once and sends it without a system call a message. The main slot advances only
over durable changes, so a crash at any point causes a repeat, and never a gap. Where the bulk path
ends (always after a commit), the walsender continues at exactly that position.

It does not suit everything: the server materialises a chunk before it sends the first row, and
begins each chunk at the oldest running transaction. So a transaction that takes the server too
long, or one that stays open over several chunks, ends the bulk path early; the walsender then
reads the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from psycopg import sql

from walflow.model import Lsn
from walflow.source.closing import Closing
from walflow.source.codec.values import SESSION_OPTIONS
from walflow.source.connection import Session, connect, lift_timeouts, source_errors
from walflow.source.copy.copy_out import PreparationTimeout, copy_out
from walflow.source.stream.replication_connection import output_options
from walflow.source.wire.frames import Frames

__all__ = ["Backlog", "advance_slot", "backlog_bytes"]

_CHUNK_MESSAGES = 200_000
_CHUNK_LOG_BYTES = 256 << 20
_FIRST_ROW_SECONDS = 60.0
"""In seconds. If the server has not prepared a chunk by then, it holds a transaction that is too
large to materialise."""
_STALE_CHUNKS = 4
"""For this many chunks the oldest running transaction may stay where it is. Then the walsender is
better."""
_ROW_HEADER = 6
"""Bytes before a message in a row with one column: field count, length."""
_OPTIONS = "-c work_mem=128MB -c logical_decoding_work_mem=256MB"


@source_errors("measure the backlog")
def backlog_bytes(connection: Session, position: Lsn) -> int:
    """How much log the server has after this position, in bytes."""
    row = connection.execute(
        "SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), %s::pg_lsn)::int8", [str(position)]
    ).fetchone()
    assert row is not None
    return int(str(row[0]))


@source_errors("acknowledge what is durable")
def advance_slot(connection: Session, slot: str, position: Lsn) -> None:
    """Tell Postgres that everything up to the position is durable here. A move backwards is no
    error."""
    connection.execute(
        """
        SELECT pg_replication_slot_advance(slot_name, %(to)s::pg_lsn)
        FROM pg_replication_slots
        WHERE slot_name = %(slot)s AND confirmed_flush_lsn < %(to)s::pg_lsn
        """,
        {"slot": slot, "to": str(position)},
    )


class Backlog(Closing):
    """A read cursor over a slot's backlog. Used by one thread. The main slot must be idle."""

    def __init__(self, uri: str, *, slot: str, publication: str, application_name: str) -> None:
        self._connection = connect(
            uri, application_name=application_name, options=f"{SESSION_OPTIONS} {_OPTIONS}"
        )
        self._publication = publication
        self._cursor = f"{slot[:48]}_bulk_{self._connection.info.backend_pid}"
        try:
            with source_errors("copy the slot for reading in bulk"):
                lift_timeouts(self._connection)
                self._connection.execute(
                    "SELECT pg_copy_logical_replication_slot(%s, %s, true)", [slot, self._cursor]
                )
        except BaseException:
            self.close()
            raise
        self.exhausted = False
        """No more chunks are worth reading: the walsender should continue."""

    def close(self) -> None:
        """Close the session, and with it the temporary slot. Repeats safely."""
        self._connection.close()

    def chunk(self, upto: Lsn, max_bytes: int, cancelled: Callable[[], bool]) -> Iterator[Frames]:
        """Read the next part of the WAL, up to about ``upto``, in pieces of ``max_bytes``.

        The last piece ends after a commit. Sets ``exhausted`` when there is no more.
        """
        began, _ = self._cursor_position()
        limit = min(upto, Lsn(began + _CHUNK_LOG_BYTES))
        messages = 0
        try:
            for rows in copy_out(
                self._connection,
                self._query(limit),
                "read the log in bulk",
                piece_bytes=max_bytes,
                first_row_seconds=_FIRST_ROW_SECONDS,
                cancelled=cancelled,
            ):
                messages += len(rows)
                yield Frames(rows.data, rows.start + _ROW_HEADER, rows.end)
        except PreparationTimeout:
            self.exhausted = True
            return
        ended, restart = self._cursor_position()
        self.exhausted = (
            ended >= upto or messages == 0 or ended - restart > _STALE_CHUNKS * _CHUNK_LOG_BYTES
        )

    @source_errors("see how far the bulk read has come")
    def _cursor_position(self) -> tuple[Lsn, Lsn]:
        """How far the cursor has read, and from where the server must decode for it."""
        row = self._connection.execute(
            "SELECT confirmed_flush_lsn::text, restart_lsn::text FROM pg_replication_slots "
            "WHERE slot_name = %s",
            [self._cursor],
        ).fetchone()
        assert row is not None
        return Lsn.parse(str(row[0])), Lsn.parse(str(row[1]))

    def _query(self, upto: Lsn) -> bytes:
        options = [part for option in output_options(self._publication).items() for part in option]
        query = sql.SQL(
            "COPY (SELECT data FROM pg_logical_slot_get_binary_changes({}, {}, {}, {})) "
            "TO STDOUT (FORMAT binary)"
        ).format(
            self._cursor, str(upto), _CHUNK_MESSAGES, sql.SQL(", ").join(map(sql.Literal, options))
        )
        return query.as_bytes(self._connection)
