"""Tables whose batches and compactions are written in this process, each by one commit."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa
import structlog
from pyroaring import BitMap64

from walflow.destinations.iceberg.columnar.commits import IcebergTable
from walflow.destinations.iceberg.columnar.compacting import files_to_rewrite, rewrite
from walflow.destinations.iceberg.columnar.file_changes import FileChanges
from walflow.destinations.iceberg.columnar.key_index import Found, IndexedColumn, KeyIndex
from walflow.destinations.iceberg.columnar.table_rows import (
    copies_that_go,
    in_table_order,
    table_rows,
    with_overflow,
)
from walflow.destinations.iceberg.columnar.table_view import TableView
from walflow.destinations.iceberg.columnar.writing import new_rows, new_vectors
from walflow.destinations.iceberg.tables import NAME_MAPPING
from walflow.destinations.lake.fallback import FallBackToSpark, Reason
from walflow.destinations.lake.format import Compaction, Turn
from walflow.destinations.lake.net_columns import ColumnarChanges
from walflow.destinations.lake.owner import Stamp
from walflow.destinations.lake.table_schema import EXACT, LakeTableSchema
from walflow.errors import TableMoved, WalflowError
from walflow.failpoints import failpoint
from walflow.model import Lsn, TableName
from walflow.spark.causes import cause_of

__all__ = ["ColumnarTables"]

_logger = structlog.get_logger(__name__)

_MOST_COMPACTED_BYTES = 64 << 20
"""It is all in memory."""


class ColumnarTables:
    """Calls may come from several threads. Only a compaction goes on beside others of its table."""

    def __init__(self, open_table: Callable[[TableName], IcebergTable]) -> None:
        """``open_table`` gives a table, which is there, as it is now."""
        self._open = open_table
        self._keys = KeyIndex()
        self._lock = threading.Lock()
        self._known: dict[TableName, TableView] = {}

    def merge(
        self,
        lake_schema: LakeTableSchema,
        net_changes: Callable[[], ColumnarChanges],
        begins: Lsn,
        stamp: Stamp,
    ) -> None:
        """See Columnar."""
        with _nothing_but_fall_back(lake_schema.name):
            known = self._know(lake_schema.name)
            _check_columns(known, [column.name for column in lake_schema.columns])
            if (position := known.table.position) != begins:
                raise TableMoved(
                    f"{lake_schema.name} was at {begins} and is at {position}: who else writes it?"
                )
            known, delta = self._batch(known, lake_schema, net_changes())
        self._commit(lake_schema.name, known, delta, stamp.properties)

    def append(self, name: TableName, rows: pa.Table) -> None:
        """See Columnar."""
        with _nothing_but_fall_back(name):
            known = self._know(name)
            _check_columns(known, rows.column_names)
            added = new_rows(known.table, in_table_order(known, rows), known.fields)
        self._commit(name, known, FileChanges(added, is_append=True), {})

    def compact(self, name: TableName, policy: Compaction, turn: Turn) -> bool:
        """See Columnar. What batches delete of the files meanwhile is deleted of the new one as
        well."""
        with _nothing_but_fall_back(name):
            with turn():
                view = self._know(name).copy()
            taken = files_to_rewrite(view.files.files.values(), policy)
            if not taken:
                return False
            if sum(file.bytes for file in taken) > _MOST_COMPACTED_BYTES:
                raise FallBackToSpark("a large file is to be rewritten", Reason.SIZE)
            rewritten = rewrite(view, taken)
        delta = None
        try:
            failpoint("compact.rewritten", str(name))
            with turn() as stamp:
                known = self._know(name)
                delta = rewritten.carried_over(known)
                if delta is not None:
                    self._commit(name, known, delta, stamp.properties)
        finally:
            # What becomes of the files once they are committed, the commit knows.
            if delta is None:
                rewritten.discard()
        if delta is None:
            return False
        self._keys.forget(delta.removed)
        return True

    def forget(self, name: TableName) -> None:
        """There may be no such table any more, or another one."""
        with self._lock:
            known = self._known.pop(name, None)
        if known is not None:
            self._keys.forget(known.files.files)

    def _know(self, name: TableName) -> TableView:
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
        known = TableView(table, version, table.fields, names, files)
        with self._lock:
            self._known[name] = known
        return known

    def _refreshed(self, name: TableName) -> tuple[TableView | None, IcebergTable]:
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
        self, known: TableView, lake_schema: LakeTableSchema, changes: ColumnarChanges
    ) -> tuple[TableView, FileChanges]:
        """And the table, which may have got the column of overflow texts."""
        found = [] if changes.empties else self._found(known, changes)
        if changes.removals is not None:
            found, changes = copies_that_go(known, lake_schema, changes, found)
        rows, texts = table_rows(known, lake_schema, changes, found)
        if texts is not None and not lake_schema.overflow:
            known.table.add_map(EXACT)
            known = self._know(lake_schema.name)
        rows = with_overflow(known, rows, texts)
        gone = {one.file.location: _all_gone(known, one) for one in found}
        delta = FileChanges(None, gone, new_vectors(known.table, gone), empties=changes.empties)
        if not rows.num_rows:
            return known, delta
        try:
            return known, replace(delta, added=new_rows(known.table, rows, known.fields))
        except BaseException:
            delta.discard()
            raise

    def _found(self, known: TableView, changes: ColumnarChanges) -> list[Found]:
        """The rows of the table that have the keys, and are not deleted."""
        by_name = {field["name"]: field for field in known.fields}
        columns = [
            IndexedColumn(part, by_name.get(part.column), known.names) for part in changes.identity
        ]
        every = self._keys.find(
            known.keyed_files, columns, changes.keys, whole_rows=changes.removals is not None
        )
        found = (_alive(known, one) for one in every)
        return [one for one in found if len(one.places)]

    def _commit(
        self, name: TableName, known: TableView, delta: FileChanges, stamp: Mapping[str, str]
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


def _alive(known: TableView, found: Found) -> Found:
    gone = known.files.gone(found.file.location)
    if not gone or not (dead := BitMap64(found.places) & gone):
        return found
    alive = ~np.isin(found.places, np.asarray(dead.to_array(), dtype=np.int64))
    return Found(found.file, found.places[alive], found.numbers[alive])


def _all_gone(known: TableView, found: Found) -> BitMap64:
    return known.files.gone(found.file.location) | BitMap64(found.places)


def _check_columns(known: TableView, names: Sequence[str]) -> None:
    """FallBackToSpark if the table has others: in those that stay from former times a row keeps
    what it has."""
    if sorted(field["name"] for field in known.fields) != sorted(names):
        raise FallBackToSpark("it has other columns")


@contextmanager
def _nothing_but_fall_back(name: TableName) -> Iterator[None]:
    """Before anything is committed, whatever fails here is tried by Spark."""
    try:
        yield
    except (FallBackToSpark, WalflowError):
        raise
    except Exception as error:
        cause = cause_of(error).message
        _logger.warning("left to Spark", table=str(name), error=cause)
        raise FallBackToSpark(cause, Reason.ERROR) from error
