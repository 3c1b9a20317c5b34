"""What a publication really publishes: tables, columns, keys, filters, and where the rows lie.

Needs no right but to connect, and writes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from walflow.config import TypeSettings
from walflow.errors import NoSelectRight, ReservedColumnName, WalflowError
from walflow.model import (
    Column,
    Lsn,
    ReplicaIdentity,
    TableName,
    TableSchema,
    quote_identifier,
)
from walflow.source.connection import Session, source_errors
from walflow.source.membership import read_memberships
from walflow.source.publication import Publication, brief_look, read_publication
from walflow.source.relation import Relation
from walflow.source.rights import select_refusal
from walflow.source.types import TypeCatalog
from walflow.source.values import spark_type
from walflow.states import Membership

__all__ = [
    "RESERVED_COLUMNS",
    "PhysicalRelation",
    "PublishedTable",
    "describe_relation",
    "published_tables",
    "refused_reading",
]

RESERVED_COLUMNS = frozenset(
    {
        "_change_type",
        "_lsn",
        "_seq",
        "_timestamp",
        "_xid",
        "_unchanged",
        "_old",
        "_exact",
        "_EXACT",
        # Iceberg's metadata columns: a table that has one cannot be scanned.
        "_file",
        "_pos",
        "_deleted",
        "_spec_id",
        "_partition",
        "_row_id",
        "_last_updated_sequence_number",
        "_change_ordinal",
        "_commit_snapshot_id",
    }
)
"""Names that the change log and the destinations' tables need for themselves."""


@dataclass(frozen=True, slots=True)
class PhysicalRelation:
    """A table with rows of its own: the published one, or a partition of it."""

    oid: int
    name: TableName
    pages: int
    bytes: int
    """With its TOASTed values, which the pages do not count."""
    rows: int
    """As last counted by the server; 0 if never."""
    readable: bool
    """Whether our role may SELECT from it, and row security hides nothing."""
    hidden: bool
    """Our role may SELECT from it, but row security may hide rows."""
    has_identity: bool
    """Whether Postgres logs what finds the old row of an update or delete."""
    filenode: int
    """The file that its rows lie in: another one once it was rewritten. 0 if it was just dropped.
    """


@dataclass(frozen=True, slots=True)
class PublishedTable:
    schema: TableSchema
    publication: Publication
    row_filter: str | None
    """The publication's WHERE, as SQL over the table's columns."""
    relations: tuple[PhysicalRelation, ...]
    """Where the rows lie: the table itself, or all partitions of one published via its root."""
    partitioned: bool
    membership: Membership
    uncovered: tuple[str, ...] = ()
    """Columns of the replica identity that the publication's column list leaves out."""
    problem: WalflowError | None = field(default=None, compare=False)
    """Why this table cannot be followed as it is: ``ReservedColumnName`` or ``NoSelectRight``."""

    @property
    def name(self) -> TableName:
        return self.schema.name

    @property
    def bytes(self) -> int:
        return sum(relation.bytes for relation in self.relations)

    @property
    def rows(self) -> int:
        """The server's estimate."""
        return sum(relation.rows for relation in self.relations)


# Postgres 14 has neither column lists nor row filters, and gives a partition twice if it and a
# table above it are published.
_TABLES = """
SELECT DISTINCT c.oid, n.nspname, c.relname, c.relreplident, c.relkind = 'p', {columns}
  FROM pg_publication_tables AS p
  JOIN pg_namespace AS n ON n.nspname = p.schemaname
  JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = p.tablename
 WHERE p.pubname = %s
 ORDER BY n.nspname, c.relname
"""

_COLUMNS = """
SELECT attrelid, attname, attnum, atttypid, atttypmod, attgenerated <> ''
  FROM pg_attribute
 WHERE attrelid = ANY(%s) AND attnum > 0 AND NOT attisdropped
 ORDER BY attrelid, attnum
"""

# Only what Postgres itself takes as an identity: valid, and checked at once.
_INDEXES = """
SELECT i.indrelid, i.indisprimary, i.indisreplident,
       ARRAY(SELECT a.attname::text
               FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
               JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
              WHERE k.place <= i.indnkeyatts)
  FROM pg_index AS i
 WHERE i.indrelid = ANY(%s) AND (i.indisprimary OR i.indisreplident)
   AND i.indisvalid AND i.indimmediate
"""

# A partitioned table has no rows, and foreign or unlogged partitions are not in the log.
_RELATIONS = """
SELECT root, c.oid, n.nspname, c.relname, c.relreplident,
       coalesce(pg_relation_size(c.oid) / current_setting('block_size')::int, 0),
       coalesce(pg_table_size(c.oid), 0),
       greatest(c.reltuples, 0)::int8,
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
         AND NOT row_security_active(c.oid),
       has_table_privilege(c.oid, 'SELECT') AND row_security_active(c.oid),
       coalesce(pg_relation_filenode(c.oid), 0)
  FROM unnest(%s::oid[]) AS root
  LEFT JOIN LATERAL pg_partition_tree(root) AS t ON true
  JOIN pg_class AS c ON c.oid = coalesce(t.relid, root)
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r' AND c.relpersistence = 'p'
 ORDER BY root, n.nspname, c.relname
"""


