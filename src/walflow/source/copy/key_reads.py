"""Reading rows by their keys, and comparing rows by their keys.

A key is compared, and written into SQL, by the texts of its values: the overflow text where there
is one, else the text of the value that the copy and the log hold, which both have by the same
converters. Two values that Postgres counts as equal can have different texts (``1.50`` and
``1.500`` of more digits than a decimal holds, texts of a collation that ignores case); that is no
harm to who has all the texts that a row's key went through.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from walflow.arrow_types import arrow_type
from walflow.model import Column, PageRange, TableSchema, quote_identifier
from walflow.source.catalog.published_tables import PublishedTable
from walflow.source.copy.ranges import copied_columns, page_conditions

__all__ = [
    "can_be_read_by_key",
    "identities",
    "key_texts",
    "keyed_queries",
    "texts_of_rows",
]

KEYS_A_QUERY = 2000
"""A query of these is parsed in some milliseconds."""

_CHAR = 18  # "char": before Postgres 15 not all of its values can be written as they are printed
_WRITABLE = ("boolean", "int", "bigint", "string", "binary", "date", "timestamp", "timestamp_ntz")


def can_be_read_by_key(schema: TableSchema) -> bool:
    """Whether the table has a key, and every value of it a text that Postgres reads back."""
    return bool(schema.key) and all(
        (column.spark_type in _WRITABLE or column.spark_type.startswith("decimal("))
        and column.type.base != _CHAR
        for column in schema.key_columns
    )


def key_texts(
    columns: Sequence[Column],
    values: Sequence[pa.Array],
    overflow: Sequence[pa.Array | None],
) -> list[pa.StringArray]:
    """The texts of keys, column by column."""
    texts = []
    for column, array, text in zip(columns, values, overflow, strict=True):
        plain = _text(array.cast(arrow_type(column.spark_type)))
        texts.append(plain if text is None else pc.coalesce(text.cast(pa.string()), plain))
    return texts


def texts_of_rows(
    columns: Sequence[Column], rows: pa.RecordBatch | pa.Table
) -> list[pa.StringArray]:
    """The texts of the keys of a copy's rows, of which the key columns and ``_exact`` count."""
    texts: pa.Array | None = None
    if "_exact" in rows.schema.names:
        texts = _whole(rows.column("_exact"))
    return key_texts(
        columns,
        [_whole(rows.column(column.name)) for column in columns],
        [
            None if texts is None else pc.map_lookup(texts, column.name, "first")
            for column in columns
        ],
    )


def identities(texts: Sequence[pa.StringArray]) -> pa.StringArray:
    """One text a key, different for different keys."""
    if len(texts) == 1:
        return texts[0]
    parts: list[pa.Array] = []
    for text in texts:
        # With its length in front, no text can be taken for the end of one and another's begin.
        parts += [pc.binary_length(text).cast(pa.string()), text]
    return pc.binary_join_element_wise(*parts, ":")


def _whole(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _text(array: pa.Array) -> pa.StringArray:
    return _hex(array) if pa.types.is_binary(array.type) else array.cast(pa.string())


def _hex(array: pa.BinaryArray) -> pa.StringArray:
    """In Postgres's form, ``\\x00ff``: all bytes at once."""
    length = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(length * 2, out=offsets[1:])
    data = pc.binary_join(pa.ListArray.from_arrays([0, len(array)], array.fill_null(b"")), b"")
    digits = data[0].as_py().hex() if len(array) else ""
    plain = pa.StringArray.from_buffers(
        len(array), pa.py_buffer(offsets), pa.py_buffer(digits.encode())
    )
    return pc.binary_join_element_wise("\\x", plain, "")


def keyed_queries(
    table: PublishedTable, texts: Sequence[pa.StringArray], pages: Sequence[PageRange]
) -> Iterable[tuple[int, str]]:
    """Queries that read the rows with these keys that lie in these pages.

    With each, which key is the first of it; a query has ``KEYS_A_QUERY``. The same row may come
    by two queries, if two texts of different queries mean the same key.
    """
    columns = table.schema.key_columns
    names = ", ".join(quote_identifier(column.name) for column in columns)
    source = table.name.quoted if table.partitioned else f"ONLY {table.name.quoted}"
    conditions = [f"({_in_pages(pages, table.partitioned)})"]
    if table.row_filter is not None:
        conditions.append(f"({table.row_filter})")
    where = " AND ".join(conditions)
    count = len(texts[0])
    for first in range(0, count, KEYS_A_QUERY):
        keys = [text.slice(first, KEYS_A_QUERY) for text in texts]
        yield (
            first,
            f"SELECT {copied_columns(table.schema)} FROM {source}"
            f" WHERE ({names}) IN (VALUES {_values(columns, keys)}) AND {where}",
        )


def _values(columns: Sequence[Column], texts: Sequence[pa.StringArray]) -> str:
    literals = [_literals(text) for text in texts]
    rows = pc.binary_join_element_wise(*literals, ", ") if len(literals) > 1 else literals[0]
    # The first row says the types; those after it are read as the same.
    first = ", ".join(
        f"{literal[0].as_py()}::{column.type.name}"
        for column, literal in zip(columns, literals, strict=True)
    )
    others = [f"({row})" for row in rows.slice(1).to_pylist()]
    return ", ".join([f"({first})", *others])


def _literals(texts: pa.StringArray) -> pa.StringArray:
    """As SQL literals, whatever standard_conforming_strings says."""
    escaped = pc.replace_substring(texts, "\\", "\\\\")
    escaped = pc.replace_substring(escaped, "'", "''")
    return pc.binary_join_element_wise("E'", escaped, "'", "")


def _in_pages(ranges: Sequence[PageRange], partitioned: bool) -> str:
    found = []
    for pages in _merged(ranges):
        bounds = [f"tableoid = {pages.relation}"] if partitioned else []
        bounds += page_conditions(pages)
        found.append(" AND ".join(bounds) or "true")
    return " OR ".join(found)


def _merged(ranges: Iterable[PageRange]) -> list[PageRange]:
    """The same pages in as few ranges as can be."""
    merged: list[PageRange] = []
    for pages in sorted(ranges, key=lambda pages: (pages.relation, pages.first_page)):
        last = merged[-1] if merged else None
        if last and last.relation == pages.relation and last.end_page == pages.first_page:
            merged[-1] = replace(last, end_page=pages.end_page)
        else:
            merged.append(pages)
    return merged
