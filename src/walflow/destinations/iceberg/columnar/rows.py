"""Rows as Iceberg has them in Parquet: each column with its id."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from walflow.destinations.iceberg.columnar.keys import NotInColumns

__all__ = ["arrow_schema", "arrow_type", "write_rows"]

_GROUP_ROWS = 250_000
"""So that several can read a large file at once."""

_PRIMITIVES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "string": pa.string(),
    "binary": pa.binary(),
}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")

Field = Mapping[str, Any]
"""Of a schema, in Iceberg's JSON."""


def arrow_schema(fields: Sequence[Field]) -> pa.Schema:
    """NotInColumns if there is a type that is not known here."""
    return pa.schema([_field(field["name"], field["id"], field["type"]) for field in fields])


def _field(name: str, id: int, type: Any, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, arrow_type(type), nullable, {b"PARQUET:field_id": str(id).encode()})


def arrow_type(type: Any) -> pa.DataType:
    if isinstance(type, str):
        if (known := _PRIMITIVES.get(type)) is not None:
            return known
        if (decimal := _DECIMAL.fullmatch(type)) is not None:
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
    elif type["type"] == "list":
        return pa.list_(_field("element", type["element-id"], type["element"]))
    elif type["type"] == "map":
        return pa.map_(
            _field("key", type["key-id"], type["key"], nullable=False),
            _field("value", type["value-id"], type["value"]),
        )
    raise NotInColumns(f"columns of type {type}")


def write_rows(path: Path, rows: pa.Table) -> int:
    """Write a new file; returns its length."""
    pq.write_table(
        rows,
        path,
        row_group_size=_GROUP_ROWS,
        # As the files of a copy (see decision 0003).
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        store_schema=False,
    )
    return path.stat().st_size
