"""Compares source and destination, row by row and value by value.

Postgres and Spark each write every value as text by SQL, and the texts are compared. walflow's own
converters take no part, so the comparison shows their mistakes. A value that the destination's type
cannot hold is equal if the column has the nearest value and ``_EXACT`` has Postgres's own text.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from walflow.demo.comparable_values import ComparableText, comparable_text, quoted_for_spark
from walflow.destinations.iceberg import table_identifier
from walflow.destinations.lake import EXACT
from walflow.model import TableName, quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SHOWN", "Difference", "TableComparison", "compare_table"]

SHOWN = 20
"""How many differing keys are shown of each kind and table."""

# Between the parts of a key, and between a value and its exact text.
_PART, _EXACTLY = "\x02", "\x01"
_NOT_HELD = "NULL"


@dataclass(frozen=True, slots=True)
class Difference:
    key: str
    column: str
    source: str | None
    destination: str | None


@dataclass(frozen=True, slots=True)
class TableComparison:
    """The first ``SHOWN`` differing keys of each kind; the counts are of all keys."""

    table: TableName
    source_rows: int
    destination_rows: int
    missing: tuple[str, ...] = ()
    missing_count: int = 0
    """Keys that only the source has."""
    surplus: tuple[str, ...] = ()
    surplus_count: int = 0
    """Keys that only the destination has."""
    repeated: tuple[str, ...] = ()
    """Keys that the destination has more than once."""
    different: tuple[Difference, ...] = ()
    different_count: int = 0
    """Values that differ, in rows that both have."""

    @property
    def equal(self) -> bool:
        return not (
            self.missing_count
            or self.surplus_count
            or self.different_count
            or self.source_rows != self.destination_rows
        )


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    text: ComparableText


def compare_table(
    connection: psycopg.Connection[Any], spark: SparkSession, name: TableName
) -> TableComparison:
    """Compare a table with a primary key, while nothing writes to either side."""
    columns, key = _read_columns(connection, name)
    source = _read_source(connection, name, columns, key)
    destination = _read_destination(spark, name, columns, key)
    return _compare(name, source, destination)


def _read_columns(
    connection: psycopg.Connection[Any], name: TableName
) -> tuple[list[_Column], list[str]]:
    rows = connection.execute(
        """
        SELECT a.attname, a.atttypmod, t.typname, e.typname, coalesce(i.indisprimary, false)
        FROM pg_attribute a
        JOIN pg_type t ON t.oid = a.atttypid
        LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
        LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
            AND a.attnum = ANY(i.indkey)
        WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY a.attnum
        """,
        [name.quoted],
    ).fetchall()
    columns = [_Column(row[0], comparable_text(row[2], row[3], row[1])) for row in rows]
    return columns, [row[0] for row in rows if row[4]]


def _read_source(
    connection: psycopg.Connection[Any],
    name: TableName,
    columns: Sequence[_Column],
    key: Sequence[str],
) -> pa.Table:
    values = {column.name: _in_postgres(column) for column in columns}
    parts = [f"'{name}=' || {text}" for name, text in values.items() if name in key]
    texts = [f"concat_ws(chr({ord(_PART)}), {', '.join(parts)})", *values.values()]
    # Postgres wrote the texts in _EXACT with these settings.
    connection.execute("SET timezone = 'UTC'")
    connection.execute("SET datestyle = 'ISO'")
    content = io.BytesIO()
    copy = f"COPY (SELECT {', '.join(texts)} FROM {name.quoted}) TO STDOUT (FORMAT csv)"
    with connection.cursor() as cursor, cursor.copy(copy) as blocks:
        for block in blocks:
            content.write(block)
    names = ["key", *(column.name for column in columns)]
    if not content.tell():
        return pa.table({column: pa.array([], pa.string()) for column in names})
    content.seek(0)
    return csv.read_csv(
        content,
        read_options=csv.ReadOptions(column_names=names),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            # Postgres writes NULL as nothing, and an empty text as "".
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _read_destination(
    spark: SparkSession, name: TableName, columns: Sequence[_Column], key: Sequence[str]
) -> pa.Table:
    names = ["key", *(column.name for column in columns)]
    identifier = table_identifier(name)
    if not spark.catalog.tableExists(identifier):
        return pa.table({column: pa.array([], pa.string()) for column in names})
    rows = spark.table(identifier)
    values = {column.name: _in_spark(column, rows.columns) for column in columns}
    parts = [f"concat('{name}=', {text})" for name, text in values.items() if name in key]
    texts = [f"concat_ws(chr({ord(_PART)}), {', '.join(parts)}) AS key"]
    texts += [f"{text} AS {quoted_for_spark(name)}" for name, text in values.items()]
    taken = rows.selectExpr(*texts).toArrow()
    return taken.cast(pa.schema([(column, pa.string()) for column in names]))


def _in_postgres(column: _Column) -> str:
    """The value's text, and Postgres's text if the destination's type cannot hold the value."""
    value = quote_identifier(column.name)
    held, odd = column.text.postgres_held(value), column.text.postgres_odd(value)
    exactly = f"CASE WHEN {odd} THEN chr({ord(_EXACTLY)}) || concat({value}) ELSE '' END"
    return (
        f"CASE WHEN {value} IS DISTINCT FROM NULL"
        f" THEN coalesce({held}, '{_NOT_HELD}') || {exactly} END"
    )


