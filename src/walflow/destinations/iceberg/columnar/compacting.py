"""Which files are made one, and what becomes of their rows.

A little at a time: the table's next changes wait meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from walflow.destinations.iceberg.columnar.arrow_schema import Field
from walflow.destinations.iceberg.columnar.file_changes import TableFile, TableFiles
from walflow.destinations.iceberg.columnar.reading import NameMapping, read_rows
from walflow.destinations.lake.format import Compaction

__all__ = ["files_to_rewrite", "live_rows"]

_AT_ONCE_BYTES = 32 << 20
_AT_ONCE_FILES = 256

_ROW_ID: Field = {"id": 2147483540, "name": "_row_id", "type": "long"}
_UPDATED: Field = {"id": 2147483539, "name": "_last_updated_sequence_number", "type": "long"}
"""Iceberg's own columns, by which rows are followed from file to file."""


def files_to_rewrite(files: Collection[TableFile], policy: Compaction) -> list[TableFile]:
    """Those that are to become one file now; none if it would not pay."""
    small = [file for file in files if file.bytes < policy.small_bytes]
    if len(small) >= policy.small_files and (taken := _of_a_size(small)):
        return taken
    worn = [file for file in files if file.gone >= policy.worn_share * file.rows]
    return [min(worn, key=lambda file: file.bytes)] if worn else []


def _of_a_size(small: Sequence[TableFile]) -> list[TableFile]:
    """The smallest, and larger ones as long as all before them are together half as large: so a row
    is written anew only when its file grows by half at least."""
    taken: list[TableFile] = []
    total = 0
    for file in sorted(small, key=lambda file: file.bytes)[:_AT_ONCE_FILES]:
        if taken and file.bytes > 2 * total:
            if len(taken) > 1:
                break
            # Nothing is as small as it.
            taken, total = [], 0
        if len(taken) > 1 and total + file.bytes > _AT_ONCE_BYTES:
            break
        taken.append(file)
        total += file.bytes
    return taken if len(taken) > 1 else []


def live_rows(
    files: TableFiles, taken: Sequence[TableFile], fields: Sequence[Field], names: NameMapping
) -> pa.Table:
    """The rows of the files that are not gone, and by what they are followed."""
    parts = []
    for file in taken:
        rows = read_rows(file.file.path, [*fields, _ROW_ID, _UPDATED], names)
        gone = files.gone(file.file.location)
        stays = np.ones(rows.num_rows, dtype=bool)
        stays[np.asarray(gone.to_array(), dtype=np.int64)] = False
        parts.append(_followed(rows, file).filter(pa.array(stays)))
    return pa.concat_tables(parts)


def _followed(rows: pa.Table, file: TableFile) -> pa.Table:
    """With the ids that rows have which never moved: they are told by their file."""
    *_, ids, updated = rows.columns
    if file.first_row_id is not None:
        own = np.arange(file.first_row_id, file.first_row_id + rows.num_rows, dtype=np.int64)
        ids = pc.coalesce(ids, pa.array(own))
    updated = pc.coalesce(updated, pa.scalar(file.sequence_number, pa.int64()))
    return pa.table([*rows.columns[:-2], ids, updated], schema=rows.schema)
