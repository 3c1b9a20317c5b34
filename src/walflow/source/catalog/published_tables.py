"""The tables that a publication publishes: columns, keys, filters, and the relations with their
rows.

Needs no right except CONNECT, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from walflow.config import TablesSettings, TypeSettings
from walflow.errors import NoSelectRight, PublicationChanged, ReservedColumnName, WalflowError
from walflow.model import (
    Column,
    Lsn,
    ReplicaIdentity,
    TableName,
    TableSchema,
    quote_identifier,
)
from walflow.source.catalog.attributes import Attribute, Attributes, read_attributes, with_missing
from walflow.source.catalog.match_columns import match_columns
from walflow.source.catalog.membership import read_memberships, read_type_facts
from walflow.source.catalog.physical import LiesInRelations, PhysicalRelation, read_relations
from walflow.source.catalog.publication import Publication, brief_look, read_publication
from walflow.source.catalog.rights import Unreadable, select_refusal
from walflow.source.catalog.row_identity import Identities
from walflow.source.catalog.types import TypeCatalog
from walflow.source.codec.values import spark_type
from walflow.source.connection import Session, source_errors
from walflow.source.stream.relation import Relation, RelationColumn
from walflow.states import Membership

__all__ = [
    "RESERVED_COLUMNS",
    "PublishedTable",
    "describe_relation",
    "is_reserved",
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
        "_kind",
        "_base",
        "_base_exact",
        "_EXACT",
        # Spark's own name for the number of a row in a Parquet file, where it is asked for.
        "_tmp_metadata_row_index",
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
"""Names that the change log and the destinations' tables use for their own columns."""
_RESERVED_PREFIX = "_walflow"
"""Names with this prefix, in upper or lower case, are reserved too: our queries use them (see
walflow.spark.names)."""


def is_reserved(name: str) -> bool:
    """Whether the name is reserved, so that a source's column cannot have it."""
    return name in RESERVED_COLUMNS or name.lower().startswith(_RESERVED_PREFIX)


@dataclass(frozen=True, slots=True)
class PublishedTable(LiesInRelations):
    schema: TableSchema
    publication: Publication
    row_filter: str | None
    """The publication's WHERE condition, as SQL over the table's columns."""
    relations: tuple[PhysicalRelation, ...]
    """The relations with its rows: the table itself, or all partitions of one published via its
    root."""
    partitioned: bool
    membership: Membership
    uncovered: tuple[str, ...] = ()
    """Columns of the replica identity that the publication's column list leaves out."""
    problem: WalflowError | None = field(default=None, compare=False)
    """Why this table cannot be followed: ``ReservedColumnName`` or ``NoSelectRight``."""

    @property
    def name(self) -> TableName:
        return self.schema.name

    def relation(self, oid: int) -> PhysicalRelation:
        return next(relation for relation in self.relations if relation.oid == oid)

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        """The published tables or columns that our role may not read."""
        parts = (relation.unreadable(self.schema.column_names) for relation in self.relations)
        return tuple(part for part in parts if part is not None)


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


def published_tables(
    connection: Session,
    publication: str,
    settings: TypeSettings,
    *,
    chosen: TablesSettings | None = None,
    types: TypeCatalog | None = None,
) -> list[PublishedTable]:
    """Every table of the publication (or the chosen ones), sorted by name, with current sizes.

    A table that cannot be followed says why in ``problem``. Raises ``PublicationMissing``, and what
    ``brief_look`` raises.
    """
    with brief_look(connection, "read what is published"):
        return _published_tables(
            connection, publication, settings, chosen or TablesSettings(), types
        )


