"""Receiving into the change log from a real server: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from tests.conftest import Database, fresh_database
from tests.pipeline.capturing import (
    ALWAYS_BULK,
    LIVE_ONLY,
    Capture,
    changes,
    current_position,
    make_slot,
    scalar,
    slot_position,
    wait_for,
)
from tests.pipeline.load import MAKE, Load, assert_replays
from tests.pipeline.running import WAIT
from walflow.changelog import ChangeLog, LogIdentity
from walflow.errors import CannotConnect, LogError, SlotInUse
from walflow.model import Lsn
from walflow.source.connection import connect
from walflow.source.stream.replication_connection import Replication
from walflow.testing.postgres import EmbeddedPostgres


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute(*MAKE)
    return database


class PatientPostgres(EmbeddedPostgres):
    """Given more time to stop than a machine stands still."""

    _stop_seconds = 180.0


@pytest.fixture
def own_server() -> Iterator[EmbeddedPostgres]:
    """A server for tests that stop, crash or configure it."""
    with PatientPostgres(settings={"wal_sender_timeout": "2s"}) as server:
        yield server


@pytest.fixture
def own_shop(own_server: EmbeddedPostgres) -> Iterator[Database]:
    for database in fresh_database(own_server):
        database.execute(*MAKE)
        yield database


HELD_UP = 150
"""A server that waits for us in vain is ended after 180 s (see PatientPostgres)."""


def slot_of(database: Database) -> str:
    return f"slot_{database.name}"


def walsender(database: Database) -> int | None:
    pid: int | None = scalar(
        database.uri,
        "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s",
        slot_of(database),
    )
    return pid


# -- paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backlog_bytes", [LIVE_ONLY, ALWAYS_BULK], ids=["live", "bulk"])
def test_concurrent_writes(shop: Database, tmp_path: Path, backlog_bytes: int) -> None:
    make_slot(shop.uri, slot_of(shop))
    with Load(shop.uri) as load:
        # A backlog first, so that the bulk path has something to read, then more while it reads.
        wait_for(lambda: load.transactions > 300, WAIT)
        with Capture(
            shop.uri, tmp_path / "log", slot=slot_of(shop), backlog_bytes=backlog_bytes
        ) as capture:
            wait_for(lambda: load.transactions > 800, WAIT)
            capture.wait(capture.receiver.streaming.is_set)
            wait_for(lambda: load.transactions > 1200, WAIT)
            load.__exit__(None, None, None)
            capture.catch_up()
            assert_replays(shop.uri, capture.log)


def test_hand_over_again_and_again(shop: Database, tmp_path: Path) -> None:
    """Bulk, live, lost, bulk, live: each time under load."""
    make_slot(shop.uri, slot_of(shop))
    with (
        Load(shop.uri) as load,
        Capture(
            shop.uri, tmp_path / "log", slot=slot_of(shop), backlog_bytes=ALWAYS_BULK
        ) as capture,
    ):
        for _ in range(4):
            capture.wait(capture.receiver.streaming.is_set)
            time.sleep(0.3)
            pid = walsender(shop)
            scalar(shop.uri, "SELECT pg_terminate_backend(%s)", pid)
            capture.wait(lambda pid=pid: walsender(shop) not in (pid, None))  # type: ignore[misc]
        load.__exit__(None, None, None)
        capture.catch_up()
        assert_replays(shop.uri, capture.log)


def test_a_long_open_transaction_does_not_stop_the_bulk_path(
    shop: Database, tmp_path: Path
) -> None:
    make_slot(shop.uri, slot_of(shop))
    with shop.connect(autocommit=False) as old:
        old.execute("INSERT INTO keyed VALUES (-1, 0, 'old', NULL)")
        shop.execute(
            "DO $$ BEGIN FOR i IN 1..3000 LOOP"
            " INSERT INTO keyed VALUES (i * 1000, 1, 'x', repeat('y', 500)); COMMIT;"
            " END LOOP; END $$"
        )
        with Capture(
            shop.uri, tmp_path / "log", slot=slot_of(shop), backlog_bytes=ALWAYS_BULK
        ) as capture:
            capture.catch_up()
            capture.wait(capture.receiver.streaming.is_set)
            shop.execute("UPDATE keyed SET n = 2 WHERE id = 1000")
            old.execute("UPDATE keyed SET n = 5 WHERE id = -1")
            old.commit()
            capture.catch_up()
            assert_replays(shop.uri, capture.log)


def test_stop_and_go(shop: Database, tmp_path: Path) -> None:
    """Every stop acknowledges what is durable; every start goes on exactly there."""
    make_slot(shop.uri, slot_of(shop))
    with Load(shop.uri, pause=0.005) as load:
        for turn in range(6):
            with Capture(
                shop.uri,
                tmp_path / "log",
                slot=slot_of(shop),
                backlog_bytes=ALWAYS_BULK if turn % 2 else LIVE_ONLY,
            ) as capture:
                done = load.transactions
                wait_for(lambda done=done: load.transactions > done + 60, 60)  # type: ignore[misc]
                capture.wait(capture.receiver.streaming.is_set)
                if turn == 5:
                    load.__exit__(None, None, None)
                    capture.catch_up()
                    assert_replays(shop.uri, capture.log)
            position = slot_position(shop.uri, slot_of(shop))
            assert position is not None
            assert sealed_end(capture.log) <= position <= capture.log.end


def sealed_end(log: ChangeLog) -> Lsn:
    segments = log.segments(Lsn(0))
    return segments[-1].span.upto if segments else log.start


def test_two_forms_of_a_table_in_one_transaction(shop: Database, tmp_path: Path) -> None:
    with Capture(shop.uri, tmp_path / "log", slot=slot_of(shop)) as capture:
        with shop.connect() as connection, connection.transaction():
            connection.execute("INSERT INTO keyed VALUES (1, 1, 'a', NULL)")
            connection.execute("ALTER TABLE keyed ADD x int")
            connection.execute("INSERT INTO keyed VALUES (2, 1, 'a', NULL, 5)")
            connection.execute("ALTER TABLE keyed DROP big")
            connection.execute("INSERT INTO keyed VALUES (3, 1, 'a', 6)")
        shop.execute("INSERT INTO keyed VALUES (4, 1, 'a', 7)")
        capture.catch_up()
        (pairs,) = changes(capture.log).values()
    assert [
        {name: row[name] for name in schema.column_names if row[name] is not None}
        for schema, row in pairs
    ] == [
        {"id": 1, "n": 1, "note": "a"},
        {"id": 2, "n": 1, "note": "a", "x": 5},
        {"id": 3, "n": 1, "note": "a", "x": 6},
        {"id": 4, "n": 1, "note": "a", "x": 7},
    ]


# -- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["restart", "crash"])
def test_a_server_that_goes_away(own_shop: Database, tmp_path: Path, end: str) -> None:
    server = own_shop.server
    make_slot(own_shop.uri, slot_of(own_shop))
    with (
        Load(own_shop.uri) as load,
        Capture(own_shop.uri, tmp_path / "log", slot=slot_of(own_shop)) as capture,
    ):
        for _ in range(2):
            done = load.transactions
            wait_for(lambda done=done: load.transactions > done + 100, WAIT)  # type: ignore[misc]
            capture.wait(capture.receiver.streaming.is_set)
            if end == "crash":
                server.crash()
                server.start()
            else:
                began = time.monotonic()
                server.stop()
                print(f"the server's shutdown under load took {time.monotonic() - began:.2f} s")
                server.start()
        capture.wait(capture.receiver.streaming.is_set)
        load.__exit__(None, None, None)
        capture.catch_up()
        assert_replays(own_shop.uri, capture.log)


def test_a_connection_lost_inside_a_huge_transaction(
    shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_slot(shop.uri, slot_of(shop))
    shop.execute("INSERT INTO loose VALUES (1, 'before')")
    shop.execute(
        "INSERT INTO keyed SELECT i, 1, 'row ' || i, repeat('z', 100)"
        " FROM generate_series(1, 300000) i",
    )
    shop.execute("INSERT INTO loose VALUES (2, 'after')")
    capture = Capture(shop.uri, tmp_path / "log", slot=slot_of(shop))
    name, limit = "etl_replication_messages_total", 20_000.0

    def has_piece() -> bool:
        return capture.counted(name) > limit

    def has_room() -> bool:
        # What is read and not yet counted would make it more.
        return not has_piece() and capture.writer._queued_bytes == 0

    monkeypatch.setattr(capture.receiver, "_has_room", has_room)
    with capture:
        for _ in range(2):
            capture.wait(has_piece, what="a piece of it")
            assert capture.log.segments(capture.log.start, table=oid_of(shop, "keyed")) == []
            scalar(shop.uri, "SELECT pg_terminate_backend(%s)", walsender(shop))
            limit = capture.counted(name) + 20_000
        capture.wait(has_piece, what="another piece")
        limit = math.inf
        capture.catch_up()
        assert_replays(shop.uri, capture.log)
        # One segment, because one transaction; what was dropped has left nothing on the disk.
        assert len(capture.log.segments(capture.log.start, table=oid_of(shop, "keyed"))) == 1
        listed = {f.path for s in capture.log.segments(Lsn(0)) for f in s.files}
        files = {
            str(path.relative_to(capture.log.folder))
            for path in (capture.log.folder / "data").rglob("*.parquet")
        }
        assert files == listed


def test_a_connection_lost_inside_a_bulk_read(
    shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_slot(shop.uri, slot_of(shop))
    shop.execute(
        "DO $$ BEGIN FOR i IN 1..450 LOOP INSERT INTO keyed"
        " SELECT i * 1000 + j, 1, 'row', repeat('z', 300) FROM generate_series(1, 200) j; COMMIT;"
        " END LOOP; END $$"
    )
    capture = Capture(shop.uri, tmp_path / "log", slot=slot_of(shop), backlog_bytes=ALWAYS_BULK)
    lost: set[int] = set()

    def reading() -> set[int]:
        rows = shop.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND starts_with(query, 'COPY') AND state = 'active'"
        )
        return {pid for (pid,) in rows} - lost

    def has_room() -> bool:
        # A bulk read that has begun goes on when it is lost: it is more than sockets hold.
        return len(lost) == 2 or not reading()

    monkeypatch.setattr(capture.receiver, "_has_room", has_room)
    with capture:
        while len(lost) < 2:
            capture.wait(lambda: bool(reading()), what="a bulk read")
            (pid,) = reading()
            assert scalar(shop.uri, "SELECT pg_terminate_backend(%s)", pid) is True
            lost.add(pid)
        capture.catch_up()
        assert_replays(shop.uri, capture.log)


def oid_of(database: Database, table: str) -> int:
    return int(scalar(database.uri, "SELECT %s::regclass::oid", table))


def test_a_slot_that_another_process_reads(shop: Database, tmp_path: Path) -> None:
    make_slot(shop.uri, slot_of(shop))
    shop.execute("INSERT INTO loose VALUES (1, 'x')")
    with Replication(shop.uri, application_name="the other one") as other:
        other.start(slot_of(shop), Lsn(0), "p")
        with (
            Replication(shop.uri, application_name="test") as second,
            pytest.raises(SlotInUse, match="active"),
        ):
            second.start(slot_of(shop), Lsn(0), "p")
        with Capture(shop.uri, tmp_path / "log", slot=slot_of(shop)) as capture:
            time.sleep(0.5)
            assert not capture.receiver.streaming.is_set()
            capture.receiver.check()
            other.close()
            capture.catch_up()
            assert_replays(shop.uri, capture.log)


def test_an_error_of_the_writer_ends_the_receiver(shop: Database, tmp_path: Path) -> None:
    """Nothing is acknowledged that was not written, and the cause is what the caller sees."""
    with Capture(shop.uri, tmp_path / "log", slot=slot_of(shop)) as capture:
        capture.wait(capture.receiver.streaming.is_set)
        shop.execute("INSERT INTO loose VALUES (1, 'good')")
        capture.catch_up()
        end = capture.log.end
        # Nothing can be written where a file stands in the way of the folder.
        data = tmp_path / "log" / "data"
        data.rename(tmp_path / "aside")
        data.touch()
        shop.execute("INSERT INTO loose VALUES (2, 'bad')")
        wait_for(lambda: capture.receiver.error is not None, 90)
        with pytest.raises(LogError, match="data"):
            capture.receiver.check()
        data.unlink()
        (tmp_path / "aside").rename(data)
    position = slot_position(shop.uri, slot_of(shop))
    assert position is not None
    assert position <= capture.log.end
    assert capture.log.end >= end


# -- flow -----------------------------------------------------------------------------------------


def test_a_full_log_pauses_and_keeps_the_connection(own_shop: Database, tmp_path: Path) -> None:
    """The server's wal_sender_timeout is 2 s: ours, set for the session, must win."""
    with Capture(
        own_shop.uri,
        tmp_path / "log",
        slot=slot_of(own_shop),
        max_bytes=1 << 20,
        segment_bytes=1 << 18,
    ) as capture:
        capture.wait(capture.receiver.streaming.is_set)
        pid = walsender(own_shop)
        for batch in range(16):
            own_shop.execute(
                f"INSERT INTO keyed SELECT {batch} * 1000 + i, i, md5(i::text),"
                " (SELECT string_agg(md5((i * j)::text), '') FROM generate_series(1, 60) j)"
                " FROM generate_series(1, 1000) i"
            )
        written = current_position(own_shop.uri)
        capture.wait(lambda: not capture.log.has_room)
        # Longer than the server's timeout, and than the interval of our replies.
        time.sleep(6.5)
        assert capture.log.end < written
        stalled = capture.log.end
        assert capture.counted("etl_memory_backpressure") == 1 or not capture.log.has_room
        assert walsender(own_shop) == pid
        # Changes must be read before they are retired; then it goes on by itself.
        seen = 0
        deadline = time.monotonic() + 120
        while capture.log.end < written:
            assert time.monotonic() < deadline
            capture.receiver.check()
            for segment in capture.log.segments(Lsn(0)):
                seen += sum(file.stats.rows for file in segment.files)
                capture.log.retire(segment.span.upto, 0)
            time.sleep(0.02)
        seen += sum(f.stats.rows for s in capture.log.segments(Lsn(0)) for f in s.files)
        assert seen == 16_000
        assert capture.log.end > stalled
        assert walsender(own_shop) == pid


