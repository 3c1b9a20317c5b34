"""Data files, read as the table has its columns now, whenever they were written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from walflow.destinations.iceberg.columnar.arrow_schema import (
    FIELD_ID,
    Field,
    arrow_schema,
)
from walflow.destinations.lake.fallback import FallBackToSpark, Reason

__all__ = ["NameMapping", "file_columns", "read_places", "read_rows"]

_MOST_BYTES = 256 << 20
"""Of columns in a file's row groups, to find some rows in them."""

NameMapping = Mapping[int, tuple[str, ...]]
"""By id, what files that do not tell ids may call a column."""


def file_columns(schema: pa.Schema, ids: Iterable[int], names: NameMapping) -> dict[int, str]:
    """What the file calls the columns, as far as it has them."""
    by_id = {
        int(field.metadata[FIELD_ID]): field.name
        for field in schema
        if field.metadata is not None and FIELD_ID in field.metadata
    }
    if by_id:
        return {id: by_id[id] for id in ids if id in by_id}
    have = set(schema.names)
    called = {id: next((name for name in names.get(id, ()) if name in have), None) for id in ids}
    return {id: name for id, name in called.items() if name is not None}


def read_rows(path: Path, fields: Sequence[Field], names: NameMapping) -> pa.Table:
    """All rows of the file, with these columns. What it lacks has the value that such rows have."""
    with pq.ParquetFile(path, memory_map=True) as file:
        return _read(file, range(file.num_row_groups), fields, names)


def read_places(
    path: Path, fields: Sequence[Field], names: NameMapping, places: npt.NDArray[np.int64]
) -> pa.Table:
    """As read_rows, but only the rows at these places of the file. Reads no more than the row
    groups that they are in; FallBackToSpark if these are very large."""
    with pq.ParquetFile(path, memory_map=True) as file:
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        lengths = np.array([group.num_rows for group in groups], dtype=np.int64)
        ends = np.cumsum(lengths)
        of = np.searchsorted(ends, places, side="right")
        wanted = np.unique(of)
        called = file_columns(file.schema_arrow, [field["id"] for field in fields], names)
        if _bytes([groups[number] for number in wanted], set(called.values())) > _MOST_BYTES:
            raise FallBackToSpark(f"much of {path} would have to be read", Reason.SIZE)
        read = _read(file, wanted.tolist(), fields, names)
    # Where the groups begin among those that were read.
    begins = np.zeros(len(groups), dtype=np.int64)
    begins[wanted] = np.cumsum(lengths[wanted]) - lengths[wanted]
    return read.take(begins[of] + places - (ends - lengths)[of])


def _bytes(groups: Sequence[pq.RowGroupMetaData], names: Collection[str]) -> int:
    """What these columns need in memory."""
    return sum(
        chunk.total_uncompressed_size
        for group in groups
        for chunk in map(group.column, range(group.num_columns))
        if chunk.path_in_schema.partition(".")[0] in names or chunk.path_in_schema in names
    )


def _read(
    file: pq.ParquetFile, groups: Sequence[int], fields: Sequence[Field], names: NameMapping
) -> pa.Table:
    schema = arrow_schema(fields)
    called = file_columns(file.schema_arrow, [field["id"] for field in fields], names)
    read = file.read_row_groups(list(groups), columns=list(called.values()))
    rows = sum(file.metadata.row_group(number).num_rows for number in groups)
    columns = [
        read[called[field["id"]]].cast(kind)
        if field["id"] in called
        else pa.repeat(_default(field, kind), rows)
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