@dataclass(frozen=True, slots=True)
class _Attribute:
    name: str
    position: int
    type_oid: int
    typmod: int
    generated: bool


class _Identities:
    """Primary keys and identity indexes of some relations."""

    def __init__(self, connection: Session, oids: Sequence[int]) -> None:
        self._primary: dict[int, frozenset[str]] = {}
        self._chosen: dict[int, frozenset[str]] = {}
        for oid, primary, chosen, names in connection.execute(_INDEXES, [list(oids)]):
            if primary:
                self._primary[oid] = frozenset(names)
            if chosen:
                self._chosen[oid] = frozenset(names)

    def key(self, oid: int, identity: ReplicaIdentity) -> frozenset[str]:
        """The columns that tell rows apart. Where whole rows are logged that is the primary key."""
        match identity:
            case ReplicaIdentity.DEFAULT | ReplicaIdentity.FULL:
                return self._primary.get(oid, frozenset())
            case ReplicaIdentity.INDEX:
                return self._chosen.get(oid, frozenset())
            case ReplicaIdentity.NOTHING:
                return frozenset()

    def usable(self, oid: int, identity: ReplicaIdentity) -> bool:
        return identity is ReplicaIdentity.FULL or bool(self.key(oid, identity))


def published_tables(
    connection: Session,
    publication: str,
    settings: TypeSettings,
    *,
    types: TypeCatalog | None = None,
) -> list[PublishedTable]:
    """Every table of the publication, sorted by name; its sizes are those of this moment.

    A table that cannot be followed says so in ``problem``. Raises ``PublicationMissing``, and
    what ``brief_look`` raises.
    """
    with brief_look(connection, "read what is published"):
        return _published_tables(connection, publication, settings, types)


def _published_tables(
    connection: Session, publication: str, settings: TypeSettings, types: TypeCatalog | None
) -> list[PublishedTable]:
    published = read_publication(connection, publication)
    major = connection.info.server_version // 10000
    columns = "p.attnames::text[], p.rowfilter" if major >= 15 else "NULL, NULL"
    tables = connection.execute(_TABLES.format(columns=columns), [publication]).fetchall()
    oids = [table[0] for table in tables]
    attributes = _attributes(connection, oids)
    relations = connection.execute(_RELATIONS, [oids]).fetchall()
    identities = _Identities(connection, [*oids, *(relation[1] for relation in relations)])
    types = types or TypeCatalog(connection)
    types.load((a.type_oid, a.typmod) for table in attributes.values() for a in table)

    physical: dict[int, list[PhysicalRelation]] = defaultdict(list)
    for root, oid, schema, name, identity, pages, size, rows, readable, hidden, file in relations:
        physical[root].append(
            PhysicalRelation(
                oid=oid,
                name=TableName(schema, name),
                pages=pages,
                bytes=size,
                rows=rows,
                readable=readable,
                hidden=hidden,
                has_identity=identities.usable(oid, ReplicaIdentity(identity)),
                filenode=file,
            )
        )

    memberships = read_memberships(
        connection,
        published,
        {table[0]: table[-1] for table in tables},
        rowless=frozenset(
            part.oid for parts in physical.values() for part in parts if not part.pages
        ),
    )

    found = []
    for oid, schema, name, letter, partitioned, listed, row_filter in tables:
        # Before 18 a generated column is never published; since then the list says it all.
        shown = [
            attribute
            for attribute in attributes[oid]
            if (listed is None or attribute.name in listed)
            and (major >= 18 or not attribute.generated)
        ]
        identity = ReplicaIdentity(letter)
        key = identities.key(oid, identity)
        described = TableSchema(
            oid=oid,
            name=TableName(schema, name),
            columns=_columns(shown, key, types, settings),
            key=_key(shown, key),
            replica_identity=identity,
        )
        names = {attribute.name for attribute in shown}
        logged = (
            {a.name for a in attributes[oid] if not a.generated}
            if identity is ReplicaIdentity.FULL
            else key
        )
        found.append(
            PublishedTable(
                schema=described,
                publication=published,
                row_filter=row_filter,
                relations=tuple(physical[oid]),
                partitioned=partitioned,
                membership=memberships[oid],
                uncovered=tuple(sorted(logged - names)),
                problem=_reserved(described, connection, published)
                or refused_reading(connection, physical[oid]),
            )
        )
    return found


