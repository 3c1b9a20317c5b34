"""Whether the published tables have changed, checked every few seconds at almost no cost."""

from __future__ import annotations

from walflow.source.catalog.membership import INSIDE_TYPE
from walflow.source.catalog.publication import brief_look, read_publication
from walflow.source.connection import Session

__all__ = ["publication_fingerprint"]

# Hashes of the catalog rows that published_tables reads, not their text: names, numbers and flags
# of hundreds of tables in a few milliseconds. Links between partitions and places in schemas have
# no oid, and the publication's columns differ from version to version: the transaction that wrote
# them stands for them. An entry with another row filter or column list is another entry. Through
# their root, partitions have its columns. Of types it has what the texts of stored values depend on
# (see read_type_facts).
_FINGERPRINT = """
WITH RECURSIVE
  publication AS (
    SELECT oid, xmin::text AS version, puballtables, pubviaroot
      FROM pg_publication WHERE pubname = %(name)s),
  entry (oid, relid, place) AS (
    SELECT entry.oid, entry.prrelid, ''
      FROM publication JOIN pg_publication_rel AS entry ON entry.prpubid = publication.oid
    {schema_entries}
     UNION ALL
    SELECT publication.oid, c.oid, ''
      FROM publication JOIN pg_class AS c ON puballtables
     WHERE c.oid >= 16384 AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'),
  link (oid, parent, version) AS (
    SELECT i.inhrelid, i.inhparent, i.xmin::text
      FROM entry
      JOIN pg_inherits AS i ON i.inhparent = entry.relid
      JOIN pg_class AS c ON c.oid = i.inhrelid AND c.relispartition
     UNION
    SELECT i.inhrelid, i.inhparent, i.xmin::text
      FROM link
      JOIN pg_inherits AS i ON i.inhparent = link.oid),
  relation (oid, below) AS (
    SELECT oid, bool_or(below)
      FROM (SELECT relid, false FROM entry UNION ALL SELECT oid, true FROM link) AS r (oid, below)
     GROUP BY oid),
  type (oid) AS (
    SELECT DISTINCT a.atttypid
      FROM relation
      JOIN pg_attribute AS a ON a.attrelid = relation.oid
     WHERE a.attnum > 0 AND a.atttypid >= 16384
     UNION
    SELECT inside.oid
      FROM type JOIN pg_type AS t ON t.oid = type.oid
    {inside_type})
SELECT concat_ws('-',
         publication.oid,
         publication.version,
         (SELECT bit_xor(hash_record_extended(entry, 0)) FROM entry),
         (SELECT bit_xor(hash_record_extended(link, 0)) FROM link),
         (SELECT bit_xor(hash_record_extended(
                   ROW(c.oid, c.relname, n.nspname, c.relkind, c.relpersistence,
                       c.relreplident, c.relfilenode), 0))
            FROM relation
            JOIN pg_class AS c USING (oid)
            JOIN pg_namespace AS n ON n.oid = c.relnamespace),
         (SELECT bit_xor(hash_record_extended(
                   ROW(a.attrelid, a.attnum, a.attname, a.atttypid, a.atttypmod,
                       a.attgenerated), 0))
            FROM relation
            JOIN pg_attribute AS a ON a.attrelid = relation.oid
           WHERE a.attnum > 0 AND NOT a.attisdropped
             AND NOT (pubviaroot AND below)),
         (SELECT bit_xor(hash_record_extended(
                   ROW(a.attrelid, a.attnum, a.attmissingval::text), 0))
            FROM relation
            JOIN pg_attribute AS a ON a.attrelid = relation.oid
           WHERE a.attnum > 0 AND a.atthasmissing),
         (SELECT bit_xor(hash_record_extended(
                   ROW(i.indexrelid, i.indrelid, i.indkey::int2[], i.indnkeyatts, i.indisprimary,
                       i.indisreplident, i.indisvalid, i.indimmediate), 0))
            FROM relation
            JOIN pg_index AS i ON i.indrelid = relation.oid
           WHERE i.indisprimary OR i.indisreplident),
         (SELECT bit_xor(hash_record_extended(
                   ROW(e.oid, e.enumtypid, e.enumlabel, e.xmin::text), 0))
            FROM type JOIN pg_enum AS e ON e.enumtypid = type.oid),
         (SELECT bit_xor(hash_record_extended(
                   ROW(t.oid, a.attnum, a.atttypid, a.atttypmod), 0))
            FROM type
            JOIN pg_type AS t USING (oid)
            JOIN pg_attribute AS a ON a.attrelid = t.typrelid
           WHERE a.attnum > 0))
  FROM publication
"""

_SCHEMA_ENTRIES = """
     UNION ALL
    SELECT entry.oid, c.oid, place.xmin::text
      FROM publication
      JOIN pg_publication_namespace AS entry ON entry.pnpubid = publication.oid
      JOIN pg_class AS c ON c.relnamespace = entry.pnnspid
      JOIN pg_depend AS place ON place.classid = 'pg_class'::regclass AND place.objid = c.oid
           AND place.objsubid = 0 AND place.refclassid = 'pg_namespace'::regclass
     WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
"""


def publication_fingerprint(connection: Session, publication: str) -> str:
    """A text that changes whenever ``published_tables`` would return other names, columns, types,
    keys, filters, partitions, files or membership. Row counts and sizes do not count. Raises
    ``PublicationMissing``, and what ``brief_look`` raises."""
    schema_entries = _SCHEMA_ENTRIES if connection.info.server_version >= 150000 else ""
    with brief_look(connection, "see whether the publication has changed"):
        row = connection.execute(
            _FINGERPRINT.format(schema_entries=schema_entries, inside_type=INSIDE_TYPE),
            {"name": publication},
        ).fetchone()
    if row is None:
        read_publication(connection, publication)
        # It does not raise for one that was made just now.
        return publication_fingerprint(connection, publication)
    return str(row[0])
