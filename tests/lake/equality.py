"""Tables of a source and of a lake, value by value, as texts that both sides write by themselves.

All tables are read at once: what a query costs hardly depends on how many tables it reads.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from tests.conftest import Database
from walflow.config import Settings
from walflow.demo.comparable_values import (
    ComparableText,
    comparable_array,
    comparable_text,
    quoted_for_spark,
)
from walflow.destinations import warehouse_of
from walflow.destinations.delta import DeltaFormat
from walflow.destinations.iceberg import IcebergFormat
from walflow.destinations.lake import EXACT, LakeFormat
from walflow.destinations.lake.sessions import lake_session
from walflow.model import TableName, quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "ALL_ROWS",
    "CURRENT",
    "FORMATS",
    "NOT_DELETED",
    "TOLD_LAST",
    "Lake",
    "Rows",
    "Sought",
    "assert_equal",
    "differences",
    "format_of",
]

FORMATS = ("iceberg", "delta")

Rows = Counter[tuple[str | None, ...]]

ALL_ROWS = "SELECT * FROM ({})"
NOT_DELETED = "SELECT * FROM ({}) WHERE NOT _DELETED"
CURRENT = "SELECT * FROM ({}) WHERE _CURRENT"
# The newest change of each key since the last truncate.
TOLD_LAST = (
    "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY _LSN DESC, _SEQ DESC)"
    " AS newest, max(CASE WHEN _CHANGE_TYPE = 'truncate' THEN struct(_LSN, _SEQ) END) OVER ()"
    " AS emptied FROM ({})) WHERE newest = 1 AND _CHANGE_TYPE NOT IN ('delete', 'truncate')"
    " AND (emptied IS NULL OR struct(_LSN, _SEQ) > emptied)"
)
"""What of a lake's table is as in the source, by mode; ``{}`` is what gives its rows."""
NOTHING = "'a row'"
"""Of tables without columns."""


@dataclass(frozen=True, slots=True)
class Sought:
    """A table, and which of the lake's rows are to be as the source's."""

    table: str
    rows: str = ALL_ROWS
    keeps: tuple[str, ...] | None = ()
    """Columns that only the lake has; None: any."""


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    text: ComparableText


@dataclass(frozen=True, slots=True)
class _Found:
    """A lake's table."""

    query: str
    columns: list[str]

    @property
    def of_source(self) -> set[str]:
        """Without walflow's own."""
        return {name for name in self.columns if not (name.startswith("_") and name.isupper())}


def format_of(settings: Settings) -> LakeFormat:
    folder: Path = warehouse_of(settings.destination.uri)
    if settings.destination.uri.startswith("delta:"):
        return DeltaFormat(str(folder))
    return IcebergFormat(str(folder))


class Lake:
    """Reads a pipeline's tables, past all that it remembers of them."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.format = format_of(settings)
        self.session = lake_session(spark, self.format.session_conf)
        self.session.conf.set("spark.sql.session.timeZone", "UTC")

    def query(self, table: str) -> str:
        """What gives the table's rows."""
        return f"SELECT * FROM {self.format.identifier(TableName('public', table))}"

    def look(self, table: str) -> _Found:
        query = self.query(table)
        return _Found(query, self.session.sql(query).columns)

    def texts(self, queries: Mapping[str, str]) -> dict[str, Rows]:
        """What each of the queries gives, which is an array of texts, by table."""
        parts = [f"SELECT '{table}' AS t, v FROM ({query})" for table, query in queries.items()]
        found: dict[str, Rows] = defaultdict(Counter)
        for row in self.session.sql(" UNION ALL ".join(parts)).collect():
            found[row.t][tuple(row.v)] += 1
        return found

    def commits(self, table: str) -> int:
        return len(self.format.versions(self.session, TableName("public", table)))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.session.sql(query).collect()]


