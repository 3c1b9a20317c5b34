"""New files of a table, under names that no other file has."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from walflow.destinations.iceberg.columnar.arrow_schema import Field
from walflow.destinations.iceberg.columnar.commits import IcebergTable
from walflow.destinations.iceberg.columnar.deletion_vectors import DeletionVector, write_vectors
from walflow.destinations.iceberg.columnar.file_changes import TableFile, path_here
from walflow.destinations.iceberg.columnar.key_index import KeyedFile
from walflow.destinations.iceberg.columnar.metrics import metrics_of

__all__ = ["copied_rows", "new_rows", "new_vectors"]

_GROUP_ROWS, _GROUP_BYTES = 250_000, 64 << 20
"""So that several can read a large file at once, and who seeks some rows not all of it."""


def new_rows(table: IcebergTable, rows: pa.Table, fields: Sequence[Field]) -> TableFile:
    location, path = _new_file(table, ".parquet")
    try:
        pq.write_table(
            rows,
            path,
            row_group_size=min(_GROUP_ROWS, _GROUP_BYTES * rows.num_rows // rows.nbytes + 1),
            # As the files of a copy.
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            store_schema=False,
        )
        metrics = metrics_of(pq.read_metadata(path), fields)
        length = path.stat().st_size
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return TableFile(KeyedFile(location, path), length, rows.num_rows, metrics=metrics)


def copied_rows(location: str, path: Path, fields: Sequence[Field]) -> TableFile:
    """A file of a copy, which is in the table's folder: its columns have the table's names."""
    metadata = pq.read_metadata(path)
    return TableFile(
        KeyedFile(location, path),
        path.stat().st_size,
        metadata.num_rows,
        metrics=metrics_of(metadata, fields),
    )


def new_vectors(table: IcebergTable, gone: Mapping[str, BitMap64]) -> Mapping[str, DeletionVector]:
    """Of data files, all rows that are gone."""
    if not gone:
        return {}
    location, path = _new_file(table, "-deletes.puffin")
    try:
        return write_vectors(path, location, gone)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _new_file(table: IcebergTable, ending: str) -> tuple[str, Path]:
    location = table.new_location(f"{uuid.uuid4()}{ending}")
    path = path_here(location)
    path.parent.mkdir(parents=True, exist_ok=True)
    return location, path
