"""Conditions that few rows of a table satisfy, and all that have one of some keys.

Spark filters the table's scan by them, and the format leaves out files. A Bloom filter, which Spark
makes of the keys otherwise, is a job of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from walflow.model import Column
from walflow.spark.names import TARGET, literal, quoted

__all__ = ["among"]

_MOST_VALUES = 1000
"""More take longer to parse than a Bloom filter takes."""
_MOST_CHARACTERS = 100

_Literals = Callable[[pa.Array], list[str]]


def among(columns: Sequence[Column], keys: pa.Table) -> str | None:
    """In SQL, that a row of TARGET has in these columns what one of the keys has. (Not more than
    that: columns are left out of it.) None: it would exclude nothing, or be too long."""
    found = [
        (values, column)
        for column in columns
        if (values := _distinct(column, keys[column.name])) is not None
    ]
    found.sort(key=lambda one: -len(one[0]))
    conditions, room = [], _MOST_VALUES
    for values, column in found:
        if len(values) > room:
            continue
        room -= len(values)
        conditions.append(_condition(column, values))
        if len(values) == keys.num_rows:
            break
    return " AND ".join(conditions) or None


def _distinct(column: Column, values: pa.ChunkedArray) -> pa.Array | None:
    """None: SQL has no short and exact form of them."""
    if _literals_of(column) is None:
        return None
    distinct = values.combine_chunks().unique()
    if len(distinct) > _MOST_VALUES:
        return None
    if column.spark_type == "string":
        longest = pc.max(pc.utf8_length(distinct)).as_py() or 0
        if longest > _MOST_CHARACTERS:
            return None
    return distinct


def _condition(column: Column, distinct: pa.Array) -> str:
    literals = _literals_of(column)
    assert literals is not None
    name = f"{TARGET}.{quoted(column.name)}"
    texts = literals(distinct.drop_null())
    # Of a single value Spark would make a part of the code that it compiles.
    nothing = f"cast(NULL AS {column.spark_type})"
    one_of = f"{name} IN ({', '.join([*texts, nothing])})" if texts else "false"
    return f"({one_of} OR {name} IS NULL)" if distinct.null_count else one_of


def _numbers(suffix: str) -> _Literals:
    return lambda values: [f"{value}{suffix}" for value in values.to_pylist()]


def _called(function: str, kind: pa.DataType) -> _Literals:
    return lambda values: [f"{function}({value})" for value in values.cast(kind).to_pylist()]


_LITERALS: Mapping[str, _Literals] = {
    "tinyint": _numbers("Y"),
    "smallint": _numbers("S"),
    "int": _numbers(""),
    "bigint": _numbers("L"),
    "string": lambda values: [literal(value) for value in values.to_pylist()],
    "date": _called("date_from_unix_date", pa.int32()),
    "timestamp": _called("timestamp_micros", pa.int64()),
}


def _literals_of(column: Column) -> _Literals | None:
    if column.spark_type.startswith("decimal"):
        return lambda values: [f"cast('{v:f}' AS {column.spark_type})" for v in values.to_pylist()]
    return _LITERALS.get(column.spark_type)