def differences(database: Database, lake: Lake, sought: Iterable[Sought]) -> dict[str, str]:
    """What is not the same, by table. Nobody may write to either side meanwhile."""
    with database.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        connection.execute("SET datestyle = 'ISO'")
        wanted = {one.table: one for one in sought}
        columns = {table: _columns(connection, table) for table in wanted}
        source = {table: _texts(connection, table, columns[table]) for table in wanted}
    found: dict[str, str] = {}
    queries: dict[str, str] = {}
    for table, one in wanted.items():
        there, names = lake.look(table), {column.name for column in columns[table]}
        kept = there.of_source - names if one.keeps is None else set(one.keeps)
        if names | kept != there.of_source:
            found[table] = f"the columns are {there.columns}, and in the source {names}"
            continue
        texts = ", ".join(_in_spark(column, EXACT in there.columns) for column in columns[table])
        texts = texts or NOTHING
        queries[table] = f"SELECT array({texts}) AS v FROM ({one.rows.format(there.query)})"
    here = lake.texts(queries) if queries else {}
    for table in queries:
        ours, theirs = here.get(table, Counter()), source[table]
        if ours != theirs:
            found[table] = (
                f"{ours.total()} rows, in the source {theirs.total()}; "
                f"too many: {_some(ours - theirs)}; missing: {_some(theirs - ours)}"
            )
    return found


def assert_equal(database: Database, lake: Lake, sought: Iterable[Sought]) -> None:
    found = differences(database, lake, sought)
    assert not found, "\n".join(f"{table}: {what}" for table, what in found.items())


def _some(rows: Rows) -> list[tuple[str, ...]]:
    ordered = sorted(rows, key=repr)[:4]
    return [tuple("NULL" if text is None else text[:60] for text in row) for row in ordered]


def _columns(connection: psycopg.Connection[Any], table: str) -> list[_Column]:
    found = connection.execute(
        "SELECT attname, atttypid, atttypmod FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [f"public.{quote_identifier(table)}"],
    ).fetchall()
    return [_Column(name, _form(connection, oid, modifier)) for name, oid, modifier in found]


def _form(connection: psycopg.Connection[Any], oid: int, modifier: int) -> ComparableText:
    """Through domains and arrays, of which one may be made of the other."""
    found = connection.execute(
        "SELECT typname, typbasetype, CASE WHEN typcategory = 'A' THEN typelem ELSE 0 END"
        " FROM pg_type WHERE oid = %s",
        [oid],
    ).fetchone()
    assert found is not None
    name, base, element = found
    if base:
        return _form(connection, base, modifier)
    if element:
        return comparable_array(_form(connection, element, modifier))
    # A numeric of more than 38 digits is held like one of any size.
    return comparable_text(name, None, -1 if modifier >> 16 > 38 else modifier)


def _texts(connection: psycopg.Connection[Any], table: str, columns: Sequence[_Column]) -> Rows:
    texts = []
    for column in columns:
        value = quote_identifier(column.name)
        held, odd = column.text.postgres_held(value), column.text.postgres_odd(value)
        exactly = f"CASE WHEN {odd} THEN ' exactly ' || concat({value}) ELSE '' END"
        texts.append(
            f"CASE WHEN {value} IS NOT NULL THEN coalesce({held}, 'NULL') || {exactly} END"
        )
    query = f"SELECT {', '.join(texts) or NOTHING} FROM public.{quote_identifier(table)}"
    return Counter(connection.execute(query.encode()).fetchall())


def _in_spark(column: _Column, has_overflow: bool) -> str:
    value = quoted_for_spark(column.name)
    overflow = f"{EXACT}['{column.name}']" if has_overflow else "cast(null AS string)"
    return (
        f"CASE WHEN {value} IS NOT NULL OR {overflow} IS NOT NULL"
        f" THEN concat(coalesce({column.text.spark_held(value)}, 'NULL'),"
        f" coalesce(concat(' exactly ', {overflow}), '')) END"
    )
