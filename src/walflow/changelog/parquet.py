"""The log's Parquet files: one form for all batches of a file, and writing them."""

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


def common_schema(forms: Sequence[pa.Schema]) -> pa.Schema:
    """The columns that all of these need together.

    Every field is nullable, so that batches with and without nulls have one form.
    """
    fields = {field.name: field for form in forms for field in form}
    ordered = [fields[name] for name in META_COLUMNS if name in fields]
    ordered += [field for name, field in fields.items() if name not in META_COLUMNS]
    return pa.schema([pa.field(field.name, field.type) for field in ordered])


def in_schema(batch: pa.RecordBatch, form: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns of the form, null where it has none. Copies no values."""
    if batch.schema.equals(form):
        return batch
    have = set(batch.schema.names)
    columns = [
        batch.column(field.name) if field.name in have else pa.nulls(batch.num_rows, field.type)
        for field in form
    ]
    return pa.RecordBatch.from_arrays(columns, schema=form)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch with the rows of all, in buffers of its own."""
    form = common_schema([batch.schema for batch in batches])
    whole: pa.RecordBatch = pa.concat_batches([in_schema(batch, form) for batch in batches])
    return whole


class OpenFile:
    """A Parquet file that is being written. Not durable: whoever closes it syncs it."""

    def __init__(self, folder: Path, path: str, form: pa.Schema) -> None:
        self.path = path
        self.form = form
        self.stats = ChangeStats()
        self._sink = pa.OSFile(os.fspath(folder / path), "wb")
        # Measured on 13 columns (decision 0003): lz4 and hardly any dictionary take the least
        # CPU to write and are as fast as any in Spark. Readers prune by position only.
        self._writer = pq.ParquetWriter(
            self._sink,
            form,
            compression="lz4",
            use_dictionary=["_change_type"],
            write_statistics=["_lsn"],
            store_schema=False,
        )

    def holds(self, form: pa.Schema) -> bool:
        """Whether batches of this form fit in."""
        return set(form.names) <= set(self.form.names)

    def write(
        self, batches: Sequence[pa.RecordBatch], stats: ChangeStats, group_bytes: int
    ) -> None:
        """Write row groups of about ``group_bytes`` in memory. Runs without the GIL."""
        table = pa.Table.from_batches([in_schema(batch, self.form) for batch in batches])
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
        """Close without caring for the content; the caller removes the file."""
        # A full disk refuses the footer too, and the writer would try again when collected.
        with suppress(OSError):
            self._writer.close()
        self._writer.is_open = False
        with suppress(OSError):
            self._sink.close()