@source_errors("read a changed table's definition")
def describe_relation(
    connection: Session,
    relation: Relation,
    types: TypeCatalog,
    settings: TypeSettings,
    version: Lsn = Lsn(0),
) -> TableSchema:
    """The schema of a table as the stream describes it.

    The message counts where the catalog, which shows the table as it is now, says otherwise. From
    the catalog come the meaning of types, column positions (0 for a column that is no longer
    there), and, where whole rows are logged, the primary key.

    A column that was given one of our names (``_lsn``) appears under another (``~_lsn``): the log
    goes on to hold the changes of all tables, and this one's form differs from the destination's.
    """
    positions = {a.name: a.position for a in _attributes(connection, [relation.oid])[relation.oid]}
    if relation.identity is ReplicaIdentity.FULL:
        key = _Identities(connection, [relation.oid]).key(relation.oid, relation.identity)
    else:
        key = frozenset(column.name for column in relation.columns if column.identity)
    stand_ins = _stand_ins([column.name for column in relation.columns])
    key = frozenset(stand_ins.get(name, name) for name in key)
    shown = [
        _Attribute(
            stand_ins.get(column.name, column.name),
            positions.get(column.name, 0),
            column.type_oid,
            column.typmod,
            generated=False,
        )
        for column in relation.columns
    ]
    types.load((attribute.type_oid, attribute.typmod) for attribute in shown)
    return TableSchema(
        oid=relation.oid,
        name=relation.name,
        columns=_columns(shown, key, types, settings),
        key=_key(shown, key),
        replica_identity=relation.identity,
        version=version,
    )


def refused_reading(
    connection: Session, relations: Iterable[PhysicalRelation]
) -> NoSelectRight | None:
    """The error for those of the relations that our role may not read."""
    refused = [relation for relation in relations if not relation.readable]
    if not refused:
        return None
    row = connection.execute("SELECT current_user::text").fetchone()
    assert row is not None
    hidden = [relation.name for relation in refused if relation.hidden]
    return select_refusal(row[0], [relation.name for relation in refused], hidden)


def _stand_ins(names: Sequence[str]) -> dict[str, str]:
    """Names that no other column has, for those that are ours."""
    found = {}
    for name in names:
        if name in RESERVED_COLUMNS:
            stand_in = f"~{name}"
            while stand_in in names:
                stand_in = f"~{stand_in}"
            found[name] = stand_in
    return found


def _attributes(connection: Session, oids: Sequence[int]) -> dict[int, list[_Attribute]]:
    found: dict[int, list[_Attribute]] = {oid: [] for oid in oids}
    for oid, *facts in connection.execute(_COLUMNS, [list(oids)]):
        found[oid].append(_Attribute(*facts))
    return found


def _columns(
    attributes: Iterable[_Attribute],
    key: frozenset[str],
    types: TypeCatalog,
    settings: TypeSettings,
) -> tuple[Column, ...]:
    # Only key columns count as never null: NOT NULL may have been set after a change with a null
    # in that column was logged, and a delete has no other values at all.
    resolved = [types.resolve(attribute.type_oid, attribute.typmod) for attribute in attributes]
    return tuple(
        Column(
            name=attribute.name,
            type=pg_type,
            spark_type=spark_type(pg_type, settings),
            nullable=attribute.name not in key,
            position=attribute.position,
        )
        for attribute, pg_type in zip(attributes, resolved, strict=True)
    )


def _key(attributes: Sequence[_Attribute], key: frozenset[str]) -> tuple[str, ...]:
    """The key in column order; none if a column of it is not published."""
    named = tuple(attribute.name for attribute in attributes if attribute.name in key)
    return named if len(named) == len(key) else ()


def _reserved(
    table: TableSchema, connection: Session, publication: Publication
) -> ReservedColumnName | None:
    taken = [name for name in table.column_names if name in RESERVED_COLUMNS]
    if not taken:
        return None
    if not publication.all_tables and connection.info.server_version >= 150000:
        rest = ", ".join(quote_identifier(n) for n in table.column_names if n not in taken)
        name = quote_identifier(publication.name)
        way = (
            "Leave it out with a column list: "
            f"BEGIN; ALTER PUBLICATION {name} DROP TABLE {table.name.quoted}; "
            f"ALTER PUBLICATION {name} ADD TABLE {table.name.quoted} ({rest}); COMMIT; "
            "or rename it."
        )
    else:
        way = (
            f"Rename it (ALTER TABLE {table.name.quoted} RENAME COLUMN "
            f"{quote_identifier(taken[0])} TO …;), or leave it out with a column list, which "
            "needs Postgres 15 and a publication FOR TABLE."
        )
    return ReservedColumnName(
        f"Table {table.name} has a column {', '.join(taken)}, a name that walflow's change log "
        "needs for itself.",
        hint=way,
    )