def _in_spark(column: _Column, there: Sequence[str]) -> str:
    """The same by Spark. ``there``: the columns of the destination's table."""
    value = quoted_for_spark(column.name)
    if column.name not in there:
        return "cast(null AS string)"
    overflow = f"{EXACT}['{column.name}']" if EXACT in there else "cast(null AS string)"
    return (
        f"CASE WHEN {value} IS NOT NULL OR {overflow} IS NOT NULL"
        f" THEN concat(coalesce({column.text.spark_held(value)}, '{_NOT_HELD}'),"
        f" coalesce(concat(chr({ord(_EXACTLY)}), {overflow}), '')) END"
    )


def _compare(name: TableName, source: pa.Table, destination: pa.Table) -> TableComparison:
    missing = source["key"].filter(pc.invert(pc.is_in(source["key"], destination["key"])))
    surplus = destination["key"].filter(pc.invert(pc.is_in(destination["key"], source["key"])))
    counts = destination["key"].value_counts()
    repeated = pa.array([], pa.string())
    if len(counts):
        repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    # Rows that both have, once, side by side.
    alone = pc.invert(pc.is_in(destination["key"], repeated))
    ours = destination.filter(pc.and_(alone, pc.is_in(destination["key"], source["key"])))
    theirs = source.filter(pc.is_in(source["key"], ours["key"]))
    ours, theirs = ours.sort_by("key"), theirs.sort_by("key")
    different: list[Difference] = []
    count = 0
    for column in source.column_names[1:]:
        left, right = theirs[column], ours[column]
        same = pc.fill_null(pc.equal(left, right), False)
        same = pc.or_(same, pc.and_(pc.is_null(left), pc.is_null(right)))
        places = pc.indices_nonzero(pc.invert(same))
        count += len(places)
        different += [
            Difference(
                _shown(theirs["key"][place].as_py()) or "",
                column,
                _shown(left[place].as_py()),
                _shown(right[place].as_py()),
            )
            for place in places[:SHOWN].to_pylist()
        ]
    different.sort(key=lambda difference: difference.key)
    return TableComparison(
        name,
        len(source),
        len(destination),
        missing=_keys(missing),
        missing_count=len(missing),
        surplus=_keys(surplus),
        surplus_count=len(surplus),
        repeated=_keys(repeated),
        different=tuple(different[:SHOWN]),
        different_count=count,
    )


def _keys(keys: Any) -> tuple[str, ...]:
    ordered = pc.take(keys, pc.sort_indices(keys))[:SHOWN]
    return tuple(_shown(key) or "" for key in ordered.to_pylist())


def _shown(text: str | None) -> str | None:
    """A key or value as people read it."""
    if text is None:
        return None
    return text.replace(_PART, ", ").replace(_EXACTLY, " exactly ")
