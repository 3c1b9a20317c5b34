"""Tables whose rounds and compactions are written in this process, each by one commit."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import structlog
from pyroaring import BitMap64

from walflow.destinations.iceberg.columnar.arrow_schema import (
    arrow_schema,
    arrow_type,
)
from walflow.destinations.iceberg.columnar.commits import IcebergTable
from walflow.destinations.iceberg.columnar.compacting import files_to_rewrite, live_rows
from walflow.destinations.iceberg.columnar.file_changes import FileChanges, TableFiles
from walflow.destinations.iceberg.columnar.key_index import KeyColumn, KeyedFile, KeyIndex
from walflow.destinations.iceberg.columnar.reading import NameMapping, read_places
from walflow.destinations.iceberg.columnar.writing import new_rows, new_vectors
from walflow.destinations.iceberg.tables import NAME_MAPPING
from walflow.destinations.lake.fallback import FallBackToSpark, Reason
from walflow.destinations.lake.format import Compaction
from walflow.destinations.lake.net_columns import ColumnarChanges
from walflow.destinations.lake.owner import Stamp
from walflow.destinations.lake.table_schema import EXACT, LakeTableSchema
from walflow.errors import TableMoved, WalflowError
from walflow.model import Lsn, TableName
from walflow.spark.causes import cause_of

__all__ = ["ColumnarTables"]

_logger = structlog.get_logger(__name__)

_MOST_COMPACTED_BYTES = 64 << 20
"""A larger file would hold the table's changes up for too long here."""
_MOST_COMPLETED_BYTES = 256 << 20
"""Of values that the table has, and that rows of a round need."""


@dataclass(slots=True)
class _Known:
    """A table as this process has left it."""

    table: IcebergTable
    version: str
    fields: list[dict[str, Any]]
    names: NameMapping
    files: TableFiles

    @property
    def keyed_files(self) -> list[KeyedFile]:
        return [file.file for file in self.files.files.values()]

    def key(self, lake_schema: LakeTableSchema) -> tuple[KeyColumn, ...]:
        by_name = {field["name"]: field for field in self.fields}
        fields = [by_name[name] for name in lake_schema.schema.key]
        return tuple(
            KeyColumn(field["id"], self.names.get(field["id"], ()), arrow_type(field["type"]))
            for field in fields
        )


