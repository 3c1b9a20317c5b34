"""Postgres types from the catalog, resolved to what decides how values are read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from walflow.model import PgType
from walflow.source.connection import Session, source_errors

__all__ = ["TypeCatalog"]

# int2vector and oidvector look like arrays in the catalog, but their text format is a plain list.
_NO_ARRAYS = frozenset({22, 30})

_ROWS = """
SELECT oid, typtype, typbasetype, typtypmod, typdelim,
       CASE WHEN typsubscript = 'array_subscript_handler'::regproc THEN typelem ELSE 0 END
  FROM pg_type WHERE oid = ANY(%s)
"""

_NAMES = """
SELECT oid, typmod, format_type(oid, typmod)
  FROM unnest(%s::oid[], %s::int[]) AS wanted (oid, typmod)
"""


@dataclass(frozen=True, slots=True)
class _Row:
    kind: str
    base: int
    typmod: int
    delimiter: str
    element: int


class TypeCatalog:
    """Resolves (type, modifier) pairs. Asks the server once for each type and pair.

    A domain becomes the type under it, through any number of domains and arrays. A type that was
    dropped since a change was logged becomes one whose values are text.
    """

    def __init__(self, connection: Session) -> None:
        self._connection = connection
        self._rows: dict[int, _Row | None] = {}
        self._names: dict[tuple[int, int], str] = {}

    def resolve(self, oid: int, typmod: int = -1) -> PgType:
        self.load([(oid, typmod)])
        return self._resolve(oid, typmod)

    @source_errors("read the catalog of types")
    def load(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Fetch what these pairs need in few round trips, before ``resolve`` is called."""
        found = set(pairs)
        self._load_rows({oid for oid, _ in found})
        for oid, typmod in tuple(found):
            found.update(self._names_needed(oid, typmod))
        missing = sorted(found - self._names.keys())
        if missing:
            oids, typmods = [oid for oid, _ in missing], [typmod for _, typmod in missing]
            for oid, typmod, name in self._connection.execute(_NAMES, [oids, typmods]):
                self._names[oid, typmod] = name

    def has(self, oid: int) -> bool:
        """Whether the type exists. It must have been loaded."""
        return self._rows.get(oid) is not None

    def _load_rows(self, oids: set[int]) -> None:
        missing = oids - self._rows.keys()
        while missing:
            self._rows.update(dict.fromkeys(missing))
            for oid, *facts in self._connection.execute(_ROWS, [list(missing)]):
                self._rows[oid] = _Row(*facts)
            found = (self._rows[oid] for oid in missing)
            further = {at for row in found if row is not None for at in (row.base, row.element)}
            missing = further - self._rows.keys() - {0}

    def _undomained(self, oid: int, typmod: int) -> tuple[int, int]:
        """The type under all domains, and its modifier."""
        row = self._rows.get(oid)
        while row is not None and row.kind == "d":
            # A domain's column has no modifier of its own; the one in its definition counts.
            oid, typmod = row.base, row.typmod
            row = self._rows.get(oid)
        return oid, typmod

    def _element(self, oid: int) -> int:
        row = self._rows.get(oid)
        return 0 if row is None or oid in _NO_ARRAYS else row.element

    def _names_needed(self, oid: int, typmod: int) -> set[tuple[int, int]]:
        base, base_typmod = self._undomained(oid, typmod)
        element = self._element(base)
        if not element:
            return set()
        # The element may be a domain over an array in turn.
        return {(element, base_typmod)} | self._names_needed(element, base_typmod)

    def _resolve(self, oid: int, typmod: int) -> PgType:
        name = self._names[oid, typmod]
        base, base_typmod = self._undomained(oid, typmod)
        element = self._element(base)
        row = self._rows.get(base)
        return PgType(
            name=name,
            oid=oid,
            base=base,
            typmod=base_typmod,
            element=self._resolve(element, base_typmod) if element else None,
            delimiter="," if row is None else self._delimiter(element, row),
        )

    def _delimiter(self, element: int, row: _Row) -> str:
        """The delimiter between an array's elements, which the element type defines."""
        inner = self._rows.get(element) if element else None
        return (row if inner is None else inner).delimiter
