"""Destinations that keep tables in memory, and can be told to be slow or to fail."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from walflow.destinations.base import TableChanges
from walflow.evolution import Evolution
from walflow.model import Lsn, TableName, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DroppingShelf", "FollowingShelf", "PositionedShelf", "RenamingShelf", "Shelf"]

Row = tuple[Any, ...]


class Shelf:
    """Delivers at least once: positions are the store's.

    Strict: a table has the form that it was copied in, and takes changes of no other.
    """

    name = "shelf"

    def __init__(self) -> None:
        self.tables: dict[TableName, dict[Row, Row]] = {}
        """Rows by their key; where there is none, by themselves and a number."""
        self.forms: dict[TableName, TableSchema] = {}
        self.copies: dict[TableName, int] = defaultdict(int)
        """How often each table was copied."""
        self.batches: dict[TableName, int] = defaultdict(int)
        self.before_copy: Callable[[TableName], None] = lambda table: None
        """Called before a copy is written; what it raises is the destination's error."""
        self.before_batch: Callable[[TableName], None] = lambda table: None
        self._lock = threading.Lock()

    def truncate_table(self, table: TableSchema) -> None:
        with self._lock:
            self.tables[table.name] = {}
            self.forms[table.name] = table

    def write_table_rows(self, table: TableSchema, rows: DataFrame) -> None:
        self.before_copy(table.name)
        found = [tuple(row[name] for name in table.column_names) for row in rows.collect()]
        with self._lock:
            self.copies[table.name] += 1
            self._check_schema(table)
            held = self.tables[table.name]
            for row in found:
                _put(held, table, row)

    def write_events(self, changes: TableChanges) -> None:
        table = changes.schema
        self.before_batch(table.name)
        net = changes.net().collect()
        with self._lock:
            self.batches[table.name] += 1
            self._check_schema(table)
            rows = self.tables[table.name]
            if changes.truncated:
                rows.clear()
            self._merge(changes, rows, net)
        self.applied_upto(table.name, changes.span.upto)

    def _merge(self, changes: TableChanges, rows: dict[Row, Row], net: list[Any]) -> None:
        table = changes.schema
        # All that goes first: a row may take the key of another.
        former = {}
        for number, row in enumerate(net):
            if not table.key:
                if row["_change_type"] == "delete":
                    _take(rows, table, tuple(row[name] for name in table.column_names))
                continue
            key = tuple((row["_old"] or row)[name] for name in table.key)
            former[number] = rows.get(key)
        for row in net if table.key else ():
            rows.pop(tuple(row[name] for name in table.key), None)
        for number, row in enumerate(net):
            if row["_change_type"] == "delete":
                continue
            values = {name: row[name] for name in table.column_names}
            for name in (row["_unchanged"] if table.key else None) or ():
                was = former[number]
                assert was is not None, f"{name} is to stay as it is in a row that is not there"
                values[name] = was[table.column_names.index(name)]
            _put(rows, table, tuple(values.values()))

    def _check_schema(self, table: TableSchema) -> None:
        assert _shape(self.forms[table.name]) == _shape(table), "rows of another form"

    def applied_upto(self, table: TableName, position: Lsn) -> None:
        """For those who keep positions."""

    def rows(self, table: str) -> list[Row]:
        with self._lock:
            return sorted(self.tables.get(TableName("public", table), {}).values())


class PositionedShelf(Shelf):
    """Delivers effectively once."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: dict[TableName, Lsn] = {}

    def truncate_table(self, table: TableSchema) -> None:
        self.positions.pop(table.name, None)
        super().truncate_table(table)

    def applied(self, table: TableSchema) -> Lsn | None:
        return self.positions.get(table.name)

    def mark_applied(self, table: TableSchema, position: Lsn) -> None:
        self.positions[table.name] = position

    def applied_upto(self, table: TableName, position: Lsn) -> None:
        self.positions[table] = position


class DroppingShelf(PositionedShelf):
    """Drops tables when told to."""

    def drop_table(self, table: TableSchema) -> None:
        self.tables.pop(table.name, None)
        self.positions.pop(table.name, None)


class FollowingShelf(PositionedShelf):
    """Follows the forms of tables."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Evolution] = []
        self.before_change: Callable[[Evolution], None] = lambda evolution: None

    def change_table(self, evolution: Evolution) -> None:
        self.before_change(evolution)
        before, after = evolution.before, evolution.after
        with self._lock:
            self.changes.append(evolution)
            if _shape(self.forms[after.name]) == _shape(after):
                return  # it was done before
            assert _shape(self.forms[after.name]) == _shape(before), "a change of another form"
            places = {column.attnum: place for place, column in enumerate(before.columns)}
            rows: dict[Row, Row] = {}
            for row in self.tables[after.name].values():
                values = (
                    row[places[column.attnum]]
                    if column.attnum in places
                    else evolution.missing.get(column.name)
                    for column in after.columns
                )
                _put(rows, after, tuple(values), new=True)
            self.tables[after.name] = rows
            self.forms[after.name] = after


class RenamingShelf(FollowingShelf):
    """Follows the names of tables, too, but for those that it is told not to."""

    def __init__(self, *refused: TableName) -> None:
        super().__init__()
        self._refused = refused

    def rename_table(self, table: TableSchema, name: TableName) -> bool:
        with self._lock:
            if name in self._refused:
                return False
            if table.name not in self.tables:
                return name in self.tables
            assert name not in self.tables, "there is a table of that name"
            self.tables[name] = self.tables.pop(table.name)
            self.positions[name] = self.positions.pop(table.name)
            self.forms[name] = replace(self.forms.pop(table.name), name=name)
            return True


def _shape(table: TableSchema) -> tuple[object, ...]:
    columns = [(column.attnum, column.name, column.spark_type) for column in table.columns]
    return (table.key, columns)


def _put(rows: dict[Row, Row], table: TableSchema, row: Row, *, new: bool = False) -> None:
    if table.key:
        key = tuple(row[table.column_names.index(name)] for name in table.key)
        assert not (new and key in rows), f"two rows have the key {key}"
        rows[key] = row
        return
    number = 0
    while (row, number) in rows:
        number += 1
    rows[row, number] = row


def _take(rows: dict[Row, Row], table: TableSchema, row: Row) -> None:
    number = -1
    while (row, number + 1) in rows:
        number += 1
    assert number >= 0, f"a row is to go from {table.name} that is not there: {row}"
    del rows[row, number]
