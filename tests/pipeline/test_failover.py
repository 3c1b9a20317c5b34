"""Another server takes over: with all that its predecessor had, or without the tail of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SUPPORTED_VERSIONS, Database
from tests.pipeline.capturing import Capture, changes, scalar
from walflow.changelog.durable import sealed
from walflow.errors import PostgresMissing, SlotLost
from walflow.model import Lsn
from walflow.source.catalog.server import switch_points, timeline_loss
from walflow.testing.postgres import EmbeddedPostgres


@pytest.fixture(params=(SUPPORTED_VERSIONS[0], SUPPORTED_VERSIONS[-1]), ids="postgres{}".format)
def source(request: pytest.FixtureRequest) -> Iterator[Database]:
    try:
        server = EmbeddedPostgres(request.param)
    except PostgresMissing as missing:
        pytest.skip(f"{missing} {missing.hint}")
    with server:
        database = Database(server, "postgres")
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION p FOR TABLE t"
        )
        yield database


def copy_of(server: EmbeddedPostgres, name: str) -> Path:
    """What a standby has that hears nothing from now on, slots included."""
    assert server.folder is not None
    server.stop()
    subprocess.run(["cp", "-a", server.folder / "data", server.folder / name], check=True)
    server.start()
    return server.folder / name


def take_over(server: EmbeddedPostgres, standby: Path | None = None) -> None:
    """Promote the standby (None: one that has all) in the place of the server."""
    assert server.folder is not None
    server.stop()
    data = server.folder / "data"
    if standby is not None:
        data.rename(server.folder / "before")
        standby.rename(data)
    (data / "standby.signal").touch()
    server.start()
    assert scalar(server.uri, "SELECT pg_promote()")
    assert not scalar(server.uri, "SELECT pg_is_in_recovery()")


def values(capture: Capture) -> list[str]:
    return [row["v"] for pairs in changes(capture.log).values() for _, row in pairs]


def test_a_server_that_has_all_goes_on(source: Database, tmp_path: Path) -> None:
    with Capture(source.uri, tmp_path / "log", slot="s") as capture:
        source.execute("INSERT INTO t VALUES (1, 'before')")
        capture.catch_up()
        assert capture.log.timeline == 1
        # While it runs, and once more while it does not.
        take_over(source.server)
        source.execute("INSERT INTO t VALUES (2, 'between')")
        capture.catch_up()
        assert capture.log.timeline == 2
    take_over(source.server)
    with Capture(source.uri, tmp_path / "log", slot="s") as capture:
        source.execute("INSERT INTO t VALUES (3, 'after')")
        capture.catch_up()
        assert values(capture) == ["before", "between", "after"]
        assert capture.log.timeline == 3


def test_a_server_that_lacked_the_tail_is_seen_however_far_it_is(
    source: Database, tmp_path: Path
) -> None:
    with Capture(source.uri, tmp_path / "log", slot="s") as capture:
        source.execute("INSERT INTO t VALUES (1, 'both')")
        capture.catch_up()
    standby = copy_of(source.server, "standby")
    with Capture(source.uri, tmp_path / "log", slot="s") as capture:
        source.execute("INSERT INTO t VALUES (2, 'lost')")
        end = capture.catch_up()
    take_over(source.server, standby)
    # By now its log is longer than the one that was read.
    source.execute(
        "INSERT INTO t VALUES (2, 'another')",
        "CREATE TABLE filler AS SELECT generate_series(1, 20000) AS i",
    )
    assert Lsn.parse(scalar(source.uri, "SELECT pg_current_wal_lsn()::text")) > end
    with (
        pytest.raises(SlotLost, match="took over at") as lost,
        Capture(source.uri, tmp_path / "log", slot="s") as capture,
    ):
        capture.wait(lambda: False, 60)
    assert "on_slot_lost: resync" in lost.value.hint
    # Whoever copies all again begins a log of the new timeline.
    capture = Capture(source.uri, tmp_path / "log", slot="s")
    # What is not flushed yet is not there for who reads.
    capture.log.restart(Lsn.parse(scalar(source.uri, "SELECT pg_current_wal_flush_lsn()::text")))
    with capture:
        source.execute("INSERT INTO t VALUES (3, 'new')")
        capture.catch_up()
        assert values(capture) == ["new"]
        assert capture.log.timeline == 2


def test_a_log_that_knows_no_timeline_takes_the_present_one(
    source: Database, tmp_path: Path
) -> None:
    take_over(source.server)
    with Capture(source.uri, tmp_path / "log", slot="s") as capture:
        capture.catch_up()
    head = tmp_path / "log" / "log.json"
    raw = json.loads(head.read_text())
    assert raw.pop("timeline") == 2
    del raw["checksum"]
    head.write_bytes(sealed(raw))
    capture = Capture(source.uri, tmp_path / "log", slot="s")
    assert capture.log.timeline is None
    with capture:
        capture.catch_up()
        assert capture.log.timeline == 2


def test_histories() -> None:
    history = (
        "1\t0/3000000\tno recovery target specified\n"
        "# a comment\n\n"
        '2\t1/5000000\tat restore point "x"\n'
    )
    switched = switch_points(history)
    assert switched == {1: Lsn.parse("0/3000000"), 2: Lsn.parse("1/5000000")}
    assert timeline_loss(2, 3, switched, Lsn.parse("1/5000000")) is None
    lost = timeline_loss(2, 3, switched, Lsn.parse("1/5000001"))
    assert lost is not None
    assert "took over at 1/5000000" in lost.message
    # One that is not among its ancestors: a restored server, or a sibling.
    assert timeline_loss(4, 3, switched, Lsn.parse("0/1")) is not None
    assert timeline_loss(2, 1, {}, Lsn.parse("0/1")) is not None