def test_an_idle_pipeline_lets_the_source_forget(shop: Database, tmp_path: Path) -> None:
    shop.execute("CREATE TABLE foreign_to_us (v text)")
    with Capture(shop.uri, tmp_path / "log", slot=slot_of(shop)) as capture:
        capture.wait(capture.receiver.streaming.is_set)
        for target in (shop.uri, shop.server.uri):
            if target == shop.server.uri:
                scalar(target, "SELECT pg_logical_emit_message(false, 'x', repeat('y', 100000))")
                scalar(target, "SELECT pg_switch_wal()")
            else:
                shop.execute("INSERT INTO foreign_to_us SELECT repeat('x', 5000)")
            written = current_position(target)
            capture.wait(
                lambda written=written: (slot_position(shop.uri, slot_of(shop)) or 0) >= written,  # type: ignore[misc]
                what="the slot follows without changes of ours",
            )
        assert capture.log.segments(Lsn(0)) == []
    # And the next start goes on from there, with nothing to read.
    with Capture(shop.uri, tmp_path / "log", slot=slot_of(shop)) as capture:
        shop.execute("INSERT INTO loose VALUES (1, 'x')")
        capture.catch_up()
        assert_replays(shop.uri, capture.log)


def test_a_shutdown_of_the_server_is_not_held_up(own_shop: Database, tmp_path: Path) -> None:
    with Capture(own_shop.uri, tmp_path / "log", slot=slot_of(own_shop)) as capture:
        capture.wait(capture.receiver.streaming.is_set)
        own_shop.execute("INSERT INTO loose VALUES (1, 'x')")
        capture.catch_up()
        for _ in range(2):
            began = time.monotonic()
            own_shop.server.stop()
            took = time.monotonic() - began
            print(f"the server's shutdown took {took:.2f} s")
            assert took < HELD_UP
            own_shop.server.start()
            capture.wait(lambda: walsender(own_shop) is not None)
    assert capture.receiver.error is None


