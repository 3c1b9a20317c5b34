"""Random transactions over a few tables whose forms change as well."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.conftest import Database
from walflow.model import quote_identifier

__all__ = ["TABLES", "Generator", "Table"]

_KEYS = 40
"""So few that keys come again and again."""


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    key: tuple[str, ...]
    columns: str
    more: str | None = None

    @property
    def make(self) -> list[str]:
        made = [f"CREATE TABLE {self.name} ({self.columns})"]
        return made if self.more is None else [*made, f"ALTER TABLE {self.name} {self.more}"]


TABLES = (
    Table("keyed", ("id",), "id int PRIMARY KEY, v text, n numeric(8,2)"),
    Table("pairs", ("a", "b"), "a int, b varchar(9), v text, n numeric, PRIMARY KEY (b, a)"),
    Table("copies", (), "a int, v varchar(3)", "REPLICA IDENTITY FULL"),
    Table("large", ("id",), "id int PRIMARY KEY, body text, n int, more text",
          "ALTER body SET STORAGE EXTERNAL, ALTER more SET STORAGE EXTERNAL"),
    Table("modal", ("id",), "id int PRIMARY KEY, v text, body text",
          "ALTER body SET STORAGE EXTERNAL"),
)  # fmt: skip


class Generator:
    """What it does depends on the seed alone."""

    def __init__(self, database: Database, seed: int) -> None:
        self._database = database
        self._chance = random.Random(seed)
        self._columns: dict[str, dict[str, str]] = {}
        self._names = 0
        self.transactions = 0
        self.forms = 0
        """How often a form changed."""

    def make(self) -> None:
        for table in TABLES:
            self._database.execute(*table.make)
        with self._database.connect() as connection:
            self._look(connection)
            for _ in range(12):
                for table in TABLES:
                    connection.execute(self._insert(table).encode())

    def run(self, count: int) -> None:
        """So many transactions; some of them change forms, some are rolled back."""
        with self._database.connect() as connection:
            # Nothing is ever lost by it here, and it is much quicker.
            connection.execute("SET synchronous_commit = off")
            for _ in range(count):
                # What a rolled back one would have made of forms is looked up.
                undone = self._chance.random() < 0.05
                with connection.transaction(force_rollback=undone):
                    for _ in range(self._chance.choice((1, 1, 2, 3, 6))):
                        self._statement(connection, self._chance.choice(TABLES))
                self._look(connection)
                self.transactions += 1
            connection.execute("SET synchronous_commit = on")
            # A change of each table, so that the log tells of its form. Flushed with all before it.
            with connection.transaction():
                for table in TABLES:
                    connection.execute(self._first_and_last(table).encode())

    def _look(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        found = connection.execute(
            "SELECT c.relname, attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " JOIN pg_class c ON c.oid = attrelid WHERE relnamespace = 'public'::regnamespace"
            " AND relkind = 'r' AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        ).fetchall()
        self._columns = {}
        for table, column, kind in found:
            self._columns.setdefault(table, {})[column] = kind

    def _statement(self, connection: psycopg.Connection[tuple[Any, ...]], table: Table) -> None:
        kind = self._chance.choices(
            (self._insert, self._update, self._move, self._delete, self._truncate, self._change),
            (40, 40, 10, 14, 0.6, 4),
        )[0]
        try:
            with connection.transaction():
                connection.execute(kind(table).encode())
                if kind == self._change:
                    self._look(connection)
                    self.forms += 1
        except (psycopg.errors.UniqueViolation, psycopg.errors.StringDataRightTruncation):
            pass

    # Statements.

    def _insert(self, table: Table) -> str:
        columns = self._columns[table.name]
        names = ", ".join(map(quote_identifier, columns))
        rows = []
        for _ in range(self._chance.choice((1, 1, 2))):
            values = [self._value(table, name, kind) for name, kind in columns.items()]
            rows.append(f"({', '.join(values)})")
        # Keyless tables have twins.
        rows += rows[: not table.key]
        return f"INSERT INTO {table.name} ({names}) VALUES {', '.join(rows)} ON CONFLICT DO NOTHING"

    def _update(self, table: Table) -> str:
        others = [n for n in self._columns[table.name] if n not in table.key]
        if not others:
            return self._insert(table)
        changed = self._chance.sample(others, self._chance.randint(1, min(2, len(others))))
        return f"UPDATE {table.name} SET {self._assigned(table, changed)} WHERE {self._some(table)}"

    def _move(self, table: Table) -> str:
        """A change of key, with or without other changes."""
        if not table.key:
            return self._update(table)
        others = [n for n in self._columns[table.name] if n not in table.key]
        changed = [self._chance.choice(table.key)]
        if others and self._chance.random() < 0.3:
            changed.append(self._chance.choice(others))
        one = f"ctid = (SELECT min(ctid) FROM {table.name} WHERE {self._some(table)})"
        return f"UPDATE {table.name} SET {self._assigned(table, changed)} WHERE {one}"

    def _delete(self, table: Table) -> str:
        if self._chance.random() < 0.5:
            return f"DELETE FROM {table.name} WHERE {self._some(table)}"
        # One of equal rows.
        some = f"SELECT min(ctid) FROM {table.name} WHERE {self._some(table)}"
        return f"DELETE FROM {table.name} WHERE ctid = ({some})"

    def _truncate(self, table: Table) -> str:
        return f"TRUNCATE {table.name}"

    def _first_and_last(self, table: Table) -> str:
        """A row that comes back at the end of each run."""
        columns = self._columns[table.name]
        values = {name: self._value(table, name, kind) for name, kind in columns.items()}
        gone = ""
        if table.key:
            values[table.key[0]] = "999"
            gone = f"DELETE FROM {table.name} WHERE {table.key[0]} = 999; "
        names = ", ".join(map(quote_identifier, columns))
        return f"{gone}INSERT INTO {table.name} ({names}) VALUES ({', '.join(values.values())})"

    def _assigned(self, table: Table, names: Sequence[str]) -> str:
        columns = self._columns[table.name]
        return ", ".join(
            f"{quote_identifier(name)} = {self._value(table, name, columns[name])}"
            for name in names
        )

    def _some(self, table: Table) -> str:
        if not table.key:
            return f"a = {self._chance.randrange(6)}"
        name = table.key[0]
        low = self._chance.randrange(_KEYS)
        return f"{name} BETWEEN {low} AND {low + self._chance.choice((0, 0, 1, 5))}"

    # Values.

    def _value(self, table: Table, name: str, kind: str) -> str:
        chance = self._chance
        if name in table.key:
            if kind == "integer":
                return str(chance.randrange(_KEYS))
            return f"'k{chance.randrange(3)}'"
        if name == "a":
            return str(chance.randrange(6))
        if chance.random() < 0.15:
            return "NULL"
        if kind in ("integer", "bigint"):
            return str(chance.randrange(-5, 5))
        if kind == "boolean":
            return chance.choice(("true", "false"))
        if kind == "numeric":
            return chance.choice(("1.5", "'NaN'", "1e30", "'-Infinity'", "0.125", "7"))
        if kind.startswith("numeric"):
            return f"{chance.randrange(9999)}.25"
        if kind == "text" and chance.random() < 0.5:
            return f"repeat(md5('{chance.randrange(9)}'), 90)"
        return f"'{chance.choice('abc')}{chance.randrange(9)}'"

    # Forms.

    def _change(self, table: Table) -> str:
        columns = self._columns[table.name]
        others = [n for n in columns if n not in table.key and n != "a"]
        ways: list[Callable[[Table, list[str]], str]] = [self._add]
        if others:
            ways += [self._add, self._rename, self._rename, self._drop, self._widen]
        if len(columns) > 7:
            ways = [self._drop, self._rename]
        return f"ALTER TABLE {table.name} {self._chance.choice(ways)(table, others)}"

    def _add(self, table: Table, others: list[str]) -> str:
        kind, default = self._chance.choice(
            (
                ("text", ""),
                ("int", ""),
                ("int", "DEFAULT 7"),
                ("text", "DEFAULT 'it''s'"),
                ("text", "DEFAULT repeat('long ', 600)"),
                ("varchar(4)", "DEFAULT 'four'"),
                ("numeric(6,2)", "DEFAULT 1.25"),
                ("numeric", "DEFAULT 'NaN'"),
                ("bool", "DEFAULT true"),
                ("int", "DEFAULT floor(random() * 100)"),
            )
        )
        return f"ADD COLUMN {self._name(table)} {kind} {default}"

    def _rename(self, table: Table, others: list[str]) -> str:
        return f"RENAME COLUMN {self._chance.choice(others)} TO {self._name(table)}"

    def _drop(self, table: Table, others: list[str]) -> str:
        return f"DROP COLUMN {self._chance.choice(others)}"

    def _widen(self, table: Table, others: list[str]) -> str:
        name = self._chance.choice(others)
        wider = {
            "integer": "bigint",
            "numeric(8,2)": "numeric(12,2)",
            "numeric(6,2)": "numeric(8,2)",
            "character varying(3)": "varchar(5)",
            "character varying(4)": "varchar(9)",
            "character varying(5)": "text",
            "character varying(9)": "text",
        }.get(self._columns[table.name][name])
        if wider is None:
            return f"ALTER COLUMN {name} DROP DEFAULT"
        return f"ALTER COLUMN {name} TYPE {wider}"

    def _name(self, table: Table) -> str:
        """Mostly a new one, sometimes one that a column had once."""
        if self._names and self._chance.random() < 0.3:
            former = f"c{self._chance.randrange(self._names)}"
            if former not in self._columns[table.name]:
                return former
        self._names += 1
        return f"c{self._names}"
