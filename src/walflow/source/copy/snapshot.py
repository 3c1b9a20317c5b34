"""Retention the view of the database that a copy reads.

A slot's exported snapshot lives only until its connection's next command. One session takes it
over, holds it in a transaction, and exports it again for the executors that copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

import psycopg
from psycopg import sql

from walflow.errors import ConnectionLost, SnapshotLost, WalflowError
from walflow.model import Lsn
from walflow.source.closing import Closing
from walflow.source.connection import Session, connect, lift_timeouts, source_errors

__all__ = ["OpenSnapshot", "SeenRelation", "SnapshotKeeper", "keep_snapshot"]

_HINT = "The copy resumes with a new snapshot; the rows that were read are kept."


@dataclass(frozen=True, slots=True)
class SeenRelation:
    """A relation as the snapshot sees it, and as it is now."""

    oid: int
    filenode: int | None
    """Of the file that held its rows when the snapshot was taken; None: it was not there."""
    filenode_now: int | None

    @property
    def rewritten(self) -> bool:
        """Whether it was truncated, rewritten or dropped since the snapshot.

        Such commands do not keep old row versions where they were, or at all: what is read of it
        under the snapshot may lack rows, and must be read under a newer one.
        """
        return self.filenode is None or self.filenode != self.filenode_now


class SnapshotKeeper(Closing):
    """Holds a snapshot until ``close()``. ``name`` is what SET TRANSACTION SNAPSHOT takes."""

    def __init__(self, connection: Session, name: str) -> None:
        self._connection = connection
        self.name = name

    def alive(self) -> bool:
        """Whether the snapshot is still held; asks the server."""
        try:
            self._connection.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    def check(self) -> None:
        """Raise ``SnapshotLost`` if the snapshot is no longer held."""
        if not self.alive():
            raise _lost()

    def relations(self, oids: Iterable[int]) -> list[SeenRelation]:
        """Look at the files of these relations; raises ``SnapshotLost``.

        Whether they were rewritten is to be asked after the last row was read.
        """
        try:
            with source_errors("look at the files of the tables that are copied"):
                # The table shows what the snapshot sees; the function shows the present, and
                # waits for no lock (as one that tells sizes would, and all other tables with it).
                rows = self._connection.execute(
                    "SELECT wanted.oid, c.relfilenode, pg_relation_filenode(wanted.oid)"
                    "  FROM unnest(%s::oid[]) AS wanted (oid)"
                    "  LEFT JOIN pg_class AS c ON c.oid = wanted.oid",
                    [list(oids)],
                ).fetchall()
        except ConnectionLost as lost:
            raise _lost() from lost
        return [SeenRelation(*row) for row in rows]

    def close(self) -> None:
        """Let the snapshot go; may be repeated."""
        with contextlib.suppress(psycopg.Error):
            self._connection.close()


@dataclass(frozen=True, slots=True)
class OpenSnapshot:
    """A snapshot that is held, and where in the log it lies."""

    keeper: SnapshotKeeper
    position: Lsn
    """Transactions that ended up to here are in the snapshot; those after it are in the stream."""


def _lost() -> SnapshotLost:
    return SnapshotLost("The session that held the copy's snapshot has ended.", hint=_HINT)


def keep_snapshot(
    uri: str, snapshot_name: str, *, application_name: str = "walflow snapshot"
) -> SnapshotKeeper:
    """Take over an exported snapshot; raises ``SnapshotLost`` if it is already gone."""
    connection = connect(uri, application_name=application_name)
    try:
        with source_errors("take over the copy's snapshot"):
            lift_timeouts(connection)
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                connection.execute(
                    sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot_name))
                )
            # 18 says that it does not exist, older ones that the name is invalid.
            except (psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue) as error:
                raise SnapshotLost(
                    f"The snapshot {snapshot_name} is gone: {' '.join(str(error).split())}",
                    hint=_HINT,
                ) from None
            row = connection.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None, "the function gives one row"
        return SnapshotKeeper(connection, row[0])
    except (WalflowError, psycopg.Error):
        connection.close()
        raise
