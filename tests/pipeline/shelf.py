"""A destination that keeps keyed tables in memory, and can be told to be slow or to fail."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from walflow.destinations.base import Events
from walflow.model import Lsn, TableName, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PositionedShelf", "Shelf"]

Row = tuple[Any, ...]


class Shelf:
    """Delivers at least once: positions are the store's."""

    name = "shelf"

    def __init__(self) -> None:
        self.tables: dict[TableName, dict[Row, Row]] = {}
        self.copies: dict[TableName, int] = defaultdict(int)
        """How often each table was copied."""
        self.rounds: dict[TableName, int] = defaultdict(int)
        self.before_copy: Callable[[TableName], None] = lambda table: None
        """Called before a copy is written; what it raises is the destination's error."""
        self.before_round: Callable[[TableName], None] = lambda table: None
        self._lock = threading.Lock()

    def truncate_table(self, table: TableSchema) -> None:
        with self._lock:
            self.tables[table.name] = {}

    def write_table_rows(self, table: TableSchema, rows: DataFrame) -> None:
        self.before_copy(table.name)
        found = {_key(table, row): tuple(row) for row in rows.collect()}
        with self._lock:
            self.copies[table.name] += 1
            self.tables.setdefault(table.name, {}).update(found)

    def write_events(self, events: Events) -> None:
        for changes in events.tables:
            table = changes.schema
            self.before_round(table.name)
            net = changes.net().collect()
            with self._lock:
                self.rounds[table.name] += 1
                rows = self.tables[table.name]
                if changes.truncated:
                    rows.clear()
                for row in net:
                    key = _key(table, row)
                    rows.pop(key, None)
                    if row["_change_type"] == "upsert":
                        rows[key] = tuple(row[name] for name in table.column_names)
            self.applied_upto(table.name, events.span.upto)

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


def _key(table: TableSchema, row: Any) -> Row:
    assert table.key, "only keyed tables fit on this shelf"
    return tuple(row[name] for name in table.key)
