"""Sessions on a server that somebody still has, without those that are just going."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Database

__all__ = ["held_sessions"]

_ESTABLISHED = "01"


def held_sessions(database: Database, name: str) -> list[str]:
    """Of applications whose name is like this: theirs, one a session.

    The server lists a session for a while after its client has hung up, on a busy machine for as
    long as the next one takes to begin. So it counts if the client's end is open, too.
    """
    with database.connect() as connection:
        rows = connection.execute(
            "SELECT application_name, client_port FROM pg_stat_activity"
            " WHERE application_name LIKE %s AND datname = current_database()",
            [name],
        ).fetchall()
    open_ports = _open_ports(database.server.port)
    return [application for application, port in rows if port in open_ports]


def _open_ports(server: int) -> set[int]:
    """The clients' ports of connections to this port of this machine."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        if state == _ESTABLISHED and int(remote.partition(":")[2], 16) == server:
            found.add(int(local.partition(":")[2], 16))
    return found