@pytest.mark.parametrize("backlog_bytes", [LIVE_ONLY, ALWAYS_BULK], ids=["live", "bulk"])
def test_after_a_stream_that_came_on_the_waiting_starts_anew(
    own_shop: Database, tmp_path: Path, backlog_bytes: int
) -> None:
    """However short it was: it is no further attempt of those that failed before it."""

    def attempts() -> list[int]:
        return [line["attempt"] for line in lines if "attempt" in line]

    with (
        capture_logs() as lines,
        Capture(
            own_shop.uri, tmp_path / "log", slot=slot_of(own_shop), backlog_bytes=backlog_bytes
        ) as capture,
    ):
        capture.wait(capture.receiver.streaming.is_set)
        for number in range(2):
            own_shop.server.stop()
            capture.wait(lambda: max(attempts(), default=0) >= 3)
            own_shop.server.start()
            own_shop.execute(f"INSERT INTO loose VALUES ({number}, 'x')")
            capture.catch_up()
            capture.wait(capture.receiver.streaming.is_set)
            pid = walsender(own_shop)
            lines.clear()
            scalar(own_shop.uri, "SELECT pg_terminate_backend(%s)", pid)
            capture.wait(lambda pid=pid: walsender(own_shop) not in (pid, None))  # type: ignore[misc]
            # Whether there are any depends on how soon the slot is free again.
            after = attempts()
            assert after == list(range(1, len(after) + 1))
            lines.clear()


