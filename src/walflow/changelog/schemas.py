"""The schemas of the log's files: one small JSON file each, and how often each is used."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from threading import Lock

from walflow.changelog.durable import remove, sealed, sync_folder, unsealed, write_atomically
from walflow.changelog.journal import DAMAGE_HINT
from walflow.changelog.records import LogFile
from walflow.errors import LogDamaged, LogError
from walflow.model import Lsn, TableSchema
from walflow.serialization import from_dict, to_dict

__all__ = ["SchemaFolder"]

_NAME = re.compile(r"(\d+)-([0-9a-f]{16})\.json")


class SchemaFolder:
    """Schemas by table and version. All calls may come from several threads.

    A schema stays while a sealed file or the open segment uses it. The newest schema of a table
    always stays, because it is the table's schema now.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._schemas: dict[int, dict[Lsn, TableSchema]] = {}
        self._uses: Counter[tuple[int, Lsn]] = Counter()
        self._lock = Lock()

    def load(self, end: Lsn) -> None:
        """Read the folder once the sealed files are counted, and remove leftovers of a crash."""
        for path in sorted(self._folder.iterdir()):
            match = _NAME.fullmatch(path.name)
            if match is None:
                remove(path)
                continue
            table, version = int(match[1]), Lsn(match[2], 16)
            if version > end and not self._uses[table, version]:
                # Of a segment that was never sealed.
                remove(path)
                continue
            try:
                schema = from_dict(TableSchema, unsealed(path.read_bytes()))
            except ValueError as error:
                raise LogDamaged(f"{path} is damaged: {error}", hint=DAMAGE_HINT) from error
            self._schemas.setdefault(table, {})[version] = schema
        for table, version in +self._uses:
            if version not in self._schemas.get(table, {}):
                raise LogDamaged(
                    f"schema {version} of table {table} is missing in {self._folder}",
                    hint=DAMAGE_HINT,
                )

    def get(self, table: int, version: Lsn) -> TableSchema | None:
        with self._lock:
            return self._schemas.get(table, {}).get(version)

    def latest(self, table: int, at: Lsn | None) -> TableSchema | None:
        with self._lock:
            versions = self._schemas.get(table, {})
            numbers = [number for number in versions if at is None or number <= at]
            return versions[max(numbers)] if numbers else None

    def use(self, schema: TableSchema) -> None:
        """Count the open segment as a user, so that the schema is not dropped before the seal."""
        key = (schema.oid, schema.version)
        with self._lock:
            stored = self._schemas.get(schema.oid, {}).get(schema.version)
            if stored is not None and stored != schema and self._uses[key]:
                raise LogError(
                    f"schema {schema.version} of {schema.name} is in {self._folder} already, "
                    "with other columns",
                    hint="A changed setting of types needs a new log: remove the folder, or name "
                    "another one (--log FOLDER). The tables are copied again.",
                )
            self._uses[key] += 1

    def release(self, schemas: Iterable[TableSchema]) -> None:
        """The open segment no longer uses these."""
        with self._lock:
            self._uses.subtract((schema.oid, schema.version) for schema in schemas)

    def count(self, files: Iterable[LogFile]) -> None:
        """Count sealed files as users."""
        with self._lock:
            self._uses.update((file.table, file.version) for file in files)

    def discount(self, files: Iterable[LogFile]) -> None:
        """Stop counting these files: they were retired."""
        with self._lock:
            self._uses.subtract((file.table, file.version) for file in files)

    def store(self, schemas: Iterable[TableSchema]) -> None:
        """Write the schemas that are not stored yet. They are durable when this returns."""
        new = [schema for schema in schemas if self.get(schema.oid, schema.version) != schema]
        for schema in new:
            write_atomically(self._path(schema), sealed(to_dict(schema), 1), folder_too=False)
        if new:
            sync_folder(self._folder)
        with self._lock:
            for schema in new:
                self._schemas.setdefault(schema.oid, {})[schema.version] = schema

    def drop_unused(self) -> None:
        with self._lock:
            for table, versions in self._schemas.items():
                for version in sorted(versions)[:-1]:
                    if not self._uses[table, version]:
                        # Under the lock, so that it cannot meet a writer that stores it again.
                        remove(self._path(versions.pop(version)))
            # Zeros would pile up with the versions.
            self._uses = +self._uses

    def clear(self) -> None:
        """Remove all schemas. No segment is left, open or sealed."""
        with self._lock:
            self._schemas = {}
            self._uses.clear()
            for path in self._folder.iterdir():
                remove(path)

    def _path(self, schema: TableSchema) -> Path:
        return self._folder / f"{schema.oid}-{schema.version:016x}.json"
