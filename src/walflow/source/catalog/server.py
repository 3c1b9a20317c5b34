"""What a server is and what our role may do on it."""

from __future__ import annotations

from dataclasses import dataclass

from walflow.source.connection import Session, source_errors

__all__ = ["Server", "read_server"]

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
    """As Postgres numbers them: 160004."""
    system_identifier: int
    """Tells clusters apart: a restored backup has it too, a new cluster never."""
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
