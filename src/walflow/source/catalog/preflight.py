"""Checks of a source before anything is created there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from walflow.config import TablesSettings, TypeSettings
from walflow.errors import (
    NoFreeSender,
    NoFreeSlot,
    NoReplicationRight,
    ReservedColumnName,
    ServerTooOld,
    SlotLost,
    SourceError,
    WalLevelNotLogical,
)
from walflow.model import TableName
from walflow.source.catalog.cautions import Caution, identity_cautions, publication_cautions
from walflow.source.catalog.publication import (
    Publication,
    find_publication,
    read_publication,
    require_identities,
    require_tables,
)
from walflow.source.catalog.published_tables import (
    PublishedTable,
    published_tables,
    refused_reading,
)
from walflow.source.catalog.server import Server, read_server, read_timeline
from walflow.source.connection import Session, replication_hint
from walflow.source.stream.slots import (
    SlotState,
    check_slot,
    read_slot,
    require_failover,
    slot_loss,
)

__all__ = ["OLDEST_VERSION", "Preflight", "check_server", "preflight", "require_followable"]

OLDEST_VERSION = 14


@dataclass(frozen=True, slots=True)
class Preflight:
    server: Server
    timeline: int
    """The current position of the server's log."""
    slot: SlotState
    publication: Publication | None
    """None: it does not exist yet, and walflow was asked to create it."""
    create_tables: tuple[TableName, ...]
    """The tables of a publication that is to be created; empty: all tables."""
    tables: tuple[PublishedTable, ...]
    """The tables that are published and followed. Empty if the publication is still to be
    created."""
    warnings: tuple[str, ...]
    lost: SlotLost | None = None
    """Set if the slot exists, but Postgres has invalidated it, and it is to be replaced."""


def preflight(
    connection: Session,
    *,
    publication: str,
    slot: str,
    create_publication: bool = False,
    tables: TablesSettings | None = None,
    types: TypeSettings | None = None,
    strict: bool = True,
    failover: bool = False,
    resync_lost_slot: bool = False,
) -> Preflight:
    """Check whether this role can follow this source. Changes nothing. Raises the error for the
    first thing that cannot work. Warnings are for things that work, but not as the operator may
    expect.

    ``tables``: check only these, and put only these into a new publication. Without ``strict``,
    errors of single tables are stored in their ``problem`` and do not stop the others. With
    ``resync_lost_slot``, an invalidated slot is returned in ``lost`` and does not stop the start.
    ``failover``: the slot must be one that is synchronized to standbys.
    """
    tables = tables or TablesSettings()
    server = read_server(connection)
    check_server(server)
    if failover:
        require_failover(server.version)
    state = read_slot(connection, slot)
    check_slot(state, server.database)
    lost = slot_loss(state) if state.exists else None
    if lost is not None and not resync_lost_slot:
        raise lost
    found = find_publication(connection, publication)
    to_publish: list[TableName] = []
    published: list[PublishedTable] = []
    warnings: list[str] = []
    if found is None and create_publication:
        to_publish = require_tables(connection, tables) if tables.choose else []
        require_identities(connection, to_publish)
    else:
        found = read_publication(connection, publication)
        published = published_tables(
            connection, publication, types or TypeSettings(), chosen=tables
        )
        if strict:
            require_followable(connection, published)
        warnings = [str(caution) for caution in publication_cautions(found, published, tables)]
        warnings += [str(caution) for caution in _rights_cautions(connection, published)]
        warnings += [str(caution) for caution in identity_cautions(found, published)]
    if failover and state.exists and not state.failover and lost is None:
        warnings.append(
            f'The slot "{slot}" was created without failover: standbys do not keep it. To change '
            f"it, on a replication connection: ALTER_REPLICATION_SLOT {slot} (FAILOVER true);"
        )
    if not state.exists and server.free_slots <= 0:
        raise NoFreeSlot("All replication slots of the server are taken (max_replication_slots).")
    if server.free_senders <= 0:
        raise NoFreeSender("All replication connections are taken (max_wal_senders).")
    return Preflight(
        server,
        read_timeline(connection),
        state,
        found,
        tuple(to_publish),
        tuple(published),
        tuple(warnings),
        lost,
    )


def check_server(server: Server) -> None:
    """Raise the error for what keeps this server, or our role there, from being followed."""
    if server.major < OLDEST_VERSION:
        raise ServerTooOld(f"The server is Postgres {server.major}.")
    if server.in_recovery:
        raise SourceError(
            "The server is a standby, which cannot create publications or slots.",
            hint="Connect to the primary (target_session_attrs=read-write in the URI finds it).",
        )
    if server.wal_level != "logical":
        raise WalLevelNotLogical(f"The server's wal_level is {server.wal_level}, not logical.")
    if not server.may_replicate:
        raise NoReplicationRight(
            f'The role "{server.role}" may not replicate.', hint=replication_hint(server.role)
        )


def _rights_cautions(connection: Session, tables: Sequence[PublishedTable]) -> Iterator[Caution]:
    """Raise one error for several tables, with one statement for all, which is quicker to paste."""
    refusal = refused_reading(connection, tables)
    if refusal is not None and sum(bool(table.unreadable) for table in tables) > 1:
        yield Caution(refusal.message, refusal.hint)


def require_followable(
    connection: Session, tables: Sequence[PublishedTable], *, all_of_them: bool = True
) -> None:
    """Raise the error that keeps tables from being followed: of any table, or, unless
    ``all_of_them``, only if no table can be followed."""
    if not all_of_them and any(table.problem is None for table in tables):
        return
    for table in tables:
        if isinstance(table.problem, ReservedColumnName):
            raise table.problem
    # One statement for all tables is better than one error after the other.
    refusal = refused_reading(connection, tables)
    if refusal is not None:
        raise refusal