def _published_tables(
    connection: Session,
    publication: str,
    settings: TypeSettings,
    chosen: TablesSettings,
    types: TypeCatalog | None,
) -> list[PublishedTable]:
    published = read_publication(connection, publication)
    major = connection.info.server_version // 10000
    columns = "p.attnames::text[], p.rowfilter" if major >= 15 else "NULL, NULL"
    rows = connection.execute(_TABLES.format(columns=columns), [publication])
    tables = [row for row in rows if chosen.have(TableName(row[1], row[2]))]
    oids = [table[0] for table in tables]
    attributes = read_attributes(connection, oids)
    physical = read_relations(connection, oids)
    identities = Identities(connection, oids)
    types = types or TypeCatalog(connection)
    types.load((a.type_oid, a.typmod) for table in attributes.values() for a in table.live)

    memberships = read_memberships(
        connection,
        published,
        {table[0]: table[-1] for table in tables},
        rowless=frozenset(
            part.oid for parts in physical.values() for part in parts if not part.pages
        ),
    )

    type_facts = read_type_facts(
        connection, {a.type_oid for table in attributes.values() for a in table.live}
    )

    found = []
    for oid, schema, name, letter, partitioned, listed, row_filter in tables:
        live = attributes[oid].live
        if listed is not None and not {a.name for a in live}.issuperset(listed):
            raise PublicationChanged(
                f"Table {schema}.{name} was altered while the publication was read.",
                hint="It is read again.",
            )
        # Before 18 a generated column is never published; since then the list says it all.
        shown = [
            attribute
            for attribute in live
            if (listed is None or attribute.name in listed)
            and (major >= 18 or not attribute.generated)
        ]
        numbers = {attribute.attnum for attribute in shown}
        identity = ReplicaIdentity(letter)
        indexed = identities.key(oid, identity)
        key = frozenset(a.name for a in live if a.attnum in indexed)
        described = TableSchema(
            oid=oid,
            name=TableName(schema, name),
            columns=_columns(shown, key, types, settings),
            key=_key(shown, key),
            replica_identity=identity,
            filenodes=attributes[oid].filenodes,
            unpublished=frozenset(a.attnum for a in live if a.attnum not in numbers),
            newest=max((a.attnum for a in attributes[oid].all), default=0),
        )
        uncovered = [
            attribute.name
            for attribute in live
            if attribute.attnum not in numbers
            and (
                not attribute.generated
                if identity is ReplicaIdentity.FULL
                else attribute.name in key
            )
        ]
        table = PublishedTable(
            schema=described,
            publication=published,
            row_filter=row_filter,
            relations=physical[oid],
            partitioned=partitioned,
            membership=replace(
                memberships[oid],
                types=frozenset().union(*(type_facts[a.type_oid] for a in shown)),
            ),
            uncovered=tuple(sorted(uncovered)),
        )
        problem = _reserved(table, connection) or refused_reading(connection, [table])
        found.append(replace(table, problem=problem))
    return found


@source_errors("read a changed table's definition")
def describe_relation(
    connection: Session,
    relation: Relation,
    types: TypeCatalog,
    settings: TypeSettings,
    version: Lsn = Lsn(0),
    *,
    before: TableSchema | None = None,
    slot: str | None = None,
) -> TableSchema:
    """The schema of a table as the stream describes it.

    The catalog shows the table as it is now. Where it differs from the message, the message
    counts. From the catalog come the meaning of types, the values of columns in older rows, the
    files of the rows, and, where whole rows are logged, the primary key. ``before`` is an earlier
    schema of the table, and ``slot`` the slot that the message comes from. With them the columns'
    numbers are found; they are 0 where the message may mean one column or another.

    A column that was given one of our names (``_lsn``) gets another one (``~_lsn``): the log goes
    on with the changes of all tables, and this one's schema differs from the destination's.
    """
    now = read_attributes(connection, [relation.oid], slot)[relation.oid]
    if before is not None and not now.all and _is_of_schema(relation, before, types):
        # The table is gone. All that is known is that the message has the columns that it had.
        return replace(before, name=relation.name, version=version)
    positions = match_columns(before, relation.columns, now.all)
    shown = _shown(relation, positions, before, now)
    types.load((attribute.type_oid, attribute.typmod) for attribute in shown)
    if relation.identity is ReplicaIdentity.FULL:
        indexed = Identities(connection, [relation.oid]).key(relation.oid, relation.identity)
        # By name where numbers are not known: the table is copied again for it in any case.
        named = {a.attnum: a.name for a in (shown if positions else now.live)}
        key = frozenset(named.get(number, "") for number in indexed)
    else:
        pairs = zip(relation.columns, shown, strict=True)
        key = frozenset(attribute.name for column, attribute in pairs if column.identity)
    described = TableSchema(
        oid=relation.oid,
        name=relation.name,
        columns=_columns(shown, key, types, settings),
        key=_key(shown, key),
        replica_identity=relation.identity,
        version=version,
    )
    return described if positions is None else _with_storage(described, shown, before, now)


