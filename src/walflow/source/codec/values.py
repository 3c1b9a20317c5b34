"""Maps Postgres types to Spark types, and raw cells to Arrow columns. No other place does.

The rules, type by type, are in docs/decisions/0002-types.md. Text (from pgoutput) and binary (from
COPY) give the same values and the same overflow texts: a type without a converter of its own is
read as its output function's text in both cases.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from walflow.arrow_types import arrow_type, decimal_digits
from walflow.config import TypeSettings
from walflow.errors import ProtocolError
from walflow.model import Column, PgType, quote_identifier
from walflow.source.codec import arrays, decimals, scalars, temporal
from walflow.source.codec.cells import Cells
from walflow.source.codec.converted import Converted, buffer, mask, overflow_texts, validity

__all__ = [
    "SESSION_OPTIONS",
    "Converted",
    "becomes_text",
    "binary_width",
    "copy_expression",
    "from_binary",
    "from_text",
    "innermost",
    "spark_type",
]

_TEXTS = frozenset({18, 19, 25, 1042, 1043})
""""char", name, text, character(n), varchar: types that are strings in Postgres too."""

SESSION_OPTIONS = " ".join(
    f"-c {name}={value}"
    for name, value in {
        "timezone": "UTC",
        "datestyle": "ISO",
        "intervalstyle": "postgres",
        "extra_float_digits": "1",
        "bytea_output": "hex",
        "client_encoding": "UTF8",
        # A role's own limits must not cut a long copy, or the session that holds a snapshot.
        "statement_timeout": "0",
        "lock_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
    }.items()
)
"""libpq's ``options`` for every session that reads values. They fix how Postgres prints them."""

_BOOL, _BYTEA, _CHAR, _NUMERIC, _XID8 = 16, 17, 18, 1700, 5069
_UUID, _JSONB = 2950, 3802
_INT2VECTOR, _OIDVECTOR = 22, 30

_INTEGERS = {21: "i2", 23: "i4", 20: "i8", 26: "u4", 28: "u4", 29: "u4"}  # oid, xid, cid are u4
_FLOATS = {700: "f4", 701: "f8"}
_TEMPORAL = {1082: temporal.DATE, 1114: temporal.TIMESTAMP, 1184: temporal.TIMESTAMPTZ}
_RAW_TEXT = {25, 1042, 1043, 19, 114}
"""text, bpchar, varchar, name, json: their send functions send the same text as their output
functions."""

_WIDTHS = {
    _BOOL: 1,
    _UUID: 16,
    **{
        base: np.dtype(kind).itemsize
        for kinds in (_INTEGERS, _FLOATS, {base: one.dtype for base, one in _TEMPORAL.items()})
        for base, kind in kinds.items()
    },
}

_SPARK_TYPES = {
    _BOOL: "boolean",
    _BYTEA: "binary",
    21: "int",
    23: "int",
    20: "bigint",
    26: "bigint",
    28: "bigint",
    29: "bigint",
    700: "float",
    701: "double",
    1082: "date",
    1114: "timestamp_ntz",
    1184: "timestamp",
    _XID8: "decimal(20,0)",
}


def spark_type(pg: PgType, options: TypeSettings) -> str:
    """The Spark type of a column, as DDL. Every Postgres type has one: unknown types become
    strings."""
    if pg.base in (_INT2VECTOR, _OIDVECTOR):
        return "string"
    if pg.element is not None:
        return f"array<{spark_type(pg.element, options)}>"
    if pg.base == _NUMERIC:
        declared = decimals.declared_decimal(pg.typmod)
        return options.numeric if declared is None else "decimal({},{})".format(*declared)
    return _SPARK_TYPES.get(pg.base, "string")


def innermost(pg: PgType) -> PgType:
    """The type of an array's elements, or the type itself."""
    while pg.element is not None:
        pg = pg.element
    return pg


def becomes_text(pg: PgType, options: TypeSettings) -> bool:
    """Whether values, or an array's elements, are strings in Spark but not in Postgres."""
    elements = spark_type(pg, options).replace("array<", "").rstrip(">")
    return elements == "string" and innermost(pg).base not in _TEXTS


