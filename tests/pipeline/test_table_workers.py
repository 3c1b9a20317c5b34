"""Tables side by side: one that fails, is slow or catches up holds up no other."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as parquet
import pytest
from structlog.testing import capture_logs

from tests.conftest import Database
from tests.pipeline.capturing import wait_for
from tests.pipeline.following import wait_all_ready, wait_phase
from tests.pipeline.running import (
    HOLD,
    QUICK,
    WAIT,
    catch_up,
    fill_two_tables,
    in_source,
    phase_of,
    running,
    settings_for,
    state_of,
)
from tests.pipeline.shelf import PositionedShelf, Shelf
from walflow.cli.open_store import opened_store
from walflow.cli.overview import read_overview
from walflow.config import Settings
from walflow.errors import DestinationError, TablesSetAside
from walflow.failpoints import set_failpoints
from walflow.model import Lsn, Phase, TableName, TableSchema
from walflow.observe.metrics import Metrics
from walflow.pipeline.state.table_states import TableState
from walflow.states import RetryKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

A, B = TableName("public", "a"), TableName("public", "b")


@pytest.fixture
def settings(database: Database, tmp_path: Path) -> Settings:
    fill_two_tables(database)
    return settings_for(database, tmp_path)


def assert_equal(shelf: Shelf, database: Database, *tables: str) -> None:
    for table in tables:
        assert shelf.rows(table) == in_source(database, table)


@pytest.mark.parametrize("kind", [Shelf, PositionedShelf])
def test_a_restart_goes_on_without_copying(
    spark: SparkSession, settings: Settings, database: Database, kind: type[Shelf]
) -> None:
    shelf = kind()
    with running(settings, spark, destination=shelf) as pipeline:
        assert_equal(shelf, database, "a", "b")
        database.execute("UPDATE a SET v = 'x' WHERE id < 5", "DELETE FROM b WHERE id < 9")
        catch_up(pipeline)
        assert_equal(shelf, database, "a", "b")
        wait_for(lambda: phase_of(pipeline, "a") is Phase.READY, WAIT)
    database.execute("INSERT INTO a VALUES (100, 'while away')")
    with running(settings, spark, destination=shelf) as pipeline:
        assert_equal(shelf, database, "a", "b")
        wait_for(lambda: phase_of(pipeline, "b") is Phase.READY, WAIT)
    assert shelf.copies == {A: 1, B: 1}


def test_a_table_that_the_destination_lost_is_copied_again(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    shelf = PositionedShelf()
    with running(settings, spark, destination=shelf):
        assert_equal(shelf, database, "a", "b")
    # Nothing happens to it in the source, so no change would ever show it.
    del shelf.tables[B], shelf.positions[B]
    with running(settings, spark, destination=shelf):
        assert_equal(shelf, database, "a", "b")
    assert shelf.copies == {A: 1, B: 2}


def test_a_table_that_somebody_sets_back_while_it_is_followed(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    shelf = PositionedShelf()
    with running(settings, spark, destination=shelf) as pipeline:
        wait_for(lambda: phase_of(pipeline, "a") is Phase.READY, WAIT)
        then = {A: dict(shelf.tables[A]), B: dict(shelf.tables[B])}, dict(shelf.positions)
        for number in range(3):
            database.execute(f"UPDATE a SET v = 'x' WHERE id = {number + 1}")
            database.execute(f"DELETE FROM b WHERE id = {number + 1}")
            catch_up(pipeline)
        for table in (A, B):
            shelf.tables[table], shelf.positions[table] = then[0][table], then[1][table]
        database.execute("UPDATE a SET v = 'late' WHERE id = 40")
        database.execute("INSERT INTO b VALUES (1000, 'late')")
        catch_up(pipeline)
        # The log has what they lack.
        assert_equal(shelf, database, "a", "b")
        assert shelf.copies == {A: 1, B: 1}
        # Now it does not.
        shelf.positions[A] = Lsn(1)
        shelf.tables[A].clear()
        del shelf.positions[B], shelf.tables[B]
        database.execute("UPDATE a SET v = 'later' WHERE id = 41", "DELETE FROM b WHERE id = 1000")
        wait_for(lambda: shelf.copies == {A: 2, B: 2}, WAIT)
        catch_up(pipeline)
        assert_equal(shelf, database, "a", "b")


def test_a_quiet_table_among_busy_ones_is_not_taken_for_set_back(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    shelf = PositionedShelf()
    set_failpoints("sync.data_sync[public.a]=hold")
    with (
        running(settings, spark, destination=shelf, caught_up=False) as pipeline,
        capture_logs() as logs,
    ):
        wait_for(lambda: phase_of(pipeline, "b") is Phase.READY, WAIT)
        # What b is given moves a's position on, and writes nothing to a.
        database.execute("UPDATE b SET v = 'busy' WHERE id = 1")
        wait_for(lambda: shelf.rows("b") == in_source(database, "b"), WAIT)
        set_failpoints("")
        wait_for(lambda: phase_of(pipeline, "a") is Phase.READY, WAIT)
        state = state_of(pipeline, "a")
        assert state is not None
        assert state.position > shelf.positions[A]
        database.execute("UPDATE a SET v = 'at last' WHERE id = 1")
        catch_up(pipeline)
        assert_equal(shelf, database, "a", "b")
    assert not [log for log in logs if "set a table back" in log["event"]]
    assert shelf.copies == {A: 1, B: 1}


def test_a_destination_that_is_away_for_a_moment_sets_no_table_aside(
    spark: SparkSession,
    settings: Settings,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shelf = PositionedShelf()
    away: list[TableName] = []
    applied = shelf.applied

    def asked(table: TableSchema) -> Lsn | None:
        if table.name not in away:
            away.append(table.name)
            raise DestinationError("the catalog is away", retry=True)
        return applied(table)

    with running(settings, spark, destination=shelf) as pipeline, capture_logs() as logs:
        wait_for(lambda: phase_of(pipeline, "a") is Phase.READY, WAIT)
        monkeypatch.setattr(shelf, "applied", asked)
        database.execute("UPDATE a SET v = 'x' WHERE id = 1")
        catch_up(pipeline)
        assert_equal(shelf, database, "a")
        assert A in away
    assert not [log for log in logs if "set aside" in log["event"]]


def test_a_table_that_catches_up_gets_on_however_often_it_is_broken_off(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    shelf, held, go_on = PositionedShelf(), threading.Event(), threading.Event()
    batches: list[int] = []

    def hold(table: TableName) -> None:
        if table == A:
            held.set()
            assert go_on.wait(HOLD)
            batches.append(len(batches))
            if len(batches) > 3:
                raise DestinationError("broken off", retry=False)

    # What fits into a millisecond is a segment.
    timing = replace(QUICK, batch=0.001)
    with running(settings, spark, destination=shelf, timing=timing) as pipeline:
        wait_for(lambda: phase_of(pipeline, "a") is Phase.READY, WAIT)
        shelf.before_batch = hold
        database.execute("UPDATE a SET v = 'first' WHERE id = 1")
        assert held.wait(WAIT)
        for number in range(2, 9):
            # Each in a segment of its own: when b has it, it was sealed.
            database.execute(
                f"UPDATE a SET v = 'more' WHERE id = {number}",
                f"UPDATE b SET v = 'more {number}' WHERE id = 1",
            )
            wait_for(lambda: shelf.rows("b") == in_source(database, "b"), WAIT)
        go_on.set()
        wait_for(lambda: phase_of(pipeline, "a") is Phase.ERRORED, WAIT)
    # All that waited was not one batch: what was reached stays.
    reached = [row[0] for row in shelf.rows("a") if row[1] == "more"]
    assert reached == [2, 3]
    shelf.before_batch = lambda table: None
    with running(settings, spark, destination=shelf, caught_up=False) as pipeline:
        pipeline.retry(A)
        wait_for(lambda: phase_of(pipeline, "a") is Phase.READY, WAIT)
        catch_up(pipeline)
        assert_equal(shelf, database, "a", "b")
    assert shelf.copies == {A: 1, B: 1}


def change_byte(path: Path, value: bytes = b"") -> None:
    """As a disk would; where a value stands, the file can still be read."""
    content = path.read_bytes()
    at = content.index(value, 40)
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


def files_with(value: bytes, folder: Path) -> list[Path]:
    """The files of a change log in which the value stands. One may go while they are looked at."""
    found = []
    for path in folder.glob("*/*"):
        with suppress(FileNotFoundError):
            if value in path.read_bytes():
                found.append(path)
    return found


def test_nothing_is_applied_from_a_damaged_segment(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    shelf, held, go_on = PositionedShelf(), threading.Event(), threading.Event()

    def hold(table: TableName) -> None:
        if table == A:
            held.set()
            assert go_on.wait(HOLD)
            assert "misread" not in {row[1] for row in shelf.tables[A].values()}

    shelf.before_batch = hold
    with running(settings, spark, destination=shelf) as pipeline, capture_logs() as logs:
        wait_for(lambda: phase_of(pipeline, "a") is Phase.READY, WAIT)
        database.execute("UPDATE a SET v = 'first' WHERE id = 1")
        assert held.wait(WAIT)
        database.execute("UPDATE a SET v = 'nisread' WHERE id = 2")
        data = settings.log_folder / "data"
        wait_for(lambda: bool(files_with(b"nisread", data)), WAIT)
        (damaged,) = files_with(b"nisread", data)
        database.execute("UPDATE b SET v = 'sealed' WHERE id = 1")
        wait_for(lambda: shelf.rows("b") == in_source(database, "b"), WAIT)
        change_byte(damaged, b"nisread")
        go_on.set()
        wait_for(lambda: shelf.copies == {A: 2, B: 1}, WAIT)
        wait_for(lambda: phase_of(pipeline, "a") is Phase.READY, WAIT)
        assert_equal(shelf, database, "a", "b")
    told = [entry for entry in logs if entry.get("code") == "LogDamaged"]
    assert [(entry["table"], str(damaged) in entry["error"]) for entry in told] == [
        ("public.a", True)
    ]


def test_a_damaged_segment_is_not_met_again_by_a_copy_under_an_older_snapshot(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    """While another table is copied, its snapshot is held, and the log has all since then."""
    shelf, held, go_on = PositionedShelf(), threading.Event(), threading.Event()

    def hold(table: TableName) -> None:
        if table == A and not held.is_set():
            held.set()
            assert go_on.wait(HOLD)

    shelf.before_batch = hold
    set_failpoints("copy.range[public.b]=hold")
    try:
        with running(settings, spark, destination=shelf, caught_up=False) as pipeline:
            wait_for(lambda: phase_of(pipeline, "a") is Phase.READY, WAIT)
            database.execute("UPDATE a SET v = 'first' WHERE id = 1")
            assert held.wait(WAIT)
            database.execute("UPDATE a SET v = 'nisread' WHERE id = 2")
            data = settings.log_folder / "data"
            wait_for(lambda: bool(files_with(b"nisread", data)), WAIT)
            (damaged,) = files_with(b"nisread", data)
            change_byte(damaged, b"nisread")
            go_on.set()
            wait_for(lambda: shelf.copies[A] == 2 and phase_of(pipeline, "a") is Phase.READY, WAIT)
            assert phase_of(pipeline, "b") is Phase.DATA_SYNC
            assert_equal(shelf, database, "a")
            set_failpoints("")
            catch_up(pipeline)
            assert_equal(shelf, database, "a", "b")
    finally:
        set_failpoints("")
    assert shelf.copies == {A: 2, B: 1}


def test_a_damaged_copy_is_not_handed_over(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    shelf, copies = PositionedShelf(), settings.log_folder / "copy"

    def damage(table: TableName) -> None:
        if table == A and not shelf.copies[A]:
            paths = copies.glob("*/*.parquet")
            (path,) = (p for p in paths if parquet.read_table(p)["v"][0].as_py()[0] == "a")
            change_byte(path)
            shelf.copies[A] = 1
            raise DestinationError("not now")

    shelf.before_copy = damage
    with capture_logs() as logs, running(settings, spark, destination=shelf):
        assert_equal(shelf, database, "a", "b")
    assert [e["code"] for e in logs if e["event"] == "a table was set aside"] == [
        "DestinationError",
        "LogDamaged",
    ]


def test_a_table_that_fails_is_set_aside_and_comes_back(
    spark: SparkSession, settings: Settings, database: Database, tmp_path: Path
) -> None:
    # However long the other table takes, it is not the last attempt.
    settings = settings_for(database, tmp_path, table_error_retry_max_attempts=50)
    shelf, broken = PositionedShelf(), threading.Event()
    hold, held, go_on = threading.Event(), threading.Event(), threading.Event()
    metrics = Metrics()

    def failing() -> float | None:
        return metrics.registry.get_sample_value("etl_tables_failing", {"pipeline": "test"})

    def refuse(table: TableName) -> None:
        if table == A and broken.is_set():
            if hold.is_set():
                held.set()
                assert go_on.wait(HOLD)
            raise DestinationError("the shelf of a is full", hint="make room")

    shelf.before_batch = refuse
    with running(settings, spark, destination=shelf, metrics=metrics) as pipeline:
        broken.set()
        database.execute("UPDATE a SET v = 'late'", "UPDATE b SET v = 'in time'")
        failed: list[TableState] = []

        def has_failed() -> bool:
            state = state_of(pipeline, "a")
            failed.extend([state] if state is not None and state.error is not None else [])
            return bool(failed)

        wait_for(has_failed, WAIT)
        error = failed[0].error
        assert error is not None
        assert (error.reason, error.hint) == ("the shelf of a is full", "make room")
        assert error.retry.kind is RetryKind.TIMED
        database.execute("UPDATE b SET v = 'still in time'")
        wait_for(lambda: shelf.rows("b") == in_source(database, "b"), WAIT)
        wait_for(lambda: (state_of(pipeline, "a") or pytest.fail("gone")).attempts >= 2, WAIT)
        # While it is tried again, whoever looks sees that something is wrong.
        hold.set()
        assert held.wait(WAIT)
        tried = state_of(pipeline, "a")
        assert tried is not None
        assert (tried.phase, tried.attempts >= 2) == (Phase.CATCHUP, True)
        with opened_store(settings) as store:
            overview = read_overview(store, "test", time.time())
        assert [str(table.name) for table in overview.failing] == ["public.a"]
        assert overview.set_aside == ()
        (stored,) = overview.errors_only().tables
        assert stored.state.error is not None
        assert stored.state.error.reason == "the shelf of a is full"
        assert stored.state.attempts == tried.attempts
        wait_for(lambda: failing() == 1, WAIT)
        broken.clear()
        go_on.set()
        catch_up(pipeline)
        assert_equal(shelf, database, "a", "b")
        wait_for(lambda: phase_of(pipeline, "a") is Phase.READY, WAIT)
        state = state_of(pipeline, "a")
        assert state is not None
        assert (state.attempts, state.error) == (0, None)
        wait_for(lambda: failing() == 0, WAIT)
    assert shelf.copies == {A: 1, B: 1}


def test_after_the_last_attempt_an_operator_is_waited_for(
    spark: SparkSession, database: Database, settings: Settings, tmp_path: Path
) -> None:
    settings = settings_for(
        database, tmp_path, table_error_retry_max_attempts=1, table_error_retry_delay_ms=50
    )
    shelf, broken = PositionedShelf(), threading.Event()
    broken.set()

    def refuse(table: TableName) -> None:
        if table == A and broken.is_set():
            raise DestinationError("no copy of a", hint="make room")

    shelf.before_copy = refuse
    with running(settings, spark, destination=shelf, caught_up=False) as pipeline:
        with pytest.raises(TablesSetAside, match=r"public\.a: no copy of a"):
            pipeline.wait(until_caught_up=True)
        assert_equal(shelf, database, "b")
        database.execute("UPDATE a SET v = 'meanwhile' WHERE id = 7")
    # It stays so over a restart, and only the one that was asked for is tried again.
    with running(settings, spark, destination=shelf) as pipeline:
        assert phase_of(pipeline, "a") is Phase.ERRORED
        broken.clear()
        pipeline.retry(A)
        wait_for(lambda: phase_of(pipeline, "a") is Phase.READY, WAIT)
        assert_equal(shelf, database, "a", "b")
    assert shelf.copies == {A: 1, B: 1}


def test_who_waits_for_the_end_does_not_wait_for_an_attempt_that_is_far_away(
    spark: SparkSession, database: Database, settings: Settings, tmp_path: Path
) -> None:
    # As with the defaults after some failures; here it is an hour at once.
    settings = settings_for(database, tmp_path, table_error_retry_delay_ms=3_600_000)
    shelf, broken = PositionedShelf(), threading.Event()

    def refuse(table: TableName) -> None:
        if table == A and broken.is_set():
            raise DestinationError("the shelf of a is full", hint="make room")

    shelf.before_batch = refuse
    with running(settings, spark, destination=shelf) as pipeline:
        broken.set()
        database.execute("UPDATE a SET v = 'late'", "UPDATE b SET v = 'in time'")
        wait_phase(pipeline, "a", Phase.ERRORED)
        with pytest.raises(TablesSetAside, match=r"public\.a: the shelf of a is full") as raised:
            pipeline.wait(until_caught_up=True)
        assert "make room" in raised.value.hint
        assert_equal(shelf, database, "b")
    # Nor does the next run, until it is due or asked for; the log has what it lacks.
    broken.clear()
    with running(settings, spark, destination=shelf, caught_up=False) as pipeline:
        with pytest.raises(TablesSetAside):
            pipeline.wait(until_caught_up=True)
        pipeline.retry(A)
        wait_phase(pipeline, "a", Phase.READY)
        pipeline.wait(until_caught_up=True)
        assert_equal(shelf, database, "a", "b")
    assert shelf.copies == {A: 1, B: 1}


def test_a_table_that_catches_up_for_long_does_not_hold_up_the_others(
    spark: SparkSession,
    settings: Settings,
    database: Database,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shelf, held, go_on = PositionedShelf(), threading.Event(), threading.Event()

    def hold(table: TableName) -> None:
        if table == A:
            held.set()
            assert go_on.wait(HOLD)

    def write_late(table: TableName) -> None:
        database.execute("UPDATE a SET v = 'late'")

    with running(settings, spark, destination=shelf) as pipeline:
        # It is copied again, and what was written meanwhile takes forever to catch up on.
        shelf.before_copy = write_late
        shelf.before_batch = hold
        pipeline.resync(A)
        assert held.wait(WAIT)
        assert phase_of(pipeline, "a") is Phase.CATCHUP
        lags = []
        for number in range(6):
            database.execute(f"UPDATE b SET v = 'quick {number}' WHERE id = {number + 1}")
            began = time.monotonic()
            wait_for(lambda: shelf.rows("b") == in_source(database, "b"), WAIT)
            lags.append(time.monotonic() - began)
        assert phase_of(pipeline, "a") is Phase.CATCHUP
        behind = state_of(pipeline, "a")
        assert behind is not None
        assert behind.lag_seconds > max(lags)
        # The report to other processes tells the same.
        told = {behind.schema.oid: behind.position}
        # What the shelf of b has, its worker learns a moment later.
        wait_for(lambda: pipeline.status().report().behind == told, WAIT)
        go_on.set()
        catch_up(pipeline)
        assert_equal(shelf, database, "a", "b")
    with capsys.disabled():
        print(f"\ncommit to visible of b while a caught up: at most {max(lags):.2f} s")


def test_many_slow_tables_leave_room_for_the_quick_ones(
    spark: SparkSession, settings: Settings, database: Database
) -> None:
    names = [f"s{number}" for number in range(20)]
    database.execute(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in names),
        f"ALTER PUBLICATION walflow ADD TABLE {', '.join(names)}",
    )
    shelf, slow, go_on = PositionedShelf(), threading.Semaphore(0), threading.Event()

    def hold(table: TableName) -> None:
        if table.name in names:
            slow.release()
            assert go_on.wait(HOLD)

    shelf.before_batch = hold
    with running(settings, spark, destination=shelf) as pipeline:
        wait_all_ready(pipeline)
        # Fewer than there are threads for tables that are ready, and more than Spark has cores.
        database.execute(*(f"INSERT INTO {name} VALUES (1, 'x')" for name in names[:12]))
        for _ in range(12):
            assert slow.acquire(timeout=WAIT)
        database.execute("UPDATE b SET v = 'quick'")
        wait_for(lambda: shelf.rows("b") == in_source(database, "b"), WAIT)
        go_on.set()
        catch_up(pipeline)
        assert_equal(shelf, database, "a", "b", *names)