def _is_of_schema(relation: Relation, schema: TableSchema, types: TypeCatalog) -> bool:
    """Whether the message has the same columns, by name and type, and the same key."""
    if relation.identity is not schema.replica_identity:
        return False
    if len(relation.columns) != len(schema.columns):
        return False
    types.load((column.type_oid, column.typmod) for column in relation.columns)
    by_key = schema.replica_identity is not ReplicaIdentity.FULL
    return all(
        (expected.name, expected.type.oid) == (column.name, column.type_oid)
        # If a domain is gone with the table, its modifier is not known any more.
        and (
            not types.has(column.type_oid)
            or types.resolve(column.type_oid, column.typmod).typmod == expected.type.typmod
        )
        and not (by_key and column.identity is not (expected.name in schema.key))
        for column, expected in zip(relation.columns, schema.columns, strict=True)
    )


def _shown(
    relation: Relation,
    positions: Sequence[int] | None,
    before: TableSchema | None,
    now: Attributes,
) -> list[Attribute]:
    """The message's columns, with the catalog's facts about them."""
    stand_ins = _stand_ins([column.name for column in relation.columns])
    by_attnum = {attribute.attnum: attribute for attribute in now.live}
    former = {c.attnum: c.altered for c in (before.columns if before is not None else ())}
    shown = []
    for place, column in enumerate(relation.columns):
        named = Attribute(
            stand_ins.get(column.name, column.name),
            0 if positions is None else positions[place],
            column.type_oid,
            column.typmod,
            missing_known=False,
        )
        attribute = by_attnum.get(named.attnum)
        # If it was dropped, or has another type now, its missing value is lost, or is another one.
        if attribute is not None and _type_of(attribute) == _type_of(column):
            # If it was altered meanwhile, that may have been before or after the message.
            untouched = attribute.stable or attribute.altered == former.get(attribute.attnum)
            named = replace(
                named,
                missing=attribute.missing,
                missing_known=attribute.missing_known,
                altered=attribute.altered if untouched else 0,
            )
        shown.append(named)
    return shown


def _type_of(column: Attribute | RelationColumn) -> tuple[int, int]:
    return column.type_oid, column.typmod


def _with_storage(
    described: TableSchema, shown: Sequence[Attribute], before: TableSchema | None, now: Attributes
) -> TableSchema:
    """The schema with its relation files and the numbers of unpublished columns, as far as the
    catalog shows them now."""
    types = {attribute.attnum: _type_of(attribute) for attribute in shown}
    earlier: frozenset[int] = frozenset()
    if before is not None:
        earlier = before.unpublished.union(column.attnum for column in before.columns)
    others = [attribute for attribute in now.live if attribute.attnum not in types]
    beside = frozenset(
        attribute.attnum
        for attribute in others
        if attribute.stable
        or attribute.generated
        or attribute.attnum in earlier
        or attribute.attnum < max(types, default=0)
    )
    as_now = {a.attnum: _type_of(a) for a in now.live if a.attnum in types} == types
    filenodes: frozenset[int] = frozenset()
    if as_now and len(beside) == len(others):
        filenodes = now.filenodes
    elif before is not None and before.filenodes <= now.filenodes:
        # The table was not rewritten up to now, so it was not up to then.
        filenodes = before.filenodes
    newest = max([*types, *earlier, *(a.attnum for a in now.all if a.stable)], default=0)
    if before is not None:
        newest = max(newest, before.newest)
    return replace(described, filenodes=filenodes, unpublished=beside, newest=newest)


def refused_reading(connection: Session, tables: Iterable[PublishedTable]) -> NoSelectRight | None:
    """The error for those of the tables that our role may not read."""
    unreadable = [part for table in tables for part in table.unreadable]
    if not unreadable:
        return None
    row = connection.execute("SELECT current_user::text").fetchone()
    assert row is not None
    return select_refusal(row[0], unreadable)


