"""What a server is, which timelines it has, and what our role may do on it."""

from __future__ import annotations

from dataclasses import dataclass

from walflow.errors import SlotLost
from walflow.model import Lsn
from walflow.source.connection import Session, source_errors

__all__ = ["Server", "read_server", "read_timeline", "switch_points", "timeline_loss"]

# Everything here is readable for any role: pg_stat_replication has a row for each walsender even
# where its details are hidden.
_FACTS = """
SELECT current_setting('server_version_num')::int,
       (SELECT system_identifier FROM pg_control_system()),
       pg_is_in_recovery(),
       current_database(),
       current_setting('wal_level'),
       current_setting('max_replication_slots')::int
         - (SELECT count(*) FROM pg_replication_slots),
       current_setting('max_wal_senders')::int - (SELECT count(*) FROM pg_stat_replication),
       rolname, rolsuper,
       rolsuper OR rolreplication
         OR EXISTS (SELECT FROM pg_roles AS managed
                    WHERE managed.rolname IN ('rds_replication', 'rds_superuser')
                      AND pg_has_role(current_user, managed.oid, 'MEMBER'))
  FROM pg_roles WHERE rolname = current_user
"""


@dataclass(frozen=True, slots=True)
class Server:
    version: int
    """In Postgres's numbering: 160004."""
    system_identifier: int
    """Identifies a cluster. A restored backup has the same one, a new cluster never."""
    in_recovery: bool
    database: str
    wal_level: str
    free_slots: int
    free_senders: int
    role: str
    superuser: bool
    may_replicate: bool

    @property
    def major(self) -> int:
        return self.version // 10000


@source_errors("read the server's settings")
def read_server(connection: Session) -> Server:
    row = connection.execute(_FACTS).fetchone()
    assert row is not None, "current_user is always in pg_roles"
    return Server(*row)


_HINT = (
    "Let the pipeline make a new slot and copy the tables again (source.on_slot_lost: resync). "
    "On Postgres 17 and newer, name the standbys in synchronized_standby_slots: no slot then gets "
    "ahead of them."
)


@source_errors("read the server's timeline")
def read_timeline(connection: Session) -> int:
    """The timeline that the server writes. Raises ``CannotConnect`` if it is a standby."""
    row = connection.execute(
        "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int"
    ).fetchone()
    assert row is not None
    return int(row[0])


def switch_points(history: str) -> dict[int, Lsn]:
    """Where each earlier timeline ended, by a timeline's history file."""
    lines = (line.partition("#")[0].split() for line in history.splitlines())
    return {int(words[0]): Lsn.parse(words[1]) for words in lines if words}


def timeline_loss(before: int, now: int, switched: dict[int, Lsn], log_end: Lsn) -> SlotLost | None:
    """Why the server does not continue what the pipeline has read up to ``log_end`` on timeline
    ``before``. None if it does. ``switched``: the ``switch_points`` of the server's timeline."""
    at = switched.get(before)
    if at is None:
        return SlotLost(
            f"The server is on timeline {now}, which did not branch from timeline {before}, which "
            "was read before: the server was restored, or was not a standby of the previous one.",
            hint=_HINT,
        )
    if at < log_end:
        return SlotLost(
            f"Another server took over at {at} (timeline {now}) without all changes of the former "
            f"one: walflow has read changes up to {log_end} that the new server does not have, and "
            "its own changes have the same positions.",
            hint=_HINT,
        )
    return None
