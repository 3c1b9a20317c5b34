"""Finds out which columns of a table a relation message describes.

A message names columns in the order of their attribute numbers, without the numbers. The catalog
shows the table as it is now, perhaps several ALTERs later. So a name proves little: it may belong
to another column since. These facts are certain:

- A column that existed before and exists now existed in between.
- Numbers are given out in ascending order, once. If a column is in the message, so are all columns
  with smaller numbers that exist now.
- A column that has not been altered since, or for as long as the slot can tell, is in the message
  as it is now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from walflow.model import TableSchema
from walflow.source.catalog.attributes import Attribute
from walflow.source.stream.relation import RelationColumn

__all__ = ["match_columns"]

_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An attribute that may be in the message, and what is certain about it."""

    attnum: int
    required: bool
    """It is in the message."""
    barring: bool
    """If it is not in the message, no later one is either."""
    place: int | None
    """Its place in the message, if it is there. None: it may be anywhere."""


_Taken = tuple[int, "_Taken"] | tuple[()]
"""Numbers for the first columns of the message: the last one of them, and those before it."""

_Ways = dict[tuple[int, bool], tuple[int, _Taken]]
"""By state (how many columns have a number, and whether no further attribute may be in the
message): how many solutions lead to it, counted up to two, and one of them."""

_MANY_WAYS = 500


def match_columns(
    before: TableSchema | None, columns: Sequence[RelationColumn], attributes: Sequence[Attribute]
) -> tuple[int, ...] | None:
    """The attribute numbers of a message's columns. None if several answers are possible.

    ``before`` is an earlier schema of the table, with numbers, or None. ``attributes`` are the
    table's, by number, as the catalog has them later, dropped ones included. The publication's
    column list must not have changed in between. (A table that is published differently is copied
    again anyway.)
    """
    if before is not None and not before.numbered:
        before = None
    candidates = _candidates(before, columns, attributes)
    ways: _Ways = {(0, False): (1, ())}
    left = len(candidates)
    required = sum(candidate.required for candidate in candidates)
    for candidate in candidates:
        further: _Ways = {}
        left -= 1
        required -= candidate.required
        for (count, barred), (number, taken) in ways.items():
            room = len(columns) - count
            if room > required and not barred and candidate.place in (None, count):
                _add(further, (count + 1, False), number, (candidate.attnum, taken))
            if not candidate.required and required <= room <= left:
                _add(further, (count, barred or candidate.barring), number, taken)
        ways = further
        if len(ways) > _MANY_WAYS:
            return None
    found = [way for (count, _), way in ways.items() if count == len(columns)]
    if sum(number for number, _ in found) != 1:
        return None
    return _numbers(found[0][1])


def _candidates(
    before: TableSchema | None, columns: Sequence[RelationColumn], attributes: Sequence[Attribute]
) -> list[_Candidate]:
    places = {(c.name, c.type_oid, c.typmod): place for place, c in enumerate(columns)}
    published = {} if before is None else {c.attnum: c.altered for c in before.columns}
    earlier = published.keys() | (frozenset() if before is None else before.unpublished)
    newest = max(earlier, default=0) if before is None else max(before.newest, *earlier, 0)
    found = []
    for attribute in attributes:
        number = attribute.attnum
        place = places.get((attribute.name, attribute.type_oid, attribute.typmod))
        if attribute.stable:
            # If the message does not have it under its name, it is not published.
            if place is not None and not attribute.dropped:
                found.append(_Candidate(number, required=True, barring=False, place=place))
        elif not attribute.dropped:
            untouched = 0 != attribute.altered == published.get(number)
            found.append(
                _Candidate(
                    number,
                    required=number in published,
                    barring=number > newest and not attribute.generated,
                    place=(_NOWHERE if place is None else place) if untouched else None,
                )
            )
        elif number in earlier or number > newest:
            found.append(_Candidate(number, required=False, barring=False, place=None))
    return found


def _add(ways: _Ways, at: tuple[int, bool], number: int, taken: _Taken) -> None:
    already, first = ways.get(at, (0, taken))
    ways[at] = (min(2, already + number), first)


def _numbers(taken: _Taken) -> tuple[int, ...]:
    found = []
    while taken:
        number, taken = taken
        found.append(number)
    return tuple(reversed(found))
