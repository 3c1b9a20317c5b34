"""Stores of the user's own: BasicStore's calls are required, and defaults complete the rest.

The default lease is a file in the folder of the pipeline's log, so it only works on one machine.
Default requests are in memory, so those of other processes do not arrive. The default history is a
table's current state. A store has either all or none of the calls for leases, and likewise for
requests.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from walflow.config.settings import LEASE_FILE
from walflow.errors import ConfigError, StoreError
from walflow.serialization import from_json, to_json
from walflow.states import TableReplicationState
from walflow.stores.base import (
    BasicStore,
    Holder,
    Lease,
    LeaseStore,
    Report,
    RequestStore,
    Store,
)
from walflow.stores.memory import MemoryStore
from walflow.stores.refusals import lease_lost, pipeline_in_use

__all__ = ["FolderLease", "calls_of", "check_calls", "completed", "missing_calls", "takes_requests"]


def check_calls(store: object) -> BasicStore:
    """Raise ConfigError, which names the missing calls, unless the object has the required ones."""
    missing = missing_calls(store, BasicStore)
    for optional in (LeaseStore, RequestStore):
        lacking = missing_calls(store, optional)
        if len(lacking) < len(calls_of(optional)):
            missing += lacking
    if missing:
        raise ConfigError(
            f"{type(store).__name__} is not a store: it lacks {', '.join(missing)}.",
            hint="walflow.stores.base has what each call does, and "
            "walflow.testing.stores.StoreContract tests them.",
        )
    return cast("BasicStore", store)


def completed(store: BasicStore, pipeline: str, log_folder: Path) -> Store:
    """The store, with defaults for calls that it lacks."""
    if not missing_calls(store, Store):
        return cast("Store", store)
    leases = FolderLease(log_folder, pipeline)
    # Of all that stands here, the first that has a call is asked.
    parts = (store, leases, _Defaults(store), MemoryStore(pipeline))
    return cast("Store", _Completed(parts))


def takes_requests(store: Store) -> bool:
    """Whether requests from other processes reach this store."""
    return not (isinstance(store, _Completed) and missing_calls(store.parts[0], RequestStore))


def calls_of(protocol: type) -> tuple[str, ...]:
    """The calls of one optional part."""
    parts = [part for part in protocol.__mro__ if getattr(part, "_is_protocol", False)]
    return tuple(name for part in parts for name in vars(part) if not name.startswith("_"))


def missing_calls(store: object, protocol: type) -> list[str]:
    """The protocol's calls that the store lacks."""
    return [name for name in calls_of(protocol) if not callable(getattr(store, name, None))]


class _Completed:
    def __init__(self, parts: tuple[object, ...]) -> None:
        self.parts = parts

    def __getattr__(self, name: str) -> Any:
        part = next((part for part in self.parts if hasattr(part, name)), self.parts[0])
        return getattr(part, name)


class _Defaults:
    """Calls that can be built from the required ones."""

    def __init__(self, store: BasicStore) -> None:
        self._store = store

    def update_table_replication_states(self, states: Mapping[int, TableReplicationState]) -> None:
        for table, state in states.items():
            self._store.update_table_replication_state(table, state)

    def get_table_replication_history(self, table: int) -> list[TableReplicationState]:
        state = self._store.get_table_replication_state(table)
        return [] if state is None else [state]

    def drop(self) -> None:
        self._store.load_table_replication_states()
        self._store.load_table_mappings()
        self._store.load_table_schemas()
        tables = {
            *self._store.get_table_replication_states(),
            *self._store.get_table_mappings(),
            *(schema.oid for schema in self._store.get_table_schemas()),
        }
        for table in tables:
            self._store.cleanup_table_state(table)

    def close(self) -> None:
        """Does nothing: there is nothing to close."""


@dataclass(frozen=True, slots=True)
class _Held:
    """The content of the lease's file."""

    holder: Holder
    until: float
    """Unix time."""
    report: Report | None = None


class FolderLease:
    """The lease of a pipeline as a file in the folder of its log. Times are this machine's."""

    def __init__(self, folder: Path, pipeline: str) -> None:
        self._path = folder / LEASE_FILE
        self._pipeline = pipeline

    def acquire_lease(self, holder: Holder, seconds: float) -> None:
        with self._opened("a+b") as file:
            held, now = _read(file), time.time()
            own = held is not None and held.holder.id == holder.id
            if held is not None and not own and held.until > now:
                raise pipeline_in_use(self._pipeline, held.holder, held.until - now)
            report = held.report if held is not None and own else None
            _write(file, _Held(holder, now + seconds, report))

    def renew_lease(self, holder: Holder, seconds: float, report: Report | None = None) -> None:
        with self._opened("a+b") as file:
            held = _read(file)
            if held is None or held.holder.id != holder.id:
                raise lease_lost(self._pipeline, None if held is None else held.holder)
            _write(file, _Held(holder, time.time() + seconds, report or held.report))

    def release_lease(self, holder: Holder) -> None:
        if not self._path.exists():
            return
        with self._opened("a+b") as file:
            held = _read(file)
            if held is not None and held.holder.id == holder.id:
                file.truncate(0)

    def get_lease(self) -> Lease | None:
        if not self._path.exists():
            return None
        with self._opened("rb") as file:
            held = _read(file)
        if held is None:
            return None
        return Lease(held.holder, held.until - time.time(), held.report)

    @contextmanager
    def _opened(self, mode: str) -> Iterator[IO[bytes]]:
        """The file, locked against other processes."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open(mode) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield file
        except OSError as error:
            raise StoreError(f"the lease {self._path} cannot be kept: {error.strerror}") from error


def _read(file: IO[bytes]) -> _Held | None:
    """The lease. None also for a file that a crash of the machine has torn: then nobody holds the
    lease."""
    file.seek(0)
    try:
        return from_json(_Held, file.read())
    except ValueError:
        return None


def _write(file: IO[bytes], held: _Held) -> None:
    file.truncate(0)
    file.write(to_json(held))
