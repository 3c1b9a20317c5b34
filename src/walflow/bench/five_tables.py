"""Five tables that people really have, each with changes of one kind, at an even pace."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg

from walflow.testing.postgres import EmbeddedPostgres

__all__ = ["PUBLICATION", "TABLES", "FiveTables"]

PUBLICATION = "walflow"
TABLES = ("plain", "overflow", "keyless", "moving", "emptied")

_EACH = 7
"""Rows that one transaction changes in each table."""
_TRUNCATE_SECONDS = 20.0

_SCHEMA = """
CREATE TABLE plain (
    id bigint PRIMARY KEY, customer int, amount numeric(12,2), paid boolean, note text,
    at timestamptz, extra jsonb);
CREATE TABLE overflow (
    id bigint PRIMARY KEY, credit numeric, weight float8, valid_until timestamptz, day date);
CREATE TABLE keyless (kind int, amount numeric(12,2), note text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE moving (code text PRIMARY KEY, stock int, manual text);
ALTER TABLE moving ALTER COLUMN manual SET STORAGE EXTERNAL;
CREATE TABLE emptied (id bigint PRIMARY KEY, payload jsonb);
CREATE SEQUENCE emptied_ids START 1000000000;
CREATE PUBLICATION walflow FOR TABLE plain, overflow, keyless, moving, emptied;
"""

_ROWS = """
INSERT INTO plain SELECT i, i % 1003, i / 100.0, i % 3 = 0, 'note ' || i, now(),
    jsonb_build_object('n', i) FROM generate_series(1, {rows}) i;
INSERT INTO overflow SELECT i, i / 7.0, i * 1.5, now(), '2024-01-01'
    FROM generate_series(1, {rows}) i;
INSERT INTO keyless SELECT i % 50, i / 100.0, 'note ' || i FROM generate_series(1, {rows}) i;
INSERT INTO moving SELECT 'code-' || i, i, repeat(md5(i::text), 90)
    FROM generate_series(1, {rows}) i;
INSERT INTO emptied SELECT i, jsonb_build_object('n', i) FROM generate_series(1, {rows}) i;
"""


class FiveTables:
    """Makes the tables, and changes them from ``start`` to ``stop``."""

    def __init__(self, server: EmbeddedPostgres, rows: int, per_second: int) -> None:
        self._server = server
        self._rows = rows
        self._per_second = per_second
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="walflow-load", daemon=True)
        self._error: BaseException | None = None
        self.changes = 0

    def make(self) -> None:
        with self._server.connect() as connection:
            connection.execute(_SCHEMA)
            connection.execute(_ROWS.format(rows=self._rows))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends after the transaction under way."""
        self._stop.set()
        self._thread.join()
        self.check()

    def check(self) -> None:
        """Raise what ended the load early."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with self._server.connect(autocommit=False) as connection:
                self._change(connection)
        except BaseException as error:  # raised again by check()
            self._error = error

    def _change(self, connection: psycopg.Connection[Any]) -> None:
        random = np.random.default_rng(11)
        began = truncated = time.monotonic()
        number = 0
        while not self._stop.is_set():
            for change in (_plain, _overflow, _keyless, _moving, _emptied):
                rows = (random.choice(self._rows, _EACH, replace=False) + 1).tolist()
                change(connection, rows, self._rows + number * _EACH)
                connection.commit()
                self.changes += _EACH
            number += 1
            if time.monotonic() - truncated > _TRUNCATE_SECONDS:
                truncated = time.monotonic()
                connection.execute("TRUNCATE emptied")
                connection.commit()
            ahead = self.changes / self._per_second - (time.monotonic() - began)
            if ahead > 0:
                self._stop.wait(ahead)


def _plain(connection: psycopg.Connection[Any], rows: Sequence[int], new: int) -> None:
    """Five updates, an insert and a delete: the table keeps its size."""
    connection.execute(
        "UPDATE plain SET amount = amount + 1, at = now() WHERE id IN"
        " (SELECT id FROM plain WHERE id >= (SELECT min(id) FROM plain) + %s ORDER BY id LIMIT 5)",
        [rows[0] - 1],
    )
    connection.execute("INSERT INTO plain VALUES (%s, 1, 1, true, 'new', now(), '{}')", [new + 1])
    connection.execute("DELETE FROM plain WHERE id = (SELECT min(id) FROM plain)")


def _overflow(connection: psycopg.Connection[Any], rows: Sequence[int], new: int) -> None:
    """Values that tables of a lake have no room for, in some of the rows."""
    connection.execute(
        "UPDATE overflow SET credit = CASE WHEN id %% 3 = 0 THEN 'NaN' ELSE credit + 1 END,"
        " valid_until = CASE WHEN id %% 2 = 0 THEN timestamptz 'infinity' ELSE now() END,"
        " day = CASE WHEN id %% 5 = 0 THEN date 'infinity' ELSE day + 1 END WHERE id = ANY(%s)",
        [list(rows)],
    )


def _keyless(connection: psycopg.Connection[Any], rows: Sequence[int], new: int) -> None:
    one_each = "ctid = ANY(ARRAY(SELECT ctid FROM keyless WHERE kind = %s LIMIT %s))"
    connection.execute(
        "INSERT INTO keyless SELECT %s, 1, 'new' FROM generate_series(1, 2)", [new % 50]
    )
    connection.execute(f"UPDATE keyless SET amount = amount + 1 WHERE {one_each}", [new % 50, 3])
    connection.execute(f"DELETE FROM keyless WHERE {one_each}", [new % 50, 2])


def _moving(connection: psycopg.Connection[Any], rows: Sequence[int], new: int) -> None:
    """Long texts are left alone, and so not sent; one row gets another key, and back later."""
    codes = [f"code-{row}{suffix}" for row in rows for suffix in ("", "-new")]
    connection.execute("UPDATE moving SET stock = stock + 1 WHERE code = ANY(%s)", [codes[2:]])
    connection.execute(
        "UPDATE moving SET code = CASE WHEN code LIKE '%%-new' THEN replace(code, '-new', '')"
        " ELSE code || '-new' END WHERE code = ANY(%s)",
        [codes[:2]],
    )


def _emptied(connection: psycopg.Connection[Any], rows: Sequence[int], new: int) -> None:
    connection.execute(
        "INSERT INTO emptied SELECT nextval('emptied_ids'), '{\"n\": 1}'"
        f" FROM generate_series(1, {_EACH})"
    )
