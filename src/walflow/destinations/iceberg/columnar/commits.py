"""A table as Iceberg's own API has it: what it consists of, and commits of files that are there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from walflow.destinations.iceberg.columnar.deletion_vectors import DeletionVector
from walflow.destinations.iceberg.columnar.file_changes import (
    FileChanges,
    Snapshot,
    TableFile,
    TableFiles,
    check_size,
    path_here,
)
from walflow.destinations.iceberg.columnar.key_index import KeyedFile
from walflow.destinations.iceberg.locations import resolves_here
from walflow.destinations.iceberg.tables import WITH_VECTORS
from walflow.destinations.lake.fallback import FallBackToSpark, Reason
from walflow.destinations.lake.owner import Place, position_of
from walflow.model import Lsn

__all__ = ["IcebergTable", "newest_position"]


class IcebergTable:
    """As it was when it was loaded, refreshed, or committed to last."""

    def __init__(self, gateway: Any, table: Any) -> None:
        self._gateway = gateway
        self._iceberg = gateway.jvm.org.apache.iceberg
        self._table = table
        # Each of these is a call to the JVM, and each name on the way to them another one.
        self._operations = table.operations()
        self._locations = table.locationProvider()
        self._mapper = self._iceberg.util.JsonUtil.mapper()
        self._content_file_of = self._iceberg.ContentFileParser.fromJson
        self._snapshot_json = self._iceberg.SnapshotParser.toJson
        self._every = self._iceberg.expressions.Expressions.alwaysTrue()
        self._spec, self._spec_id = self._know_spec()
        self._vectors: dict[DeletionVector, Any] = {}
        """As Iceberg has them: one that was added is removed by a later commit."""
        self.is_here = resolves_here(gateway, table.io())
        """Whether a path without a scheme is one of this machine."""

    def refresh(self) -> None:
        """See what others have committed; costs next to nothing if that is nothing. Fails if there
        is another table in its place."""
        self._table.refresh()

    @property
    def version(self) -> str:
        """Another one whenever anything of the table is another. FallBackToSpark if the catalog
        does not tell (a REST server need not)."""
        version: str | None = self._operations.current().metadataFileLocation()
        if version is None:
            raise FallBackToSpark("its catalog does not say which version it is")
        return version

    @property
    def snapshot(self) -> int | None:
        current = self._table.currentSnapshot()
        return None if current is None else int(current.snapshotId())

    @property
    def position(self) -> Lsn | None:
        """See Stored.position."""
        return newest_position(self._table, self._snapshot_json)

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The columns, as Iceberg's JSON has them."""
        schema = json.loads(self._iceberg.SchemaParser.toJson(self._table.schema()))
        fields: list[dict[str, Any]] = schema["fields"]
        return fields

    def property(self, name: str) -> str | None:
        value: str | None = self._table.properties().get(name)
        return value

    def add_map(self, name: str) -> None:
        """Add a column of maps of texts, which is null in all rows."""
        types = self._iceberg.types.Types
        text = types.StringType.get()
        update = self._table.updateSchema()
        update.addColumn(name, types.MapType.ofOptional(1, 2, text, text)).commit()

    def new_location(self, name: str) -> str:
        """Where a new file of this name belongs."""
        location: str = self._locations.newDataLocation(name)
        return location

    def check_plain(self) -> None:
        """FallBackToSpark if it is of an older kind, or somebody wants its files to be in a certain
        order, or place."""
        if not self.is_here:
            raise FallBackToSpark("its files are not on this machine", Reason.PLACE)
        self._spec, self._spec_id = self._know_spec()
        self._locations = self._table.locationProvider()
        if not self._spec.isUnpartitioned() or not self._table.sortOrder().isUnsorted():
            raise FallBackToSpark("it is partitioned or sorted")
        if self._operations.current().formatVersion() < WITH_VECTORS:
            raise FallBackToSpark("its format has no deletion vectors")

    def files(self) -> TableFiles:
        """FallBackToSpark if there are too many, or some that cannot be read here."""
        current = self._table.currentSnapshot()
        if current is None:
            return TableFiles(None, {})
        summary = current.summary()
        check_size(
            int(summary.get("total-data-files") or 0), int(summary.get("total-records") or 0)
        )
        parser = self._iceberg.ScanTaskParser
        found = {}
        tasks = self._table.newScan().planFiles()
        try:
            each = tasks.iterator()
            while each.hasNext():
                task = each.next()
                scan_task = json.loads(parser.toJson(task))
                if scan_task["data-file"]["spec-id"] != self._spec_id:
                    raise FallBackToSpark("it was partitioned")
                file = _file(scan_task, task.file().dataSequenceNumber())
                found[file.file.location] = file
        finally:
            tasks.close()
        return TableFiles(int(current.snapshotId()), found)

    def commit(
        self, delta: FileChanges, before: TableFiles, stamp: Mapping[str, str]
    ) -> Snapshot | None:
        """Commit what was written, on top of these files; returns the snapshot, or None if others
        committed meanwhile. Iceberg refuses if that gets in the way. What was written is removed
        unless it is committed, or that is not known."""
        try:
            update = self._update(delta, before)
            for name, value in stamp.items():
                update.set(name, value)
        except BaseException:
            self._vectors.clear()
            delta.discard()
            raise
        try:
            update.commit()
        except Exception as error:
            self._vectors.clear()
            if self._has_certainly_failed(error):
                delta.discard()
            raise
        for location in before.files if delta.empties else (*delta.removed, *delta.vectors):
            if (file := before.files.get(location)) is not None and file.vector is not None:
                self._vectors.pop(file.vector, None)
        current = json.loads(self._snapshot_json(self._table.currentSnapshot()))
        if current.get("parent-snapshot-id") != before.snapshot:
            return None
        return Snapshot(
            current["snapshot-id"], current["sequence-number"], current.get("first-row-id")
        )

    def _know_spec(self) -> tuple[Any, int]:
        spec = self._table.spec()
        return spec, spec.specId()

    def _update(self, delta: FileChanges, before: TableFiles) -> Any:
        if delta.removed:
            return self._rewrite(delta, before)
        if delta.is_append:
            update = self._table.newAppend()
            if delta.added is not None:
                update.appendFile(self.data_file(delta.added))
            return update
        if delta.empties:
            return self._overwrite(delta, before)
        return self._row_delta(delta, before)

    def _has_certainly_failed(self, error: Exception) -> bool:
        """Whether Iceberg knows that nothing was committed."""
        from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        return isinstance(error, Py4JJavaError) and is_instance_of(
            self._gateway, error.java_exception, "org.apache.iceberg.exceptions.CleanableFailure"
        )

    def _row_delta(self, delta: FileChanges, before: TableFiles) -> Any:
        update = self._table.newRowDelta()
        if delta.added is not None:
            update.addRows(self.data_file(delta.added))
        for location, vector in delta.vectors.items():
            update.addDeletes(self._delete_file(location, vector))
            if (former := before.files[location].vector) is not None:
                update.removeDeletes(self._delete_file(location, former))
        if before.snapshot is not None:
            # As Spark's MERGE does it. That others added rows matters also if none is replaced:
            # they may have been the same.
            update.validateFromSnapshot(before.snapshot)
            update.conflictDetectionFilter(self._every)
            update.validateNoConflictingDataFiles()
            update.validateDataFilesExist(list(delta.vectors))
            update.validateDeletedFiles()
            update.validateNoConflictingDeleteFiles()
        return update

    def _overwrite(self, delta: FileChanges, before: TableFiles) -> Any:
        update = self._table.newOverwrite().overwriteByRowFilter(self._every)
        if delta.added is not None:
            update.addFile(self.data_file(delta.added))
        if before.snapshot is not None:
            # Rows that others added meanwhile would go with the rest.
            update.validateFromSnapshot(before.snapshot)
            update.conflictDetectionFilter(self._every)
            update.validateNoConflictingData()
            update.validateNoConflictingDeletes()
        return update

    def _rewrite(self, delta: FileChanges, before: TableFiles) -> Any:
        update = self._table.newRewrite().validateFromSnapshot(before.snapshot)
        for location in delta.removed:
            former = before.files[location]
            update.deleteFile(self.data_file(former))
            if former.vector is not None:
                update.deleteFile(self._delete_file(location, former.vector))
        if delta.added is not None:
            update.addFile(self.data_file(delta.added))
        for location, vector in delta.vectors.items():
            update.addFile(self._delete_file(location, vector))
        return update

    def data_file(self, file: TableFile) -> Any:
        """A data file as Iceberg's API takes it."""
        fields = {
            "spec-id": self._spec_id,
            "content": "data",
            "file-path": file.file.location,
            "file-format": "parquet",
            "partition": [],
            "file-size-in-bytes": file.bytes,
            "record-count": file.rows,
            **file.metrics,
        }
        return self._content_file(fields)

    def _delete_file(self, location: str, vector: DeletionVector) -> Any:
        if (made_before := self._vectors.get(vector)) is not None:
            return made_before
        fields = {
            "spec-id": self._spec_id,
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
        made = self._vectors[vector] = self._content_file(fields)
        return made

    def _content_file(self, fields: Mapping[str, Any]) -> Any:
        return self._content_file_of(self._mapper.readTree(json.dumps(fields)), self._spec)


def newest_position(table: Any, snapshot_json: Callable[[Any], str]) -> Lsn | None:
    """Of the newest ancestor of main that has one: maintenance may commit without it.
    ``snapshot_json``: Iceberg's SnapshotParser.toJson."""
    return position_of(_places(table, snapshot_json))


def _places(table: Any, snapshot_json: Callable[[Any], str]) -> Iterator[Place]:
    snapshot = table.currentSnapshot()
    while snapshot is not None:
        # As JSON: each value that is asked for by itself is a call to the JVM.
        fields = json.loads(snapshot_json(snapshot))
        if (place := Place.of(fields.get("summary", {}))) is not None:
            yield place
        parent = fields.get("parent-snapshot-id")
        snapshot = None if parent is None else table.snapshot(parent)


def _file(task: Mapping[str, Any], sequence_number: int | None) -> TableFile:
    data = task["data-file"]
    location: str = data["file-path"]
    if data["file-format"].lower() != "parquet":
        raise FallBackToSpark(f"{location} is not a Parquet file")
    deletes = task.get("delete-files", [])
    if len(deletes) > 1 or any(file["file-format"].lower() != "puffin" for file in deletes):
        raise FallBackToSpark(f"rows of {location} are deleted in another way")
    vector = None
    for file in deletes:
        vector = DeletionVector(
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
