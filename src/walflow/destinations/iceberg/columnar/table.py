"""A table as Iceberg's own API has it: its files, and commits of files that are written already."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyroaring import BitMap64

from walflow.destinations.iceberg.columnar.keys import KeyedFile
from walflow.destinations.iceberg.columnar.schemas import NotInColumns
from walflow.destinations.iceberg.columnar.vectors import Vector, read_vector
from walflow.destinations.iceberg.locations import local_path

__all__ = ["Delta", "IcebergTable", "Snapshot", "TableFile", "TableFiles", "path_here"]

_MOST_FILES = 2_000
"""A table with more is left to Spark: to ask for them one by one takes too long."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file of a snapshot."""

    file: KeyedFile
    bytes: int
    rows: int
    vector: Vector | None = None
    """Which of its rows are gone."""
    first_row_id: int | None = None
    sequence_number: int | None = None
    """What Iceberg tells rows by that never were in another file."""

    @property
    def gone(self) -> int:
        """How many of its rows are."""
        return 0 if self.vector is None else self.vector.count


@dataclass(frozen=True, slots=True)
class Snapshot:
    id: int
    sequence_number: int
    first_row_id: int | None
    """Of the first row that came with it."""


@dataclass(slots=True)
class TableFiles:
    """The data files of a snapshot."""

    snapshot: int | None
    files: dict[str, TableFile]
    """By location."""
    _gone: dict[str, BitMap64] = field(default_factory=dict)

    def gone(self, location: str) -> BitMap64:
        """Which rows of the file are gone. Not to be changed."""
        vector = self.files[location].vector
        if vector is None:
            return BitMap64()
        if location not in self._gone:
            self._gone[location] = read_vector(
                path_here(vector.location), vector.offset, vector.size
            )
        return self._gone[location]

    def after(self, delta: Delta, snapshot: Snapshot) -> None:
        """These are the files of the snapshot that the delta has made."""
        self.snapshot = snapshot.id
        for location in delta.removed:
            del self.files[location]
            self._gone.pop(location, None)
        if (added := delta.added) is not None:
            self.files[added.file.location] = replace(
                added,
                first_row_id=snapshot.first_row_id,
                sequence_number=snapshot.sequence_number,
            )
        for location, vector in delta.vectors.items():
            self.files[location] = replace(self.files[location], vector=vector)
            self._gone[location] = delta.gone[location]


@dataclass(frozen=True, slots=True)
class Delta:
    """How a commit changes a table's files."""

    added: TableFile | None = None
    gone: Mapping[str, BitMap64] = field(default_factory=dict)
    """By data file, all rows of it that are gone."""
    vectors: Mapping[str, Vector] = field(default_factory=dict)
    """And where that is said."""
    removed: Collection[str] = ()
    """The data files that the one which is added stands for, and nothing else is changed then."""

    def discard(self) -> None:
        """Remove the files that were written for it."""
        written = {path_here(vector.location) for vector in self.vectors.values()}
        if self.added is not None:
            written.add(self.added.file.path)
        for path in written:
            path.unlink(missing_ok=True)