class ColumnarTables:
    """Calls may come from several threads, never two at once for one table."""

    def __init__(self, open_table: Callable[[TableName], IcebergTable]) -> None:
        """``open_table`` gives a table, which is there, as it is now."""
        self._open = open_table
        self._keys = KeyIndex()
        self._lock = threading.Lock()
        self._known: dict[TableName, _Known] = {}

    def merge(
        self,
        lake_schema: LakeTableSchema,
        net_changes: Callable[[], ColumnarChanges],
        begins: Lsn,
        stamp: Stamp,
    ) -> None:
        """See Columnar."""
        with _nothing_but_not_in_columns(lake_schema.name):
            known = self._know(lake_schema.name)
            _check_columns(known, [column.name for column in lake_schema.columns])
            if (position := known.table.position) != begins:
                raise TableMoved(
                    f"{lake_schema.name} was at {begins} and is at {position}: who else writes it?"
                )
            delta = self._batch(known, lake_schema, net_changes())
        self._commit(lake_schema.name, known, delta, stamp.properties)

    def append(self, name: TableName, rows: pa.Table) -> None:
        """See Columnar."""
        with _nothing_but_not_in_columns(name):
            known = self._know(name)
            _check_columns(known, rows.column_names)
            added = new_rows(known.table, _in_order(known, rows), known.fields)
        self._commit(name, known, FileChanges(added, is_append=True), {})

    def compact(self, name: TableName, policy: Compaction, stamp: Stamp) -> bool:
        """See Columnar."""
        with _nothing_but_not_in_columns(name):
            known = self._know(name)
            taken = files_to_rewrite(known.files.files.values(), policy)
            if not taken:
                return False
            if sum(file.bytes for file in taken) > _MOST_COMPACTED_BYTES:
                raise FallBackToSpark("a large file is to be rewritten", Reason.SIZE)
            rows = live_rows(known.files, taken, known.fields, known.names)
            added = new_rows(known.table, rows, known.fields) if rows.num_rows else None
        removed = [file.file.location for file in taken]
        self._commit(name, known, FileChanges(added, removed=removed), stamp.properties)
        self._keys.forget(removed)
        return True

    def forget(self, name: TableName) -> None:
        """There may be no such table any more, or another one."""
        with self._lock:
            known = self._known.pop(name, None)
        if known is not None:
            self._keys.forget(known.files.files)

    def _know(self, name: TableName) -> _Known:
        """The table as it is now."""
        known, table = self._refreshed(name)
        version = table.version
        if known is not None and known.version == version:
            known.files.check_size()
            return known
        table.check_plain()
        if known is not None and known.files.snapshot == table.snapshot:
            files = known.files
        else:
            files = table.files()
            if known is not None:
                self._keys.forget([file for file in known.files.files if file not in files.files])
        mapping = json.loads(table.property(NAME_MAPPING) or "[]")
        names = {field["field-id"]: tuple(field["names"]) for field in mapping}
        known = _Known(table, version, table.fields, names, files)
        with self._lock:
            self._known[name] = known
        return known

    def _refreshed(self, name: TableName) -> tuple[_Known | None, IcebergTable]:
        with self._lock:
            known = self._known.get(name)
        if known is not None:
            try:
                known.table.refresh()
            except Exception:
                # It is another table now, or nobody knows what: asked anew, it tells.
                self.forget(name)
            else:
                return known, known.table
        return None, self._open(name)

    def _batch(
        self, known: _Known, lake_schema: LakeTableSchema, changes: ColumnarChanges
    ) -> FileChanges:
        rows = _stored_rows(known, lake_schema, changes)
        if changes.unsent:
            rows = self._completed(known, lake_schema, rows, changes)
        gone = self._gone(known, lake_schema, changes.keys)
        delta = FileChanges(None, gone, new_vectors(known.table, gone))
        if not rows.num_rows:
            return delta
        try:
            return replace(delta, added=new_rows(known.table, rows, known.fields))
        except BaseException:
            delta.discard()
            raise

    def _commit(
        self, name: TableName, known: _Known, delta: FileChanges, stamp: Mapping[str, str]
    ) -> None:
        try:
            snapshot = known.table.commit(delta, known.files, stamp)
        except BaseException:
            # What has become of it is asked anew.
            self.forget(name)
            raise
        if snapshot is None:
            self.forget(name)
        else:
            known.files.after(delta, snapshot)
            known.version = known.table.version

    def _gone(
        self, known: _Known, lake_schema: LakeTableSchema, keys: pa.Table
    ) -> dict[str, BitMap64]:
        """By data file, all rows that are gone with the keys, where they are more than before."""
        found = {}
        for file, places in self._keys.find(known.keyed_files, known.key(lake_schema), keys):
            before = known.files.gone(file.location)
            after = before | BitMap64(places)
            if len(after) > len(before):
                found[file.location] = after
        return found

    def _completed(
        self, known: _Known, lake_schema: LakeTableSchema, rows: pa.Table, changes: ColumnarChanges
    ) -> pa.Table:
        """The rows, with what no change tells of them from the rows that they take the place of."""
        lacking = np.flatnonzero(np.logical_or.reduce(list(changes.unsent.values())))
        fields = [field for field in known.fields if field["name"] in changes.unsent]
        keys = rows.select(list(lake_schema.schema.key)).take(lacking)
        parts, numbers = [], []
        for file, places, number in self._keys.locate(
            known.keyed_files, known.key(lake_schema), keys
        ):
            gone = np.asarray(known.files.gone(file.location).to_array(), dtype=np.int64)
            alive = ~np.isin(places, gone)
            parts.append(read_places(file.path, fields, known.names, places[alive]))
            numbers.append(number[alive])
            if sum(part.nbytes for part in parts) > _MOST_COMPLETED_BYTES:
                raise FallBackToSpark("much of it would have to be read", Reason.SIZE)
        found = np.concatenate(numbers) if numbers else np.zeros(0, dtype=np.int64)
        if not np.array_equal(np.sort(found), np.arange(len(lacking))):
            raise FallBackToSpark(
                "it lacks a row whose unchanged columns a change relies on", Reason.MISSING
            )
        # Where each of the lacking rows is among those that were found.
        place = np.zeros(rows.num_rows, dtype=np.int64)
        place[lacking[found]] = np.arange(len(found))
        there = pa.concat_tables(parts)
        for name, mask in changes.unsent.items():
            both = pa.chunked_array([*rows[name].chunks, *there[name].chunks])
            at = np.where(mask, rows.num_rows + place, np.arange(rows.num_rows))
            index = rows.schema.get_field_index(name)
            rows = rows.set_column(index, rows.schema.field(index), both.take(at))
        return rows


def _stored_rows(known: _Known, lake_schema: LakeTableSchema, changes: ColumnarChanges) -> pa.Table:
    """The rows with all columns of the form, as the table has them."""
    values = {name: changes.rows[name] for name in lake_schema.schema.column_names}
    if (ours := lake_schema.metadata) is not None:
        origins = changes.origins
        values[ours.change_type] = origins["_change_type"]
        values[ours.lsn] = origins["_lsn"]
        values[ours.timestamp] = origins["_timestamp"]
    if lake_schema.overflow:
        values[EXACT] = pa.nulls(changes.rows.num_rows)
    return _in_order(known, pa.table(values))


def _check_columns(known: _Known, names: Sequence[str]) -> None:
    """NotInColumns if the table has others: in those that stay from former times a row keeps what
    it has."""
    if sorted(field["name"] for field in known.fields) != sorted(names):
        raise FallBackToSpark("it has other columns")


def _in_order(known: _Known, rows: pa.Table) -> pa.Table:
    """With the table's types, in its order."""
    schema = arrow_schema(known.fields)
    return pa.table([rows[field.name].cast(field.type) for field in schema], schema=schema)


@contextmanager
def _nothing_but_not_in_columns(name: TableName) -> Iterator[None]:
    """Before anything is committed, whatever fails here is tried by Spark."""
    try:
        yield
    except (FallBackToSpark, WalflowError):
        raise
    except Exception as error:
        cause = cause_of(error).message
        _logger.warning("left to Spark", table=str(name), error=cause)
        raise FallBackToSpark(cause, Reason.ERROR) from error
