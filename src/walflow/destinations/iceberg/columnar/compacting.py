"""Which files are made one, and what becomes of their rows.

A little at a time, while batches go on: whatever these delete of the files in the meantime is
carried over to the new one when it is committed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from walflow.destinations.iceberg.columnar.arrow_schema import Field
from walflow.destinations.iceberg.columnar.file_changes import FileChanges, TableFile
from walflow.destinations.iceberg.columnar.reading import read_rows
from walflow.destinations.iceberg.columnar.table_view import TableView
from walflow.destinations.iceberg.columnar.writing import new_rows, new_vectors
from walflow.destinations.lake.format import Compaction
from walflow.destinations.lake.netting.net_changes import Ints

__all__ = ["Rewritten", "files_to_rewrite", "rewrite"]

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


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Files of a table that are one now, which is not the table's yet."""

    view: TableView
    """The table when they were read."""
    places: Mapping[str, Ints]
    """By file, the rows of it that are in the new one, in its order."""
    added: TableFile | None
    """None: there are none."""

    def carried_over(self, now: TableView) -> FileChanges | None:
        """What makes the new file the table's in the place of the others. Rows that were deleted
        meanwhile are deleted of it as well. None: they are no longer what the table consists of."""
        if now.fields != self.view.fields or not self.places.keys() <= now.files.files.keys():
            return None
        begin, gone = 0, BitMap64()
        for location, places in self.places.items():
            since = now.files.gone(location) - self.view.files.gone(location)
            deleted = np.asarray(since.to_array(), dtype=np.int64)
            gone |= BitMap64(begin + np.searchsorted(places, deleted))
            begin += len(places)
        bitmaps = {self.added.file.location: gone} if self.added is not None and gone else {}
        vectors = new_vectors(now.table, bitmaps)
        return FileChanges(self.added, bitmaps, vectors, removed=tuple(self.places))

    def discard(self) -> None:
        if self.added is not None:
            self.added.file.path.unlink(missing_ok=True)


def rewrite(view: TableView, taken: Sequence[TableFile]) -> Rewritten:
    """Write the rows of the files that are not gone to a new one, with what they are followed
    by."""
    parts, places = [], {}
    for file in taken:
        location = file.file.location
        rows = read_rows(file.file.path, [*view.fields, _ROW_ID, _UPDATED], view.names)
        stays = np.ones(rows.num_rows, dtype=bool)
        stays[np.asarray(view.files.gone(location).to_array(), dtype=np.int64)] = False
        parts.append(_followed(rows, file).filter(pa.array(stays)))
        places[location] = np.flatnonzero(stays)
    whole = pa.concat_tables(parts)
    added = new_rows(view.table, whole, view.fields) if whole.num_rows else None
    return Rewritten(view, places, added)


def _followed(rows: pa.Table, file: TableFile) -> pa.Table:
    """With the ids that rows have which never moved: they are told by their file."""
    *_, ids, updated = rows.columns
    if file.first_row_id is not None:
        own = np.arange(file.first_row_id, file.first_row_id + rows.num_rows, dtype=np.int64)
        ids = pc.coalesce(ids, pa.array(own))
    updated = pc.coalesce(updated, pa.scalar(file.sequence_number, pa.int64()))
    return pa.table([*rows.columns[:-2], ids, updated], schema=rows.schema)
