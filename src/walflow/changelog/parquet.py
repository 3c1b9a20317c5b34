"""The log's Parquet files: one schema for all batches of a file, and writing them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from walflow.model import ChangeStats

__all__ = ["META_COLUMNS", "OPTIONAL_COLUMNS", "OpenFile", "common_schema", "in_schema", "joined"]

OPTIONAL_COLUMNS = ("_unchanged", "_old", "_exact")
"""In a file only if some row needs them."""

META_COLUMNS = ("_change_type", "_lsn", "_seq", "_timestamp", "_xid", *OPTIONAL_COLUMNS)
"""The log's own columns, in the order in which they stand before the table's."""


def common_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of all of these schemas together. Every field is nullable, so that batches with
    and without nulls have one schema."""
    fields = {field.name: field for schema in schemas for field in schema}
    ordered = [fields[name] for name in META_COLUMNS if name in fields]
    ordered += [field for name, field in fields.items() if name not in META_COLUMNS]
    return pa.schema([pa.field(field.name, field.type) for field in ordered])


def in_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in this schema, with nulls for columns that it lacks. Copies no values."""
    if batch.schema.equals(schema):
        return batch
    have = set(batch.schema.names)
    columns = [
        batch.column(field.name) if field.name in have else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch with the rows of all batches, in buffers of its own."""
    schema = common_schema([batch.schema for batch in batches])
    whole: pa.RecordBatch = pa.concat_batches([in_schema(batch, schema) for batch in batches])
    return whole


class OpenFile:
    """A Parquet file that is being written. Not durable: the caller that closes it syncs it."""

    def __init__(self, folder: Path, path: str, schema: pa.Schema) -> None:
        self.path = path
        self.schema = schema
        self.stats = ChangeStats()
        self._sink = pa.OSFile(os.fspath(folder / path), "wb")
        # Measured on 13 columns (decision 0003): lz4 and hardly any dictionary take the least
        # CPU to write and are as fast as any in Spark. Readers prune by position only.
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="lz4",
            use_dictionary=["_change_type"],
            write_statistics=["_lsn"],
            store_schema=False,
        )

    def holds(self, schema: pa.Schema) -> bool:
        """Whether batches of this schema fit into the file."""
        return set(schema.names) <= set(self.schema.names)

    def write(
        self, batches: Sequence[pa.RecordBatch], stats: ChangeStats, group_bytes: int
    ) -> None:
        """Write row groups of about ``group_bytes`` in memory. Runs without the GIL."""
        table = pa.Table.from_batches([in_schema(batch, self.schema) for batch in batches])
        groups = max(1, round(table.nbytes / group_bytes))
        self._writer.write_table(table, row_group_size=-(-table.num_rows // groups))
        self.stats += stats

    @property
    def bytes(self) -> int:
        return int(self._sink.tell())

    def finish(self) -> int:
        """Write the footer and close; returns the file's length."""
        self._writer.close()
        length = int(self._sink.tell())
        self._sink.close()
        return length

    def discard(self) -> None:
        """Close the file without finishing it. The caller removes it."""
        # A full disk refuses the footer too, and the writer would try again when collected.
        with suppress(OSError):
            self._writer.close()
        self._writer.is_open = False
        with suppress(OSError):
            self._sink.close()
