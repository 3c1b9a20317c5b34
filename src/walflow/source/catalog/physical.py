"""The relations that hold the rows of tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from walflow.model import ReplicaIdentity, TableName
from walflow.source.catalog.rights import PLACE, Unreadable
from walflow.source.catalog.row_identity import Identities
from walflow.source.connection import Session

__all__ = ["LiesInRelations", "PhysicalRelation", "read_relations"]


@dataclass(frozen=True, slots=True)
class PhysicalRelation:
    """A table with rows of its own: the published table, or a partition of it."""

    oid: int
    name: TableName
    pages: int
    bytes: int
    """Including TOASTed values, which the pages do not include."""
    rows: int
    """By the server's last count; 0 if it never counted."""
    closed: bool
    """Our role may not use the relation's schema."""
    granted: frozenset[str] | None
    """The columns that our role may SELECT, including system columns. None: all."""
    hidden: bool
    """Our role may SELECT from it, but row security may hide rows."""
    has_identity: bool
    """Whether Postgres logs the key by which an update or delete finds the old row."""
    filenode: int
    """The file of its rows (relfilenode). A rewritten table has another one. 0 if the table was
    just dropped."""

    def unreadable(self, columns: Iterable[str]) -> Unreadable | None:
        """What our role lacks to copy these columns. None: nothing."""
        lacking: tuple[str, ...] | None = ()
        if self.granted is not None:
            lacking = tuple(name for name in (PLACE, *columns) if name not in self.granted)
            lacking = lacking if self.granted else None
        if not self.hidden and not self.closed and lacking == ():
            return None
        return Unreadable(self.name, self.hidden, self.closed, lacking)


class LiesInRelations:
    """A table with the relations that hold its rows: itself, or its partitions."""

    __slots__ = ()
    relations: tuple[PhysicalRelation, ...]

    @property
    def bytes(self) -> int:
        return sum(relation.bytes for relation in self.relations)

    @property
    def rows(self) -> int:
        """The server's estimate of the number of rows."""
        return sum(relation.rows for relation in self.relations)

    @property
    def without_identity(self) -> tuple[TableName, ...]:
        """Those relations whose updates and deletes Postgres refuses once they are published."""
        return tuple(part.name for part in self.relations if not part.has_identity)


# A partitioned table has no rows, and foreign or unlogged partitions are not in the log.
_RELATIONS = """
SELECT root, c.oid, n.nspname, c.relname, c.relreplident,
       coalesce(pg_relation_size(c.oid) / current_setting('block_size')::int, 0),
       coalesce(pg_table_size(c.oid), 0),
       greatest(c.reltuples, 0)::int8,
       NOT has_schema_privilege(n.oid, 'USAGE'),
       CASE WHEN NOT has_table_privilege(c.oid, 'SELECT') THEN ARRAY(
         SELECT a.attname::text FROM pg_attribute AS a
          WHERE a.attrelid = c.oid AND NOT a.attisdropped
            AND has_column_privilege(c.oid, a.attnum, 'SELECT')
       ) END,
       has_any_column_privilege(c.oid, 'SELECT') AND row_security_active(c.oid),
       coalesce(pg_relation_filenode(c.oid), 0)
  FROM unnest(%s::oid[]) AS root
  LEFT JOIN LATERAL pg_partition_tree(root) AS t ON true
  JOIN pg_class AS c ON c.oid = coalesce(t.relid, root)
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r' AND c.relpersistence = 'p'
 ORDER BY root, n.nspname, c.relname
"""


def read_relations(
    connection: Session, oids: Sequence[int]
) -> dict[int, tuple[PhysicalRelation, ...]]:
    """For each of these tables, the relations that hold its rows, sorted by name."""
    rows = connection.execute(_RELATIONS, [list(oids)]).fetchall()
    identities = Identities(connection, [row[1] for row in rows])
    found: dict[int, list[PhysicalRelation]] = {oid: [] for oid in oids}
    for root, oid, schema, name, identity, pages, size, count, *rights, file in rows:
        closed, granted, hidden = rights
        found[root].append(
            PhysicalRelation(
                oid=oid,
                name=TableName(schema, name),
                pages=pages,
                bytes=size,
                rows=count,
                closed=closed,
                granted=None if granted is None else frozenset(granted),
                hidden=hidden,
                has_identity=identities.usable(oid, ReplicaIdentity(identity)),
                filenode=file,
            )
        )
    return {oid: tuple(relations) for oid, relations in found.items()}
