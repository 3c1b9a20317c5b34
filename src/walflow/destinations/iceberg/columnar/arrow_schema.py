"""A table's columns as Arrow has them: each with its id, as Iceberg wants it in Parquet."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from walflow.destinations.lake.fallback import FallBackToSpark, Reason

__all__ = ["FIELD_ID", "Field", "arrow_schema", "arrow_type"]

FIELD_ID = b"PARQUET:field_id"

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
    """FallBackToSpark if there is a type that is not known here."""
    return pa.schema([_field(field["name"], field["id"], field["type"]) for field in fields])


def _field(name: str, id: int, type: Any, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, arrow_type(type), nullable, {FIELD_ID: str(id).encode()})


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
    raise FallBackToSpark(f"columns of type {type}", Reason.TYPES)
