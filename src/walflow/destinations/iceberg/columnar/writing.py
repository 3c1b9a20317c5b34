"""New files of a table, under names that no other file has."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from walflow.destinations.iceberg.columnar.keys import KeyedFile
from walflow.destinations.iceberg.columnar.table import IcebergTable, TableFile, path_here
from walflow.destinations.iceberg.columnar.vectors import Vector, write_vectors

__all__ = ["new_rows", "new_vectors"]

_GROUP_ROWS = 250_000
"""So that several can read a large file at once."""


def new_rows(table: IcebergTable, rows: pa.Table) -> TableFile:
    location = table.new_location(f"{uuid.uuid4()}.parquet")
    path = path_here(location)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        rows,
        path,
        row_group_size=_GROUP_ROWS,
        # As the files of a copy.
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        store_schema=False,
    )
    return TableFile(KeyedFile(location, path), path.stat().st_size, rows.num_rows, None)


def new_vectors(table: IcebergTable, gone: Mapping[str, BitMap64]) -> Mapping[str, Vector]:
    """Of data files, all rows that are gone."""
    if not gone:
        return {}
    location = table.new_location(f"{uuid.uuid4()}-deletes.puffin")
    return write_vectors(path_here(location), location, gone)
