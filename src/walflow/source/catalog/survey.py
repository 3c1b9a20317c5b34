"""The tables of a database before anything is published, with the facts needed to choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from walflow.config import TablesSettings, TypeSettings
from walflow.model import ReplicaIdentity, TableName
from walflow.source.catalog.attributes import read_attributes
from walflow.source.catalog.physical import LiesInRelations, PhysicalRelation, read_relations
from walflow.source.catalog.publication import brief_look, find_tables
from walflow.source.catalog.published_tables import is_reserved
from walflow.source.catalog.rights import Unreadable
from walflow.source.catalog.row_identity import Identities
from walflow.source.catalog.types import TypeCatalog
from walflow.source.codec.values import becomes_text
from walflow.source.connection import Session

__all__ = ["SurveyedTable", "survey_tables"]

# Postgres 14 has no column lists.
_PUBLISHED = "SELECT schemaname, tablename, {} FROM pg_publication_tables WHERE pubname = %s"

_OIDS = """
SELECT c.oid, n.nspname, c.relname, c.relreplident
  FROM unnest(%s::text[], %s::text[]) AS wanted (schema, name)
  JOIN pg_namespace AS n ON n.nspname = wanted.schema
  JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = wanted.name
 ORDER BY 2, 3
"""


@dataclass(frozen=True, slots=True)
class SurveyedTable(LiesInRelations):
    name: TableName
    identity: ReplicaIdentity
    key: tuple[str, ...]
    """The columns by which updates and deletes find rows."""
    relations: tuple[PhysicalRelation, ...]
    strings: tuple[tuple[str, str], ...]
    """Columns that are strings in Spark but not in Postgres, each with its type."""
    reserved: tuple[str, ...]
    """Columns with reserved names."""
    unreadable: tuple[Unreadable, ...]
    """The published (or to be published) tables and columns that our role may not read."""


def survey_tables(connection: Session, publication: str | None) -> list[SurveyedTable]:
    """The tables of the publication, or all tables of the database, sorted by name."""
    with brief_look(connection, "look at the tables"):
        names: dict[TableName, Sequence[str] | None]
        if publication is None:
            names = dict.fromkeys(find_tables(connection, TablesSettings()))
        else:
            listed = "attnames::text[]" if connection.info.server_version >= 150000 else "NULL"
            rows = connection.execute(_PUBLISHED.format(listed), [publication])
            names = {TableName(schema, name): columns for schema, name, columns in rows}
        return _surveyed(connection, names)


def _surveyed(
    connection: Session, names: Mapping[TableName, Sequence[str] | None]
) -> list[SurveyedTable]:
    """``names`` with the published columns. None: all but generated ones."""
    rows = connection.execute(
        _OIDS, [[name.schema for name in names], [name.name for name in names]]
    ).fetchall()
    oids = [row[0] for row in rows]
    attributes = read_attributes(connection, oids)
    relations = read_relations(connection, oids)
    identities = Identities(connection, oids)
    types = TypeCatalog(connection)
    types.load((a.type_oid, a.typmod) for table in attributes.values() for a in table.live)
    found = []
    for oid, schema, name, letter in rows:
        live = attributes[oid].live
        identity = ReplicaIdentity(letter)
        numbers = identities.key(oid, identity)
        resolved = [(a.name, types.resolve(a.type_oid, a.typmod)) for a in live]
        columns = names[TableName(schema, name)]
        if columns is None:
            columns = [a.name for a in live if not a.generated]
        closed = [part.unreadable(columns) for part in relations[oid]]
        found.append(
            SurveyedTable(
                name=TableName(schema, name),
                identity=identity,
                key=tuple(a.name for a in live if a.attnum in numbers),
                relations=relations[oid],
                strings=tuple(
                    (column, pg.name) for column, pg in resolved if becomes_text(pg, TypeSettings())
                ),
                reserved=tuple(a.name for a in live if is_reserved(a.name)),
                unreadable=tuple(part for part in closed if part is not None),
            )
        )
    return found