def test_an_idle_stream_is_one_that_came_on(own_shop: Database, tmp_path: Path) -> None:
    with (
        capture_logs() as lines,
        Capture(own_shop.uri, tmp_path / "log", slot=slot_of(own_shop)) as capture,
    ):
        capture.wait(capture.receiver.streaming.is_set)
        own_shop.server.stop()
        capture.wait(lambda: any(line.get("attempt", 0) >= 3 for line in lines))
        own_shop.server.start()
        capture.wait(capture.receiver.streaming.is_set)
        # It tells where we are each second, and is answered.
        before = capture.counted("etl_status_updates_total")
        capture.wait(lambda: capture.counted("etl_status_updates_total") >= before + 4)
        pid = walsender(own_shop)
        lines.clear()
        scalar(own_shop.uri, "SELECT pg_terminate_backend(%s)", pid)
        capture.wait(lambda: walsender(own_shop) not in (pid, None))
        assert "the source's stream ended; connecting again" in [line["event"] for line in lines]
        attempts = [line["attempt"] for line in lines if "attempt" in line]
        assert attempts == list(range(1, len(attempts) + 1))


def test_a_shutdown_that_meets_a_table_not_yet_described(
    own_shop: Database, tmp_path: Path
) -> None:
    """A server that shuts down waits for our acknowledgement, and tells us nothing any more."""
    with Capture(own_shop.uri, tmp_path / "log", slot=slot_of(own_shop), max_bytes=1) as capture:
        own_shop.execute("INSERT INTO loose VALUES (1, 'fills the log')")
        # From now on nothing more is read; without room alone a last reading may be under way.
        capture.wait(lambda: capture.counted("etl_memory_backpressure") == 1)
        own_shop.execute("INSERT INTO keyed VALUES (1, 1, 'first of its table', NULL)")
        stopping = threading.Thread(target=own_shop.server.stop)
        began = time.monotonic()
        stopping.start()
        time.sleep(0.5)
        capture.log.retire(capture.log.end, 0)
        stopping.join()
        assert time.monotonic() - began < HELD_UP
        own_shop.server.start()
        capture.wait(lambda: bool(capture.log.segments(capture.log.start)))
        (rows,) = changes(capture.log).values()
        assert [row["note"] for _, row in rows] == ["first of its table"]


