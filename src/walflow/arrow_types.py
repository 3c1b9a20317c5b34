"""The Arrow types of Spark's types, in the change log, in copies and in columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import pyarrow as pa

__all__ = ["arrow_type", "decimal_digits"]

_ARROW_TYPES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


@cache
def arrow_type(spark_type: str) -> pa.DataType:
    """The Arrow type in which Spark and Iceberg read this Spark type from Parquet."""
    if element := re.fullmatch(r"array<(.+)>", spark_type):
        return pa.list_(pa.field("element", arrow_type(element[1])))
    if pair := re.fullmatch(r"map<(\w+),\s*(.+)>", spark_type):
        return pa.map_(arrow_type(pair[1]), arrow_type(pair[2]))
    if digits := decimal_digits(spark_type):
        return pa.decimal128(*digits)
    return _ARROW_TYPES[spark_type]


def decimal_digits(spark_type: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal type; None for other types."""
    digits = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", spark_type)
    return (int(digits[1]), int(digits[2])) if digits else None
