"""How a table is published, with marks that show whether it was published without a break.

A table that was dropped and created again has another oid. Things without an oid (a partition's
link to its parent, a table's place in a schema) are marked by the transaction that wrote them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from walflow.source.catalog.publication import Publication
from walflow.source.connection import Session
from walflow.states import Membership, Storage

__all__ = ["INSIDE_TYPE", "read_memberships", "read_type_facts"]

# A partition is published by what publishes the tables above it. The links to them are part of
# the entry: a partition that is detached and attached again was not published in between.
_ENTRIES = """
WITH RECURSIVE above (oid, ancestor, links) AS (
       SELECT oid, oid, '' FROM unnest(%(oids)s::oid[]) AS oid
       UNION ALL
       SELECT above.oid, link.inhparent, above.links || ':' || link.xmin
         FROM above
         JOIN pg_class AS c ON c.oid = above.ancestor AND c.relispartition
         JOIN pg_inherits AS link ON link.inhrelid = above.ancestor),
     publication AS (SELECT oid, puballtables FROM pg_publication WHERE pubname = %(name)s)
SELECT unnest.oid, publication.oid::text
  FROM unnest(%(oids)s::oid[]) AS unnest (oid), publication
 WHERE puballtables
 UNION ALL
SELECT above.oid, entry.oid || links
  FROM above
  JOIN pg_publication_rel AS entry ON entry.prrelid = ancestor
  JOIN publication ON publication.oid = entry.prpubid
"""

# A table that is moved to another schema and back was not published in between. Its dependency on
# the schema is what the move writes.
_SCHEMA_ENTRIES = """
 UNION ALL
SELECT above.oid, entry.oid || ':' || place.xmin || links
  FROM above
  JOIN pg_class AS c ON c.oid = ancestor
  JOIN pg_publication_namespace AS entry ON entry.pnnspid = c.relnamespace
  JOIN publication ON publication.oid = entry.pnpubid
  JOIN pg_depend AS place ON place.classid = 'pg_class'::regclass AND place.objid = c.oid
       AND place.objsubid = 0 AND place.refclassid = 'pg_namespace'::regclass
"""

# Was it made by CREATE TABLE … PARTITION OF, and so empty? Attaching writes every column of the
# new partition again. So there is a column that no later command than the table's creation has
# written: the same transaction and command as its system column, which nothing ever alters; or,
# since CREATE TABLE stores defaults in a second step, the same command as its default, and before
# the link. That a table was made and attached in one transaction would not do: it may have been
# filled in between. Nor would it be empty if it was UNLOGGED at first: SET LOGGED gives it another
# file than its first, which has the table's own number.
_LINKS = """
SELECT root, t.relid::oid, t.parentrelid::oid, c.relkind = 'p', link.xmin::text::int8,
       link.xmin::text = made.xmin::text AND c.relfilenode IN (0, c.oid) AND EXISTS (
         SELECT FROM pg_attribute AS a
           LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
          WHERE a.attrelid = t.relid AND a.attnum > 0 AND NOT a.attisdropped
            AND a.xmin::text = made.xmin::text
            AND (a.cmin::text = made.cmin::text
                 OR (a.xmin::text = d.xmin::text AND a.cmin::text = d.cmin::text
                     AND a.cmin::text::int8 < link.cmin::text::int8)))
  FROM unnest(%s::oid[]) AS root
 CROSS JOIN LATERAL pg_partition_tree(root) AS t
  JOIN pg_class AS c ON c.oid = t.relid AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
  JOIN pg_inherits AS link ON link.inhrelid = t.relid
  JOIN pg_attribute AS made ON made.attrelid = t.relid AND made.attnum = -1
 WHERE t.level > 0
"""

# Any entry will do, as long as it stays the same. ALTER writes a column's row, TRUNCATE and the
# like do not.
_FILES = """
SELECT root, c.oid, c.relfilenode, c.reltoastrelid,
       coalesce((SELECT min(oid::int8) FROM pg_publication_rel WHERE prrelid = c.oid), 0),
       coalesce((SELECT bit_xor(hash_record_extended(ROW(attnum, a.xmin::text), 0))
                   FROM pg_attribute AS a
                  WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped), 0)
  FROM unnest(%s::oid[]) AS root
  LEFT JOIN LATERAL pg_partition_tree(root) AS t ON true
  JOIN pg_class AS c ON c.oid = coalesce(t.relid, root)
 WHERE c.relkind = 'r' AND c.relpersistence = 'p'