def test_an_idle_receiver_costs_next_to_nothing(shop: Database, tmp_path: Path) -> None:
    with Capture(shop.uri, tmp_path / "log", slot=slot_of(shop)) as capture:
        capture.wait(capture.receiver.streaming.is_set)
        shares: list[float] = []
        # In a window there may be something left to do of the start, or a collection of garbage.
        while len(shares) < 5 and min(shares, default=1.0) >= 0.02:
            began, cpu = time.monotonic(), receiving_cpu()
            time.sleep(4)
            shares.append((receiving_cpu() - cpu) / (time.monotonic() - began))
    print(f"idle: {min(shares):.2%} of a core")
    assert min(shares) < 0.02


def receiving_cpu() -> float:
    """Of our threads alone: others of this process may have something to do."""
    ours = {t.native_id for t in threading.enumerate() if t.name.startswith("walflow-")}
    used = (thread for thread in psutil.Process().threads() if thread.id in ours)
    return sum(thread.user_time + thread.system_time for thread in used)


def test_a_stop_is_quick(shop: Database, tmp_path: Path) -> None:
    """Also while the server has very much to send, and while it is away."""
    make_slot(shop.uri, slot_of(shop))
    shop.execute("INSERT INTO loose SELECT i, 'x' FROM generate_series(1, 500000) i")
    for backlog_bytes in (LIVE_ONLY, ALWAYS_BULK):
        capture = Capture(
            shop.uri, tmp_path / "log", slot=slot_of(shop), backlog_bytes=backlog_bytes
        )
        with capture:
            time.sleep(0.7)
            began = time.monotonic()
        took = time.monotonic() - began
        assert took < 60, f"{took:.1f} s"
        assert capture.receiver.error is None
    wait_for(lambda: walsender(shop) is None, WAIT)


