"""Columns as the catalog has them, dropped ones too, and the values that older rows have in
them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from walflow.arrow_types import arrow_type
from walflow.model import Column
from walflow.source.codec.cells import Cells, pad
from walflow.source.codec.values import from_text
from walflow.source.connection import Session

__all__ = ["Attribute", "Attributes", "missing_array", "read_attributes", "with_missing"]

# One statement sees one state, so that files and columns belong together. It takes no locks, and
# does not wait for sessions that alter the table. Only relations with rows have files and missing
# values; partitions have their root's columns, by name, with their own numbers.
_ATTRIBUTES = """
WITH RECURSIVE
  relation (root, oid, kind, filenode) AS (
    SELECT c.oid, c.oid, c.relkind, c.relfilenode FROM pg_class AS c WHERE c.oid = ANY(%(oids)s)
     UNION ALL
    SELECT relation.root, c.oid, c.relkind, c.relfilenode
      FROM relation
      JOIN pg_inherits AS i ON i.inhparent = relation.oid
      JOIN pg_class AS c ON c.oid = i.inhrelid
     WHERE relation.kind = 'p'),
  stored AS (
    SELECT root, count(*) AS files, array_agg(filenode::int8) AS filenodes
      FROM relation WHERE kind = 'r' GROUP BY root),
  missing AS (
    SELECT root, a.attname, count(*) AS files, array_agg(DISTINCT a.attmissingval::text) AS texts
      FROM relation JOIN pg_attribute AS a ON a.attrelid = relation.oid
     WHERE kind = 'r' AND a.atthasmissing GROUP BY root, a.attname)
SELECT a.attrelid, stored.filenodes,
       a.attnum, a.attname, a.atttypid, a.atttypmod, a.attgenerated <> '', a.attisdropped,
       a.xmin::text::int8,
       coalesce(age(a.xmin) > (SELECT age(catalog_xmin) FROM pg_replication_slots
                                WHERE slot_name = %(slot)s), false),
       CASE WHEN missing.files = stored.files AND cardinality(missing.texts) = 1
            THEN missing.texts[1] END,
       coalesce(missing.files = stored.files AND cardinality(missing.texts) = 1, true)
  FROM pg_attribute AS a
  LEFT JOIN stored ON stored.root = a.attrelid
  LEFT JOIN missing ON missing.root = a.attrelid AND missing.attname = a.attname
 WHERE a.attrelid = ANY(%(oids)s) AND a.attnum > 0
 ORDER BY a.attrelid, a.attnum
"""


@dataclass(frozen=True, slots=True)
class Attribute:
    name: str
    """The column's name. For a dropped column, the name that Postgres gave it then."""
    attnum: int
    type_oid: int
    """0 if it is dropped."""
    typmod: int
    generated: bool = False
    dropped: bool = False
    altered: int = 0
    """The transaction that last altered it. 0: unknown at the time of the message."""
    stable: bool = False
    """It has not been altered since the oldest change that the slot can still send."""
    missing: str | None = None
    missing_known: bool = True


@dataclass(frozen=True, slots=True)
class Attributes:
    """One relation's columns, as the catalog has them at one moment."""

    all: tuple[Attribute, ...] = ()
    """By attribute number, dropped columns too."""
    filenodes: frozenset[int] = frozenset()

    @property
    def live(self) -> tuple[Attribute, ...]:
        return tuple(attribute for attribute in self.all if not attribute.dropped)


def read_attributes(
    connection: Session, oids: Sequence[int], slot: str | None = None
) -> dict[int, Attributes]:
    """Read the attributes of each relation; none for a relation that is gone.

    Whether they are stable is known only with a slot: the slot makes Postgres keep the catalog's
    past for as long as it is needed.
    """
    found: dict[int, list[Attribute]] = {oid: [] for oid in oids}
    filenodes: dict[int, frozenset[int]] = {}
    rows = connection.execute(_ATTRIBUTES, {"oids": list(oids), "slot": slot})
    for oid, files, number, *facts, text, missing_known in rows:
        name, type_oid, typmod, generated, dropped, altered, stable = facts
        filenodes[oid] = frozenset(files or ())
        found[oid].append(
            Attribute(
                name=name,
                attnum=number,
                type_oid=type_oid,
                typmod=typmod,
                generated=generated,
                dropped=dropped,
                altered=altered,
                stable=stable,
                missing=None if text is None else _only_element(text),
                missing_known=missing_known,
            )
        )
    return {
        oid: Attributes(tuple(attributes), filenodes.get(oid, frozenset()))
        for oid, attributes in found.items()
    }


def _only_element(array: str) -> str:
    """The text of an array's one element. It may contain the character that separates elements."""
    element = array[1:-1]
    if not element.startswith('"'):
        return element
    return re.sub(r"\\(.)", r"\1", element[1:-1], flags=re.DOTALL)


def missing_array(column: Column) -> pa.Array[Any]:
    """The column's value in rows from before it was added, as one value of the log's type. Call
    this only if the value is known."""
    return _missing(column)[0]


def with_missing(columns: Iterable[Column]) -> tuple[Column, ...]:
    """The columns, without the missing values that their types do not hold."""
    return tuple(
        column if _missing(column)[1] else replace(column, missing=None, missing_known=False)
        for column in columns
    )


def _missing(column: Column) -> tuple[pa.Array[Any], bool]:
    """The value, and whether the type holds it exactly."""
    if column.missing is None:
        return pa.nulls(1, arrow_type(column.spark_type)), True
    text = column.missing.encode()
    cells = Cells(pad(text), np.zeros(1, np.int64), np.full(1, len(text), np.int64))
    converted = from_text(column, cells)
    return converted.values, converted.overflow is None
