"""Net changes in columns become a commit: rows, and the deletion of those that were there."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import structlog
from pyroaring import BitMap64

from walflow.destinations.iceberg.columnar.keys import KeyColumn, KeyedFile, Keys, NotInColumns
from walflow.destinations.iceberg.columnar.rows import arrow_schema, arrow_type, write_rows
from walflow.destinations.iceberg.columnar.table import (
    Delta,
    IcebergTable,
    TableFile,
    TableFiles,
    path_here,
)
from walflow.destinations.iceberg.columnar.vectors import write_vectors
from walflow.destinations.iceberg.tables import NAME_MAPPING
from walflow.destinations.lake.columnar import ColumnarChanges
from walflow.destinations.lake.forms import EXACT, StoredForm
from walflow.destinations.lake.owner import Stamp
from walflow.model import TableName

__all__ = ["ColumnarTables"]

_logger = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Known:
    """A table as this process has left it."""

    schema_id: int
    fields: list[dict[str, Any]]
    mapping: Mapping[int, tuple[str, ...]]
    files: TableFiles


class ColumnarTables:
    """Calls may come from several threads, never two at once for one table."""

    def __init__(self) -> None:
        self._keys = Keys()
        self._lock = threading.Lock()
        self._known: dict[TableName, _Known] = {}

    def merge(
        self,
        open_table: Callable[[TableName], IcebergTable],
        form: StoredForm,
        changes: ColumnarChanges,
        stamp: Stamp,
    ) -> bool:
        """See ColumnarMerge."""
        table = open_table(form.name)
        try:
            known = self._know(table, form.name)
            delta = self._write(table, known, form, changes)
        except NotInColumns as reason:
            _logger.debug("left to Spark", table=str(form.name), reason=str(reason))
            return False
        with self._lock:
            # What happens if the commit fails, or nobody knows, is asked anew.
            self._known.pop(form.name, None)
        snapshot = table.commit(delta, known.files, stamp.properties)
        if snapshot is not None:
            known.files.after(delta, snapshot)
            with self._lock:
                self._known[form.name] = known
        return True

    def _know(self, table: IcebergTable, name: TableName) -> _Known:
        schema_id, snapshot = table.schema_id, table.snapshot
        with self._lock:
            known = self._known.get(name)
        if known is not None and (known.schema_id, known.files.snapshot) == (schema_id, snapshot):
            return known
        table.check_plain()
        files = table.files()
        if known is not None:
            self._keys.forget([gone for gone in known.files.files if gone not in files.files])
        mapping = json.loads(table.property(NAME_MAPPING) or "[]")
        names = {field["field-id"]: tuple(field["names"]) for field in mapping}
        known = _Known(schema_id, table.fields, names, files)
        with self._lock:
            self._known[name] = known
        return known

    def _write(
        self, table: IcebergTable, known: _Known, form: StoredForm, changes: ColumnarChanges
    ) -> Delta:
        rows = _stored_rows(known, form, changes)
        gone = self._gone(known, form, changes.keys)
        name = str(uuid.uuid4())
        added = []
        if rows.num_rows:
            location = table.new_location(f"{name}.parquet")
            path = path_here(location)
            path.parent.mkdir(parents=True, exist_ok=True)
            length = write_rows(path, rows)
            added.append(TableFile(KeyedFile(location, path), length, rows.num_rows, None))
        vectors = {}
        if gone:
            location = table.new_location(f"{name}-deletes.puffin")
            vectors = write_vectors(path_here(location), location, gone)
        return Delta(added, gone, vectors)

    def _gone(self, known: _Known, form: StoredForm, keys: pa.Table) -> dict[str, BitMap64]:
        """By data file, all rows that are gone with the keys, where they are more than before."""
        by_name = {field["name"]: field for field in known.fields}
        columns = tuple(
            KeyColumn(
                by_name[name]["id"],
                known.mapping.get(by_name[name]["id"], ()),
                arrow_type(by_name[name]["type"]),
            )
            for name in form.schema.key
        )
        files = [file.file for file in known.files.files.values()]
        found = {}
        for file, places in self._keys.find(files, columns, keys):
            before = known.files.gone(file.location)
            after = before | BitMap64(places)
            if len(after) > len(before):
                found[file.location] = after
        return found


def _stored_rows(known: _Known, form: StoredForm, changes: ColumnarChanges) -> pa.Table:
    """The rows with all columns of the table, in its order. NotInColumns if it has others: in
    those that stay from former times a row keeps what it has."""
    names = [field["name"] for field in known.fields]
    if sorted(names) != sorted(column.name for column in form.columns):
        raise NotInColumns("it has other columns")
    values = {name: changes.rows[name] for name in form.schema.column_names}
    if (ours := form.metadata) is not None:
        origins = changes.origins
        values[ours.change_type] = origins["_change_type"]
        values[ours.lsn] = origins["_lsn"]
        values[ours.timestamp] = origins["_timestamp"]
    if form.exact:
        values[EXACT] = pa.nulls(changes.rows.num_rows)
    schema = arrow_schema(known.fields)
    return pa.table([values[name].cast(schema.field(name).type) for name in names], schema=schema)