# -- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls_server() -> Iterator[EmbeddedPostgres]:
    from walflow.testing.postgres import available_versions

    able = [v for v in available_versions() if v >= 14 and EmbeddedPostgres(v).can_tls]
    if not able:
        pytest.skip("no Postgres here was built with OpenSSL: install Debian's postgresql package")
    with EmbeddedPostgres(max(able), tls=True) as server:
        yield server


@pytest.mark.parametrize("backlog_bytes", [LIVE_ONLY, ALWAYS_BULK], ids=["live", "bulk"])
@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_tls(tls_server: EmbeddedPostgres, tmp_path: Path, mode: str, backlog_bytes: int) -> None:
    for database in fresh_database(tls_server):
        database.execute(*MAKE)
        certificate = tmp_path / "root.crt"
        certificate.write_bytes(tls_server.root_certificate.read_bytes())
        extra = {} if mode == "require" else {"sslrootcert": str(certificate)}
        uri = tls_server.uri_for(database.name, sslmode=mode, **extra)
        slot = slot_of(database)
        make_slot(uri, slot)
        database.execute(
            "INSERT INTO keyed SELECT i, 1, 'row', repeat('z', 999) FROM generate_series(1, 2000) i"
        )
        with Capture(uri, tmp_path / "log", slot=slot, backlog_bytes=backlog_bytes) as capture:
            capture.wait(capture.receiver.streaming.is_set)
            encrypted = scalar(
                database.uri, "SELECT ssl FROM pg_stat_ssl WHERE pid = %s", walsender(database)
            )
            assert encrypted is True
            database.execute("UPDATE keyed SET n = 2")
            capture.catch_up()
            assert_replays(database.uri, capture.log)


