"""A replayer of the change log that goes row by row, and forgives nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tests.source.raw_values import comparable
from tests.source.stream import META, Row
from walflow.model import TableSchema

Value = tuple[Any, str | None]
"""A column's value, and its exact Postgres text where the value is not the whole truth."""
State = dict[str, Value]


def values_of(row: Row, names: Iterable[str], prefix: str = "") -> State:
    overflow = row.get("_exact") or {}
    return {name: (frozen(row[name]), overflow.get(prefix + name)) for name in names}


def frozen(value: object) -> object:
    """Hashable, and equal where it is the same (NaN)."""
    value = comparable(value)
    return _tupled(value)


def _tupled(value: object) -> object:
    return tuple(_tupled(item) for item in value) if isinstance(value, list) else value


class Replayer:
    """The rows of one table, from its copy and its changes.

    An insert of a row that is there, or a change of one that is not, is an error: copy and log
    must fit each other exactly.
    """

    def __init__(self, schema: TableSchema, copied: Iterable[Row] = ()) -> None:
        self.schema = schema
        self._by_key: dict[tuple[Value, ...], State] = {}
        self._copies: Counter[tuple[Value, ...]] = Counter()
        for row in copied:
            self._insert(values_of(row, schema.column_names))

    def replay(self, changes: Iterable[Row]) -> None:
        for row in changes:
            self._apply(row)

    @property
    def rows(self) -> Counter[tuple[Value, ...]]:
        """Every row there is, and how often."""
        if not self.schema.key:
            return +self._copies
        return Counter(tuple(state.values()) for state in self._by_key.values())

    def _apply(self, row: Row) -> None:
        names = [name for name in row if name not in META]
        assert names == list(self.schema.column_names)
        kind = row["_change_type"]
        if kind == "truncate":
            assert all(row[name] is None for name in names)
            self._by_key.clear()
            self._copies.clear()
            return
        state = values_of(row, names)
        if kind == "insert":
            assert row["_unchanged"] is None
            assert row["_old"] is None
            self._insert(state)
        elif kind == "delete":
            self._delete(state)
        else:
            self._update(row, state)

    def _key(self, state: State, names: Sequence[str]) -> tuple[Value, ...]:
        return tuple(state[name] for name in names)

    def _insert(self, state: State) -> None:
        if not self.schema.key:
            self._copies[tuple(state.values())] += 1
            return
        key = self._key(state, self.schema.key)
        assert key not in self._by_key, f"{self.schema.name} has {key} already"
        self._by_key[key] = state

    def _delete(self, state: State) -> None:
        if not self.schema.key:
            self._take_copy(tuple(state.values()))
            return
        del self._by_key[self._key(state, self.schema.key)]

    def _update(self, row: Row, state: State) -> None:
        if not self.schema.key:
            assert row["_unchanged"] is None
            assert row["_old"] is not None
            old = {"_exact": row["_exact"], **row["_old"]}
            self._take_copy(tuple(values_of(old, self.schema.column_names, "_old.").values()))
            self._copies[tuple(state.values())] += 1
            return
        before = state
        if row["_old"] is not None:
            before = values_of({"_exact": row["_exact"], **row["_old"]}, self.schema.key, "_old.")
        base = self._by_key.pop(self._key(before, self.schema.key))
        for name in row["_unchanged"] or ():
            assert row[name] is None
            state[name] = base[name]
        self._insert(state)

    def _take_copy(self, values: tuple[Value, ...]) -> None:
        assert self._copies[values] > 0, f"{self.schema.name} has no row {values}"
        self._copies[values] -= 1
