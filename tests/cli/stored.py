"""Stores on the disk with tables in every state, as a pipeline would leave them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from walflow.config import Settings, load_settings
from walflow.model import Lsn, Phase, TableName
from walflow.states import RetryKind, RetryPolicy, TableError, TableReplicationState
from walflow.stores import open_store
from walflow.stores.base import Holder, Report, Store

HOLDER = Holder("test", socket.gethostname(), os.getpid())


def settings_of(log: Path, name: str = "shop") -> Settings:
    ends = {"source.uri": "postgresql:///none", "destination.uri": "iceberg:///none"}
    return load_settings(None, {"name": name, "log.folder": str(log), **ends}, {})


@contextmanager
def opened(log: Path, name: str = "shop") -> Iterator[Store]:
    store = open_store(settings_of(log, name))
    try:
        yield store
    finally:
        store.close()


def an_error(kind: RetryKind, at: float | None = None, **known: str) -> TableError:
    return TableError(
        code=known.get("code", "DestinationError"),
        reason=known.get("reason", "the disk of the lake is full"),
        hint=known.get("hint", "Free some space."),
        retry=RetryPolicy(kind, at),
        phase=Phase.CATCHUP,
    )


def put_table(
    store: Store,
    oid: int,
    name: str,
    phase: Phase,
    *,
    age: float = 200.0,
    position: int = 0x1000,
    rows: int = 0,
    changes: int = 0,
    attempts: int = 0,
    error: TableError | None = None,
    destination: str | None = None,
) -> None:
    schema, _, table = name.partition(".")
    state = TableReplicationState(
        TableName(schema, table),
        phase,
        since=time.time() - age,
        position=Lsn(position),
        rows_copied=rows,
        changes_applied=changes,
        attempts=attempts,
        error=error,
    )
    store.update_table_replication_state(oid, state)
    there = TableName(*(destination or name).split("."))
    store.store_table_mapping(oid, there)


def put_shop(store: Store) -> None:
    """One table of each kind."""
    put_table(store, 1, "public.orders", Phase.READY, position=0x2000, rows=1234, changes=56)
    put_table(store, 2, "public.new", Phase.DATA_SYNC, age=5, position=0, rows=10)
    put_table(
        store,
        3,
        "public.timed",
        Phase.ERRORED,
        attempts=2,
        error=an_error(RetryKind.TIMED, time.time() + 3600),
    )
    put_table(
        store,
        4,
        "public.manual",
        Phase.ERRORED,
        attempts=6,
        error=an_error(RetryKind.MANUAL, reason="a very long reason, " * 12 + "to its end"),
    )
    put_table(
        store,
        5,
        "sales.final",
        Phase.ERRORED,
        attempts=1,
        error=an_error(RetryKind.NONE, hint="", reason="the log was lost"),
    )


def run_it(
    store: Store,
    *,
    reported: bool = True,
    seconds: float = 60.0,
    batches: Mapping[str, int] | None = None,
) -> None:
    """As if this process ran the pipeline."""
    store.acquire_lease(HOLDER, seconds)
    if reported:
        positions = Lsn(0x3000), Lsn(0x2800), Lsn(0x1800)
        report = Report(*positions, 1.25, time.time() - 3, batches=batches or {})
        store.renew_lease(HOLDER, seconds, report)