class IcebergTable:
    """As it was when it was loaded."""

    def __init__(self, gateway: Any, table: Any) -> None:
        self._gateway = gateway
        self._iceberg = gateway.jvm.org.apache.iceberg
        self._table = table
        self._spec = table.spec()

    @property
    def snapshot(self) -> int | None:
        current = self._table.currentSnapshot()
        return None if current is None else int(current.snapshotId())

    @property
    def schema_id(self) -> int:
        return int(self._table.schema().schemaId())

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The columns, as Iceberg's JSON has them."""
        schema = json.loads(self._iceberg.SchemaParser.toJson(self._table.schema()))
        fields: list[dict[str, Any]] = schema["fields"]
        return fields

    def property(self, name: str) -> str | None:
        value: str | None = self._table.properties().get(name)
        return value

    def new_location(self, name: str) -> str:
        """Where a new file of this name belongs."""
        location: str = self._table.locationProvider().newDataLocation(name)
        return location

    def check_plain(self) -> None:
        """NotInColumns if somebody wants its files to be in a certain order, or place."""
        if not self._spec.isUnpartitioned() or not self._table.sortOrder().isUnsorted():
            raise NotInColumns("it is partitioned or sorted")

    def files(self) -> TableFiles:
        """NotInColumns if there are too many, or some that cannot be read here."""
        current = self._table.currentSnapshot()
        if current is None:
            return TableFiles(None, {})
        total = int(current.summary().get("total-data-files") or 0)
        if total > _MOST_FILES:
            raise NotInColumns(f"it has {total} files")
        parser = self._iceberg.ScanTaskParser
        found = {}
        tasks = self._table.newScan().planFiles()
        try:
            each = tasks.iterator()
            while each.hasNext():
                task = each.next()
                file = _file(json.loads(parser.toJson(task)), task.file().dataSequenceNumber())
                found[file.file.location] = file
        finally:
            tasks.close()
        return TableFiles(int(current.snapshotId()), found)

    def commit(self, delta: Delta, before: TableFiles, stamp: Mapping[str, str]) -> Snapshot | None:
        """Commit what was written, on top of these files; returns the snapshot, or None if others
        committed meanwhile. Iceberg refuses if that gets in the way."""
        if delta.removed:
            update = self._rewrite(delta, before)
        elif delta.added is None and not delta.vectors:
            update = self._table.newAppend()
        else:
            update = self._row_delta(delta, before)
        for name, value in stamp.items():
            update.set(name, value)
        try:
            update.commit()
        except Exception as error:
            if self._has_certainly_failed(error):
                delta.discard()
            raise
        current = self._table.currentSnapshot()
        if current.parentId() != before.snapshot:
            return None
        return Snapshot(current.snapshotId(), current.sequenceNumber(), current.firstRowId())

    def _has_certainly_failed(self, error: Exception) -> bool:
        """Whether Iceberg knows that nothing was committed."""
        from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        return isinstance(error, Py4JJavaError) and is_instance_of(
            self._gateway, error.java_exception, "org.apache.iceberg.exceptions.CleanableFailure"
        )

    def _row_delta(self, delta: Delta, before: TableFiles) -> Any:
        update = self._table.newRowDelta()
        if delta.added is not None:
            update.addRows(self._data_file(delta.added))
        for location, vector in delta.vectors.items():
            update.addDeletes(self._delete_file(location, vector))
            if (former := before.files[location].vector) is not None:
                update.removeDeletes(self._delete_file(location, former))
        if delta.vectors:
            # As Spark's MERGE does it: whatever happened to these files since.
            update.validateFromSnapshot(before.snapshot)
            update.validateDataFilesExist(list(delta.vectors))
            update.validateDeletedFiles()
            update.conflictDetectionFilter(self._iceberg.expressions.Expressions.alwaysTrue())
            update.validateNoConflictingDeleteFiles()
            update.validateNoConflictingDataFiles()
        return update

    def _rewrite(self, delta: Delta, before: TableFiles) -> Any:
        update = self._table.newRewrite().validateFromSnapshot(before.snapshot)
        for location in delta.removed:
            former = before.files[location]
            update.deleteFile(self._known_file(former).build())
            if former.vector is not None:
                update.deleteFile(self._delete_file(location, former.vector))
        if delta.added is not None:
            update.addFile(self._data_file(delta.added))
        return update

    def _data_file(self, added: TableFile) -> Any:
        file = self._table.io().newInputFile(added.file.location)
        wanted = self._iceberg.MetricsConfig.forTable(self._table)
        metrics = self._iceberg.parquet.ParquetUtil.fileMetrics(file, wanted)
        return self._known_file(added).withMetrics(metrics).build()

    def _known_file(self, file: TableFile) -> Any:
        builder = self._iceberg.DataFiles.builder(self._spec)
        builder.withPath(file.file.location).withFormat("parquet")
        return builder.withFileSizeInBytes(file.bytes).withRecordCount(file.rows)

    def _delete_file(self, location: str, vector: Vector) -> Any:
        told = {
            "spec-id": 0,
            "content": "position-deletes",
            "file-path": vector.location,
            "file-format": "puffin",
            "partition": [],
            "file-size-in-bytes": vector.file_bytes,
            "record-count": vector.count,
            "referenced-data-file": location,
            "content-offset": vector.offset,
            "content-size-in-bytes": vector.size,
        }
        node = self._iceberg.util.JsonUtil.mapper().readTree(json.dumps(told))
        return self._iceberg.ContentFileParser.fromJson(node, self._spec)


def _file(task: Mapping[str, Any], sequence_number: int | None) -> TableFile:
    data = task["data-file"]
    location: str = data["file-path"]
    if data["file-format"].lower() != "parquet":
        raise NotInColumns(f"{location} is not a Parquet file")
    deletes = task.get("delete-files", [])
    if len(deletes) > 1 or any(file["file-format"].lower() != "puffin" for file in deletes):
        raise NotInColumns(f"rows of {location} are deleted in another way")
    vector = None
    for file in deletes:
        vector = Vector(
            file["file-path"],
            file["file-size-in-bytes"],
            file["content-offset"],
            file["content-size-in-bytes"],
            file["record-count"],
        )
    keyed = KeyedFile(location, path_here(location))
    return TableFile(
        keyed,
        data["file-size-in-bytes"],
        data["record-count"],
        vector,
        data.get("first-row-id"),
        sequence_number,
    )


def path_here(location: str) -> Path:
    """NotInColumns if it is not a file of this machine."""
    if (path := local_path(location)) is None:
        raise NotInColumns(f"{location} is not a file of this machine")
    return path