def copy_expression(column: Column) -> str:
    """What COPY BINARY selects for this column, in the form that ``from_binary`` reads."""
    name = quote_identifier(column.name)
    if _binary_converter(column.type, column.spark_type) is not None:
        return name
    # concat calls the output function, as pgoutput does; a cast to text is another function for
    # inet, bpchar, bool and others. It makes NULL an empty text, hence the test, which must not
    # be IS NOT NULL: that is false for a composite with a NULL field.
    return f"CASE WHEN {name} IS DISTINCT FROM NULL THEN pg_catalog.concat({name}) END"


def from_text(column: Column, cells: Cells) -> Converted:
    """Cells in text format (pgoutput) as an Arrow column of ``arrow_type(column.spark_type)``."""
    try:
        return _text_converter(column.type, column.spark_type)(cells)
    except pa.ArrowInvalid as error:
        raise ProtocolError(
            f"column {column.name!r} of type {column.type.name} has a text that is not a value of "
            f"its type: {error}",
            hint="The session that reads it must be opened with walflow's session options; "
            "a pooler in between may have dropped them. Connect to the server itself.",
        ) from error


def from_binary(column: Column, cells: Cells) -> Converted:
    """Cells as COPY BINARY of ``copy_expression`` gives them; the same result as from_text."""
    converter = _binary_converter(column.type, column.spark_type)
    return from_text(column, cells) if converter is None else converter(cells)


def binary_width(column: Column) -> int | None:
    """The number of bytes of each value in binary format. None: it depends on the value."""
    return _WIDTHS.get(column.type.base)


Converter = Callable[[Cells], Converted]


@cache
def _text_converter(pg: PgType, spark: str) -> Converter:
    if spark.startswith("array<"):
        return partial(_array_from_text, pg, spark)
    if spark == "string":
        return scalars.char_from_text if pg.base == _CHAR else scalars.string_from_text
    if digits := decimal_digits(spark):
        return partial(decimals.decimal_from_text, precision=digits[0], scale=digits[1])
    if pg.base == _NUMERIC:
        return decimals.double_from_text
    if pg.base in _TEMPORAL:
        return partial(temporal.from_text, _TEMPORAL[pg.base])
    if pg.base == _BOOL:
        return scalars.boolean_from_text
    if pg.base == _BYTEA:
        return scalars.bytes_from_text
    return partial(scalars.number_from_text, kind=arrow_type(spark))


@cache
def _binary_converter(pg: PgType, spark: str) -> Converter | None:
    """None if the binary format is not read, and COPY selects the text."""
    if pg.base in _RAW_TEXT:
        return scalars.string_from_text
    if pg.base == _NUMERIC:
        digits = decimal_digits(spark)
        declared = decimals.declared_decimal(pg.typmod)
        # Without a declared precision values that do not fit may be many, and their overflow texts
        # are cheaper to have from the server than to rebuild.
        if declared is None or digits != declared or digits[0] > decimals.BINARY_DIGITS:
            return None
        return partial(decimals.decimal_from_binary, precision=digits[0], scale=digits[1])
    if pg.base in _TEMPORAL:
        return partial(temporal.from_binary, _TEMPORAL[pg.base])
    fixed = _INTEGERS.get(pg.base) or _FLOATS.get(pg.base)
    if fixed is not None:
        return partial(scalars.number_from_binary, dtype=fixed, kind=arrow_type(spark))
    return {
        _BOOL: scalars.boolean_from_binary,
        _BYTEA: scalars.bytes_from_binary,
        _UUID: scalars.uuid_from_binary,
        _JSONB: scalars.jsonb_from_binary,
    }.get(pg.base)


def _array_from_text(pg: PgType, spark: str, cells: Cells) -> Converted:
    """Lists of the elements in storage order, with the array's text where a list cannot represent
    it."""
    assert pg.element is not None
    elements = arrays.split(cells, pg.delimiter)
    inner = _text_converter(pg.element, spark[len("array<") : -1])(elements.cells)
    odd = elements.reshaped
    if inner.overflow is not None:
        odd = odd | elements.rows_of(mask(inner.overflow.is_valid()))
    values: pa.Array[Any] = pa.Array.from_buffers(
        arrow_type(spark),
        len(cells),
        [validity(cells.valid), buffer(elements.offsets)],
        children=[inner.values],
    )
    return Converted(values, overflow_texts(cells, odd))