def _stand_ins(names: Sequence[str]) -> dict[str, str]:
    """Replacements for reserved names, which no other column has."""
    found = {}
    for name in names:
        if is_reserved(name):
            stand_in = f"~{name}"
            while stand_in in names:
                stand_in = f"~{stand_in}"
            found[name] = stand_in
    return found


def _columns(
    attributes: Iterable[Attribute],
    key: frozenset[str],
    types: TypeCatalog,
    settings: TypeSettings,
) -> tuple[Column, ...]:
    # Only key columns count as never null: NOT NULL may have been set after a change with a null
    # in that column was logged, and a delete has no other values at all.
    resolved = [types.resolve(attribute.type_oid, attribute.typmod) for attribute in attributes]
    return with_missing(
        Column(
            name=attribute.name,
            type=pg_type,
            spark_type=spark_type(pg_type, settings),
            nullable=attribute.name not in key,
            attnum=attribute.attnum,
            missing=attribute.missing,
            missing_known=attribute.missing_known,
            altered=attribute.altered,
        )
        for attribute, pg_type in zip(attributes, resolved, strict=True)
    )


def _key(attributes: Sequence[Attribute], key: frozenset[str]) -> tuple[str, ...]:
    """The key in column order. Empty if one of its columns is not published."""
    named = tuple(attribute.name for attribute in attributes if attribute.name in key)
    return named if len(named) == len(key) else ()


def _reserved(table: PublishedTable, connection: Session) -> ReservedColumnName | None:
    names = table.schema.column_names
    taken = [name for name in names if is_reserved(name)]
    if not taken:
        return None
    renaming = " ".join(
        f"ALTER TABLE {table.name.quoted} RENAME COLUMN {quote_identifier(name)} "
        f"TO {quote_identifier(other)};"
        for name, other in _other_names(taken, names).items()
    )
    if _may_have_column_list(connection, table, taken):
        rest = ", ".join(quote_identifier(name) for name in names if name not in taken)
        where = "" if table.row_filter is None else f" WHERE ({table.row_filter})"
        name = quote_identifier(table.publication.name)
        way = (
            "Leave it out with a column list: "
            f"BEGIN; ALTER PUBLICATION {name} DROP TABLE {table.name.quoted}; "
            f"ALTER PUBLICATION {name} ADD TABLE {table.name.quoted} ({rest}){where}; COMMIT; "
            f"or rename it: {renaming}"
        )
    else:
        way = (
            f"Rename it: {renaming} Or exclude this table (setting tables.exclude: "
            f"['{table.name}'])."
        )
    return ReservedColumnName(
        f"Table {table.name} has a column {', '.join(taken)}, a name that walflow reserves.",
        hint=way,
    )


def _other_names(taken: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """A name for each column that is neither reserved nor another column's."""
    others: dict[str, str] = {}
    for name in taken:
        other = name.strip("_")
        while other in names or is_reserved(other) or other in others.values():
            other += "_"
        others[name] = other
    return others


# A publication that has schemas takes no column lists, and only what is in it by itself can be
# taken out of it.
_IN_BY_ITSELF = """
SELECT EXISTS (SELECT FROM pg_publication_rel WHERE prpubid = p.oid AND prrelid = %(table)s)
       AND NOT EXISTS (SELECT FROM pg_publication_namespace WHERE pnpubid = p.oid)
  FROM pg_publication AS p WHERE pubname = %(publication)s
"""


def _may_have_column_list(
    connection: Session, table: PublishedTable, without: Collection[str]
) -> bool:
    """Whether the publication can omit these columns while updates and deletes still work."""
    schema = table.schema
    if connection.info.server_version < 150000 or set(schema.column_names) <= set(without):
        return False
    if table.publication.needs_identity and (
        schema.replica_identity is ReplicaIdentity.FULL or not set(schema.key).isdisjoint(without)
    ):
        return False
    row = connection.execute(
        _IN_BY_ITSELF, {"table": schema.oid, "publication": table.publication.name}
    ).fetchone()
    return row is not None and bool(row[0])