"""

# What Postgres brings (below 16384) never changes.
INSIDE_TYPE = """
 CROSS JOIN LATERAL (
       SELECT t.typbasetype UNION ALL SELECT t.typelem
        UNION ALL
       SELECT rngsubtype FROM pg_range WHERE t.oid IN (rngtypid, rngmultitypid)
        UNION ALL
       SELECT atttypid FROM pg_attribute
        WHERE attrelid = t.typrelid AND attnum > 0 AND NOT attisdropped) AS inside (oid)
 WHERE inside.oid >= 16384"""
"""From the types ``t`` (in ``pg_type``) to the types that they consist of, one step: through
domains, arrays, ranges and composites."""

# The parts of domains and ranges never change. A type that was altered and altered back counts as
# changed, because the log may have texts of the time in between. Renaming a label writes its row.
# A dropped attribute stays in the catalog, with 0 as its type.
_TYPE_FACTS = f"""
WITH RECURSIVE part (root, oid) AS (
       SELECT oid, oid FROM unnest(%s::oid[]) AS oid WHERE oid >= 16384
        UNION
       SELECT part.root, inside.oid
         FROM part JOIN pg_type AS t ON t.oid = part.oid
        {INSIDE_TYPE})
SELECT part.root, t.oid, concat_ws(':', e.oid, e.xmin, e.enumlabel)
  FROM part JOIN pg_type AS t USING (oid) JOIN pg_enum AS e ON e.enumtypid = t.oid
 UNION ALL
SELECT part.root, t.oid,
       coalesce(string_agg(concat_ws(':', a.attnum, a.atttypid, a.atttypmod), ' '
                           ORDER BY a.attnum), '')
  FROM part JOIN pg_type AS t USING (oid)
  LEFT JOIN pg_attribute AS a ON a.attrelid = t.typrelid AND a.attnum > 0
 WHERE t.typtype = 'c'
 GROUP BY part.root, t.oid
"""


@dataclass(frozen=True, slots=True)
class _Link:
    oid: int
    parent: int
    partitioned: bool
    """If so, it has no rows of its own."""
    attached: int
    """The transaction that made it a partition."""
    born: bool
    """It was created as a partition, not attached later."""


def read_memberships(
    connection: Session,
    publication: Publication,
    tables: Mapping[int, str | None],
    rowless: frozenset[int],
) -> dict[int, Membership]:
    """The memberships of these tables (oids, with their row filters). Call it inside a
    ``brief_look``. ``rowless``: relations that had no pages before this was called."""
    oids = list(tables)
    entries: dict[int, set[str]] = defaultdict(set)
    schemas = _SCHEMA_ENTRIES if connection.info.server_version >= 150000 else ""
    for oid, entry in connection.execute(
        _ENTRIES + schemas, {"oids": oids, "name": publication.name}
    ):
        entries[oid].add(entry)
    links: dict[int, list[_Link]] = defaultdict(list)
    for root, *facts in connection.execute(_LINKS, [oids]):
        links[root].append(_Link(*facts))
    files: dict[int, set[Storage]] = defaultdict(set)
    for root, *facts in connection.execute(_FILES, [oids]):
        files[root].add(Storage(*facts))
    return {
        oid: Membership(
            entries=frozenset(entries[oid]),
            row_filter=row_filter,
            kinds=publication.published,
            publication=publication.version,
            relations=frozenset({(oid, 0), *((link.oid, link.attached) for link in links[oid])}),
            came_empty=_came_empty(links[oid], rowless),
            files=frozenset(files[oid]),
        )
        for oid, row_filter in tables.items()
    }


def read_type_facts(
    connection: Session, types: Collection[int]
) -> dict[int, frozenset[tuple[int, str]]]:
    """The facts that the texts of stored values depend on, for each of these types and the types
    that they consist of, as (type, fact): an enum's labels, and a composite's attributes."""
    found: dict[int, set[tuple[int, str]]] = {oid: set() for oid in types}
    for root, oid, fact in connection.execute(_TYPE_FACTS, [sorted(types)]):
        found[root].add((oid, fact))
    return {oid: frozenset(facts) for oid, facts in found.items()}


def _came_empty(links: Sequence[_Link], rowless: frozenset[int]) -> frozenset[int]:
    parents = {link.oid: link.parent for link in links}
    with_rows: set[int] = set()
    for link in links:
        at: int | None = link.oid
        if link.partitioned or link.oid in rowless:
            continue
        while at is not None and at not in with_rows:
            with_rows.add(at)
            at = parents.get(at)
    return frozenset(link.oid for link in links if link.born or link.oid not in with_rows)
