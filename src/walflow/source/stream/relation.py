"""Relation messages: what the stream says about a table before its first change."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from walflow.model import ReplicaIdentity, TableName

__all__ = ["Relation", "RelationColumn", "parse_relation"]

_IDENTITY_FLAG = 1


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    typmod: int
    identity: bool
    """Whether it is part of the replica identity."""


@dataclass(frozen=True, slots=True)
class Relation:
    oid: int
    name: TableName
    identity: ReplicaIdentity
    columns: tuple[RelationColumn, ...]


def parse_relation(message: bytes) -> Relation:
    """Read a Relation message (protocol version 1: no transaction id inside)."""
    (oid,) = struct.unpack_from("!I", message, 1)
    schema, at = _text(message, 5)
    name, at = _text(message, at)
    identity, count = struct.unpack_from("!cH", message, at)
    at += 3
    columns = []
    for _ in range(count):
        flags = message[at]
        column, at = _text(message, at + 1)
        type_oid, typmod = struct.unpack_from("!Ii", message, at)
        at += 8
        columns.append(RelationColumn(column, type_oid, typmod, bool(flags & _IDENTITY_FLAG)))
    # Postgres sends an empty schema name for its own catalog.
    table = TableName(schema or "pg_catalog", name)
    return Relation(oid, table, ReplicaIdentity(identity.decode()), tuple(columns))


def _text(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(0, at)
    return message[at:end].decode(), end + 1