def test_tls_that_cannot_be_verified(tls_server: EmbeddedPostgres, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.crt"
    command = ["openssl", "req", "-new", "-x509", "-nodes", "-days", "2", "-newkey", "rsa:2048"]
    command += ["-subj", "/CN=other", "-keyout", str(tmp_path / "key"), "-out", str(wrong)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    uri = tls_server.uri_for("postgres", sslmode="verify-full", sslrootcert=str(wrong))
    with pytest.raises(CannotConnect, match="certificate verify failed"):
        Replication(uri, application_name="test")
    with pytest.raises(CannotConnect, match="certificate verify failed"):
        connect(uri, application_name="test")


# -- processes of their own -----------------------------------------------------------------------


CHILD = Path(__file__).with_name("capturing_child.py")


def start_child(database: Database, folder: Path, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.pipeline.capturing_child"]
    command += [database.uri, str(folder), slot_of(database), *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=CHILD.parent.parent.parent
    )


def test_kill_at_any_moment(shop: Database, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    make_slot(shop.uri, slot_of(shop))
    with Load(shop.uri, pause=0.002) as load:
        for turn, seconds in enumerate((0.05, 0.3, 0.11, 0.7, 0.23, 0.5)):
            with start_child(shop, folder, ALWAYS_BULK if turn % 2 else LIVE_ONLY) as child:
                assert child.stdout is not None
                assert child.stdout.readline().strip() == "running"
                time.sleep(seconds)
                child.send_signal(signal.SIGKILL)
                child.wait(WAIT)
        assert load.transactions > 200
    # The server may take a moment to see that the last one is gone.
    with Capture(shop.uri, folder, slot=slot_of(shop)) as capture:
        capture.catch_up()
        assert_replays(shop.uri, capture.log)


LONG = bool(os.environ.get("WALFLOW_LONG"))


@pytest.mark.timeout(1800 if LONG else 900)
@pytest.mark.parametrize("path", ["live", "bulk"])
@pytest.mark.parametrize("workload", ["many rows", "large rows"])
def test_memory(database: Database, tmp_path: Path, workload: str, path: str) -> None:
    """However large a transaction is, receiving it takes less than 700 MB."""
    rows = 10_000_000 if LONG else 3_000_000 if path == "live" else 1_000_000
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, a int, b numeric(12,2), c text)",
        "ALTER TABLE t ALTER c SET STORAGE EXTERNAL",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    make_slot(database.uri, slot_of(database))
    if workload == "large rows":
        rows = 500
        database.execute(
            "INSERT INTO t SELECT i, 1, 2.5, repeat(md5(i::text), 32768)"
            f" FROM generate_series(1, {rows}) i"
        )
    else:
        database.execute(
            "INSERT INTO t SELECT i, i % 1000, i / 100.0, 'row number ' || i"
            f" FROM generate_series(1, {rows}) i"
        )
    backlog_bytes = LIVE_ONLY if path == "live" else ALWAYS_BULK
    with start_child(database, tmp_path / "log", backlog_bytes, rows) as child:
        output, _ = child.communicate(timeout=1500 if LONG else 800)
    assert child.returncode == 0
    peak = int(output.split()[-1])
    print(f"{workload}, {path}: {rows} rows in one transaction took {peak >> 20} MB at most")
    assert peak < 700 << 20
    log = ChangeLog.open(
        tmp_path / "log",
        LogIdentity("test", "test", slot_of(database)),
        start=Lsn(0),
        max_bytes=1 << 40,
        file_bytes=128 << 20,
    )
    try:
        (segment,) = log.segments(Lsn(0))
        assert sum(file.stats.rows for file in segment.files) == rows
    finally:
        log.close()


def test_threads_end(shop: Database, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with Capture(shop.uri, tmp_path / "log", slot=slot_of(shop)) as capture:
        capture.wait(capture.receiver.streaming.is_set)
    left = [t for t in threading.enumerate() if t not in before and t.is_alive()]
    assert left == []
