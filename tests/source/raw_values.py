"""Columns of a real table, raw, in both forms in which walflow meets them.

The text is what the types' output functions print, which is what pgoutput sends; the binary form
is what COPY BINARY of the copy expressions gives.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from walflow.arrow_types import arrow_type
from walflow.config import TypeSettings
from walflow.model import Column, quote_identifier
from walflow.source.catalog.types import TypeCatalog
from walflow.source.codec.cells import Cells, pad
from walflow.source.codec.values import (
    Converted,
    copy_expression,
    from_binary,
    from_text,
    spark_type,
)
from walflow.source.connection import Session

Raw = bytes | None


def cells_of(values: Sequence[Raw]) -> Cells:
    """Cells as a row walk makes them: other bytes lie between the values."""
    data = bytearray(b"header")
    start, end = [], []
    for value in values:
        data += b"\xff\x00,}"
        start.append(len(data))
        data += value or b""
        end.append(len(data))
    valid = np.array([value is not None for value in values], np.bool_)
    return Cells(
        pad(data),
        np.array(start, np.int64),
        np.array(end, np.int64),
        None if valid.all() else valid,
    )


def text_columns(session: Session, query: str) -> list[list[Raw]]:
    result = session.pgconn.exec_(query.encode())
    assert not result.error_message, result.error_message
    return [
        [result.get_value(row, column) for row in range(result.ntuples)]
        for column in range(result.nfields)
    ]


def binary_columns(session: Session, query: str, width: int) -> list[list[Raw]]:
    with session.cursor().copy(f"COPY ({query}) TO STDOUT (FORMAT binary)") as copy:
        data = b"".join(bytes(block) for block in copy)
    columns: list[list[Raw]] = [[] for _ in range(width)]
    at = 19
    while (fields := struct.unpack_from("!h", data, at)[0]) != -1:
        assert fields == width
        at += 2
        for column in columns:
            (length,) = struct.unpack_from("!i", data, at)
            at += 4
            column.append(None if length < 0 else data[at : at + length])
            at += max(length, 0)
    return columns


def columns_of(
    session: Session, table: str, settings: TypeSettings | None = None
) -> tuple[Column, ...]:
    types = TypeCatalog(session)
    rows = session.execute(
        "SELECT attname, atttypid, atttypmod FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
        [table],
    ).fetchall()
    columns = []
    for name, oid, typmod in rows:
        pg = types.resolve(oid, typmod)
        columns.append(Column(name, pg, spark_type(pg, settings or TypeSettings())))
    return tuple(columns)


@dataclass(frozen=True, slots=True)
class Seen:
    """One column as walflow sees it, the same by both ways, and as Postgres prints it."""

    column: Column
    values: list[object]
    overflow: list[str | None]
    texts: list[str | None]


def seen_both_ways(
    session: Session, table: str, settings: TypeSettings | None = None
) -> dict[str, Seen]:
    """Every column of the table, after a check that text and binary agree in all they give."""
    columns = columns_of(session, table, settings)
    names = ", ".join(quote_identifier(column.name) for column in columns)
    selected = ", ".join(copy_expression(column) for column in columns)
    texts = text_columns(session, f"SELECT {names} FROM {table} ORDER BY ctid")
    copied = binary_columns(session, f"SELECT {selected} FROM {table} ORDER BY ctid", len(columns))
    seen = {}
    for column, text, binary in zip(columns, texts, copied, strict=True):
        by_text = from_text(column, cells_of(text))
        by_binary = from_binary(column, cells_of(binary))
        for converted in (by_text, by_binary):
            converted.values.validate(full=True)
            assert converted.values.type == arrow_type(column.spark_type), column
        assert plain(by_text) == plain(by_binary), column
        values, overflow = plain(by_text)
        seen[column.name] = Seen(column, values, overflow, decoded(text))
    return seen


def plain(converted: Converted) -> tuple[list[object], list[str | None]]:
    """Python values that compare as they are: NaN is written out."""
    values = [comparable(value) for value in converted.values.to_pylist()]
    if converted.overflow is None:
        return values, [None] * len(values)
    assert converted.overflow.null_count < len(values), "an exact column without any text"
    return values, converted.overflow.to_pylist()


def comparable(value: object) -> object:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return [comparable(item) for item in value]
    return value


def decoded(values: Iterable[Raw]) -> list[str | None]:
    return [None if value is None else value.decode() for value in values]
