"""Replication slots, seen through SQL. (Making one is the replication connection's work.)"""

from __future__ import annotations

import time
from dataclasses import dataclass

import psycopg

from walflow.errors import SlotInUse, SlotLost
from walflow.model import Lsn
from walflow.source.connection import Session, source_errors

__all__ = ["SlotState", "check_slot", "drop_slot", "read_slot"]

_PLUGIN = "pgoutput"


@dataclass(frozen=True, slots=True)
class SlotState:
    name: str
    exists: bool = False
    logical: bool = True
    plugin: str | None = None
    database: str | None = None
    temporary: bool = False
    active: bool = False
    active_pid: int | None = None
    application: str | None = None
    """The application name of the session that reads it, if it is ours to see."""
    restart_lsn: Lsn | None = None
    confirmed_flush: Lsn | None = None
    wal_status: str | None = None
    invalidation: str | None = None
    """Why Postgres has given the slot up, or None while it is good."""


@source_errors("read the replication slot")
def read_slot(connection: Session, name: str) -> SlotState:
    """The slot as it is now; ``exists`` is False if there is none of that name."""
    version = connection.info.server_version
    if version >= 170000:
        reason = "s.invalidation_reason"
    elif version >= 160000:
        reason = "CASE WHEN s.conflicting THEN 'recovery conflict' END"
    else:
        reason = "NULL"
    row = connection.execute(
        "SELECT s.slot_type = 'logical', s.plugin, s.database, s.temporary, s.active,"
        "       s.active_pid, a.application_name, s.restart_lsn::text,"
        f"      s.confirmed_flush_lsn::text, s.wal_status, {reason}"
        "  FROM pg_replication_slots AS s"
        "  LEFT JOIN pg_stat_activity AS a ON a.pid = s.active_pid"
        " WHERE s.slot_name = %s",
        [name],
    ).fetchone()
    if row is None:
        return SlotState(name)
    logical, plugin, slot_database, temporary, active, pid, application = row[:7]
    restart, confirmed, wal_status, invalidation = row[7:]
    if wal_status == "lost" and invalidation is None:
        invalidation = "the log it needs was removed"
    return SlotState(
        name,
        exists=True,
        logical=logical,
        plugin=plugin,
        database=slot_database,
        temporary=temporary,
        active=active,
        active_pid=pid,
        application=application,
        restart_lsn=None if restart is None else Lsn.parse(restart),
        confirmed_flush=None if confirmed is None else Lsn.parse(confirmed),
        wal_status=wal_status,
        invalidation=invalidation,
    )


def check_slot(state: SlotState, database: str, *, must_exist: bool = False) -> None:
    """Raise ``SlotLost`` if the slot cannot serve this database, ``SlotInUse`` if it is read.

    ``must_exist``: a pipeline that has a position needs the slot that guards it.
    """
    drop = f"SELECT pg_drop_replication_slot('{state.name.replace(chr(39), chr(39) * 2)}');"
    if not state.exists:
        if must_exist:
            raise SlotLost(
                f'The replication slot "{state.name}" is gone: what changed since is not known.',
                hint="Start the pipeline afresh: it makes a new slot and copies the tables again.",
            )
        return
    other = "Name another slot for this pipeline (source.slot)."
    if not state.logical:
        raise SlotLost(f'The replication slot "{state.name}" is a physical one.', hint=other)
    if state.plugin != _PLUGIN:
        raise SlotLost(
            f'The replication slot "{state.name}" belongs to the plugin {state.plugin}, '
            f"walflow reads {_PLUGIN}.",
            hint=other,
        )
    if state.database != database:
        raise SlotLost(
            f'The replication slot "{state.name}" belongs to database {state.database}, '
            f"not {database}.",
            hint=other,
        )
    if state.invalidation is not None:
        raise SlotLost(
            f'Postgres has invalidated the replication slot "{state.name}" '
            f"({state.invalidation}): changes that walflow has not read are gone.",
            hint=f"Drop it ({drop}) and start the pipeline afresh, which copies the tables again. "
            "Raise max_slot_wal_keep_size so that it does not happen again.",
        )
    if state.active:
        raise _in_use(state)


def drop_slot(connection: Session, name: str, *, wait_seconds: float = 10.0) -> None:
    """Drop the slot; nothing if there is none. Waits a while for a reader that is just leaving,
    then raises ``SlotInUse``.
    """
    deadline = time.monotonic() + wait_seconds
    with source_errors(f'drop the replication slot "{name}"'):
        while True:
            try:
                connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
            except psycopg.errors.UndefinedObject:
                return
            except psycopg.errors.ObjectInUse:
                if time.monotonic() >= deadline:
                    raise _in_use(read_slot(connection, name)) from None
                time.sleep(0.1)
            else:
                return


def _in_use(state: SlotState) -> SlotInUse:
    reader = f' ("{state.application}")' if state.application else ""
    return SlotInUse(
        f'The replication slot "{state.name}" is in use by process {state.active_pid}{reader}.',
        hint="Stop the other pipeline, name another slot (source.slot), or end its session: "
        f"SELECT pg_terminate_backend({state.active_pid});",
    )
