"""What reviews found could go wrong in receiving: large rows, and a source that became another."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Database
from tests.pipeline.capturing import (
    ALWAYS_BULK,
    LIVE_ONLY,
    Capture,
    changes,
    make_slot,
    slot_position,
    wait_for,
)
from tests.pipeline.running import WAIT
from walflow.errors import PublicationMissing, SlotLost, SourceError
from walflow.source.stream.replication_connection import Replication

MEGABYTE = 1 << 20


@pytest.fixture
def wide(database: Database) -> Database:
    database.execute(
        "CREATE TABLE wide (id int PRIMARY KEY, body text)",
        "CREATE PUBLICATION p FOR TABLE wide",
    )
    return database


def slot_of(database: Database) -> str:
    return f"slot_{database.name}"


@pytest.mark.parametrize("backlog_bytes", [LIVE_ONLY, ALWAYS_BULK], ids=["live", "bulk"])
def test_rows_larger_than_a_hand_over(wide: Database, tmp_path: Path, backlog_bytes: int) -> None:
    make_slot(wide.uri, slot_of(wide))
    sizes = {1: 5, 2: 0, 3: 17, 4: 4}
    with wide.connect() as connection:
        for number, size in sizes.items():
            connection.execute(
                "INSERT INTO wide VALUES (%s, repeat('x', %s))", [number, size * MEGABYTE]
            )
        # A transaction of many hand-overs, whose rows do not fit evenly into them.
        connection.execute(
            f"INSERT INTO wide SELECT 10 + i, repeat('y', {MEGABYTE} + i)"
            " FROM generate_series(1, 30) i"
        )
    with Capture(
        wide.uri, tmp_path / "log", slot=slot_of(wide), backlog_bytes=backlog_bytes
    ) as capture:
        capture.catch_up(WAIT)
        (rows,) = changes(capture.log).values()
    found = {row["id"]: len(row["body"]) for _, row in rows}
    expected = {number: size * MEGABYTE for number, size in sizes.items()}
    assert found == expected | {10 + i: MEGABYTE + i for i in range(1, 31)}


def test_a_slot_that_someone_else_moved(wide: Database, tmp_path: Path) -> None:
    with Capture(wide.uri, tmp_path / "log", slot=slot_of(wide)) as capture:
        capture.catch_up()
    wide.execute("INSERT INTO wide VALUES (1, 'lost')")
    wide.execute(
        f"SELECT pg_replication_slot_advance('{slot_of(wide)}', pg_current_wal_flush_lsn())"
    )
    capture = Capture(wide.uri, tmp_path / "log", slot=slot_of(wide))
    with pytest.raises(SlotLost, match="missing"), capture:
        capture.catch_up()


def test_a_slot_that_is_dropped_between_connections(wide: Database, tmp_path: Path) -> None:
    with Capture(wide.uri, tmp_path / "log", slot=slot_of(wide)) as capture:
        capture.catch_up()
        with wide.connect() as connection:
            _drop_when_free(connection, slot_of(wide))
        with pytest.raises(SlotLost):
            capture.wait(lambda: False, WAIT)


def _drop_when_free(connection: psycopg.Connection, slot: str) -> None:
    deadline = time.monotonic() + WAIT
    while True:
        try:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
            return
        except psycopg.errors.ObjectInUse:
            assert time.monotonic() < deadline
            connection.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                " WHERE slot_name = %s AND active",
                [slot],
            )


def test_a_publication_that_is_gone(wide: Database, tmp_path: Path) -> None:
    capture = Capture(wide.uri, tmp_path / "log", slot=slot_of(wide))
    wide.execute("DROP PUBLICATION p")
    with pytest.raises(PublicationMissing), capture:
        capture.catch_up()


def test_making_a_slot_can_be_cancelled(wide: Database) -> None:
    stop = threading.Event()
    with (
        wide.connect() as connection,
        Replication(wide.uri, application_name="t") as replication,
        connection.transaction(),
    ):
        connection.execute("INSERT INTO wide VALUES (1, 'open')")
        threading.Timer(0.5, stop.set).start()
        began = time.monotonic()
        with pytest.raises(SourceError, match="create the slot"):
            replication.create_slot(slot_of(wide), cancelled=stop.is_set)
        # Otherwise it would wait for the transaction, which is open all the time.
        assert time.monotonic() - began < WAIT
    wait_for(lambda: slot_position(wide.uri, slot_of(wide)) is None, WAIT)


def test_a_column_that_takes_one_of_our_names(wide: Database, tmp_path: Path) -> None:
    """The log goes on to hold what happens to it and to all others."""
    wide.execute("CREATE TABLE other (id int PRIMARY KEY)", "ALTER PUBLICATION p ADD TABLE other")
    with Capture(wide.uri, tmp_path / "log", slot=slot_of(wide)) as capture:
        wide.execute(
            "INSERT INTO wide VALUES (1, 'before')",
            "ALTER TABLE wide RENAME body TO _lsn",
            "ALTER TABLE wide RENAME id TO _seq",
            "INSERT INTO wide VALUES (2, 'after')",
            "UPDATE wide SET _seq = 3 WHERE _seq = 2",
            "INSERT INTO other VALUES (1)",
        )
        capture.catch_up()
        found = changes(capture.log)
    by_name = {pairs[0][0].name.name: pairs for pairs in found.values()}
    assert [row["id"] for _, row in by_name["other"]] == [1]
    (before, first), (after, second), (_, third) = by_name["wide"]
    assert before.column_names == ("id", "body")
    assert after.column_names == ("~_seq", "~_lsn")
    assert after.key == ("~_seq",)
    assert not after.same_schema(before)
    assert (first["id"], first["body"]) == (1, "before")
    assert (second["~_seq"], second["~_lsn"]) == (2, "after")
    assert (third["~_seq"], third["_old"]) == (3, {"~_seq": 2})
    assert first["_lsn"] < second["_lsn"] < third["_lsn"]
