"""Data files, read as the table has its columns now, whenever they were written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from walflow.destinations.iceberg.columnar.schemas import FIELD_ID, Field, arrow_schema

__all__ = ["NameMapping", "file_columns", "read_rows"]

NameMapping = Mapping[int, tuple[str, ...]]
"""By id, what files that do not tell ids may call a column."""


def file_columns(schema: pa.Schema, ids: Iterable[int], names: NameMapping) -> dict[int, str]:
    """What the file calls the columns, as far as it has them."""
    told = {
        int(field.metadata[FIELD_ID]): field.name
        for field in schema
        if field.metadata is not None and FIELD_ID in field.metadata
    }
    if told:
        return {id: told[id] for id in ids if id in told}
    have = set(schema.names)
    called = {id: next((name for name in names.get(id, ()) if name in have), None) for id in ids}
    return {id: name for id, name in called.items() if name is not None}


def read_rows(path: Path, fields: Sequence[Field], names: NameMapping) -> pa.Table:
    """All rows of the file, with these columns. What it lacks has the value that such rows have."""
    schema = arrow_schema(fields)
    with pq.ParquetFile(path, memory_map=True) as file:
        called = file_columns(file.schema_arrow, [field["id"] for field in fields], names)
        read = file.read(columns=list(called.values()))
    columns = [
        read[called[field["id"]]].cast(kind)
        if field["id"] in called
        else pa.repeat(_default(field, kind), read.num_rows)
        for field, kind in zip(fields, schema.types, strict=True)
    ]
    return pa.table(columns, schema=schema)


def _default(field: Field, type: pa.DataType) -> pa.Scalar:
    value: Any = field.get("initial-default")
    if isinstance(value, str):
        if pa.types.is_timestamp(type):
            value = datetime.fromisoformat(value)
        elif pa.types.is_date(type):
            value = date.fromisoformat(value)
        elif pa.types.is_decimal(type):
            value = Decimal(value)
        elif pa.types.is_binary(type):
            value = bytes.fromhex(value)
    return pa.scalar(value, type)
