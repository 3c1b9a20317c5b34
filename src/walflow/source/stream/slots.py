"""Replication slots, through SQL. (The replication connection creates them.)"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
import tenacity

from walflow.errors import SlotForeign, SlotInUse, SlotLost, SourceError
from walflow.model import Lsn
from walflow.source.connection import Session, source_errors

__all__ = [
    "Retention",
    "SlotState",
    "check_slot",
    "drop_slot",
    "read_retention",
    "read_slot",
    "require_failover",
    "slot_loss",
]

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
    """The application name of the session that reads it, if our role may see it."""
    confirmed_flush: Lsn | None = None
    wal_status: str | None = None
    invalidation: str | None = None
    """Why Postgres has invalidated the slot. None while it is valid."""
    failover: bool = False
    """Whether it is synchronized to standbys (Postgres 17 and newer)."""


@source_errors("read the replication slot")
def read_slot(connection: Session, name: str) -> SlotState:
    """The slot now. ``exists`` is False if there is none of that name."""
    version = connection.info.server_version
    failover = "s.failover" if version >= 170000 else "false"
    if version >= 170000:
        reason = "s.invalidation_reason"
    elif version >= 160000:
        reason = "CASE WHEN s.conflicting THEN 'recovery conflict' END"
    else:
        reason = "NULL"
    row = connection.execute(
        "SELECT s.slot_type = 'logical', s.plugin, s.database, s.temporary, s.active,"
        "       s.active_pid, a.application_name,"
        f"      s.confirmed_flush_lsn::text, s.wal_status, {reason}, {failover}"
        "  FROM pg_replication_slots AS s"
        "  LEFT JOIN pg_stat_activity AS a ON a.pid = s.active_pid"
        " WHERE s.slot_name = %s",
        [name],
    ).fetchone()
    if row is None:
        return SlotState(name)
    logical, plugin, slot_database, temporary, active, pid, application = row[:7]
    confirmed, wal_status, invalidation, kept_by_standbys = row[7:]
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
        confirmed_flush=None if confirmed is None else Lsn.parse(confirmed),
        wal_status=wal_status,
        invalidation=invalidation,
        failover=kept_by_standbys,
    )


@dataclass(frozen=True, slots=True)
class Retention:
    """The settings that limit how long Postgres keeps a slot that nobody reads."""

    keep_bytes: int | None
    """The log that it keeps at most, in bytes. None: no limit."""
    idle_seconds: float
    """0: no limit (Postgres 18 and newer can have one)."""
    standbys: int
    """Physical slots, which standbys use."""
    synchronized_slots: str
    """Those which no failover slot may get ahead of (Postgres 17 and newer)."""


@source_errors("read how long slots are kept")
def read_retention(connection: Session) -> Retention:
    row = connection.execute(
        "SELECT pg_size_bytes(nullif(current_setting('max_slot_wal_keep_size'), '-1')),"
        "       extract(epoch FROM coalesce("
        "         current_setting('idle_replication_slot_timeout', true), '0')::interval)::float8,"
        "       (SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'physical'),"
        "       coalesce(current_setting('synchronized_standby_slots', true), '')"
    ).fetchone()
    assert row is not None
    return Retention(*row)


def require_failover(server_version: int) -> None:
    """Raise ``SourceError`` if this server has no failover slots."""
    if server_version < 170000:
        raise SourceError(
            f"Postgres {server_version // 10000} has no slots that survive a failover.",
            hint="Standbys can keep slots since Postgres 17: upgrade the server, or set "
            "source.failover to false.",
        )


def check_slot(state: SlotState, database: str) -> None:
    """Raise ``SlotForeign`` if this slot is not a slot of walflow (then only another name helps),
    or ``SlotInUse`` if it is being read. A missing slot is no error here. See ``slot_loss``."""
    if not state.exists:
        return
    if not state.logical:
        raise SlotForeign(f'The replication slot "{state.name}" is a physical one.')
    if state.plugin != _PLUGIN:
        raise SlotForeign(
            f'The replication slot "{state.name}" belongs to the plugin {state.plugin}, '
            f"walflow reads {_PLUGIN}."
        )
    if state.database != database:
        raise SlotForeign(
            f'The replication slot "{state.name}" belongs to database {state.database}, '
            f"not {database}."
        )
    if state.active:
        raise _in_use(state)


def slot_loss(state: SlotState, log_end: Lsn | None = None) -> SlotLost | None:
    """Why changes are missing between what the pipeline has read (``log_end``) and what its slot
    still has. None if none are missing."""
    if not state.exists or state.confirmed_flush is None:
        return SlotLost(
            f'The replication slot "{state.name}" is gone: the changes since then are not known.',
            hint="Let the pipeline make a new slot and copy all tables again "
            "(source.on_slot_lost: resync).",
        )
    if state.invalidation is not None:
        return SlotLost(
            f'Postgres has invalidated the replication slot "{state.name}" '
            f"({state.invalidation}): changes that walflow has not read are gone.",
            hint="Let the pipeline make a new slot and copy all tables again "
            "(source.on_slot_lost: resync). "
            "Raise max_slot_wal_keep_size so that it does not happen again.",
        )
    if log_end is not None and state.confirmed_flush > log_end:
        return SlotLost(
            f'Something else has read the replication slot "{state.name}" up to '
            f"{state.confirmed_flush}, or the change log is an old one: changes since {log_end} "
            "are missing.",
            hint="Let the pipeline copy all tables again (source.on_slot_lost: resync).",
        )
    return None


def drop_slot(connection: Session, name: str, *, wait_seconds: float = 10.0) -> None:
    """Drop the slot, if it exists. Waits a while for a reader that is ending, then raises
    ``SlotInUse``."""
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(psycopg.errors.ObjectInUse),
        stop=tenacity.stop_after_delay(wait_seconds),
        wait=tenacity.wait_fixed(0.1),
        reraise=True,
    )
    with source_errors(f'drop the replication slot "{name}"'):
        try:
            retrying(connection.execute, "SELECT pg_drop_replication_slot(%s)", [name])
        except psycopg.errors.UndefinedObject:
            return
        except psycopg.errors.ObjectInUse:
            raise _in_use(read_slot(connection, name)) from None


def _in_use(state: SlotState) -> SlotInUse:
    reader = f' ("{state.application}")' if state.application else ""
    return SlotInUse(
        f'The replication slot "{state.name}" is in use by process {state.active_pid}{reader}.',
        hint="Stop the other pipeline, name another slot (source.slot), or end its session: "
        f"SELECT pg_terminate_backend({state.active_pid});",
    )
