"""The embedded Redis: it answers, it survives, and it never outlives its owner."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import redis

from walflow.errors import StoreError
from walflow.testing.redis import EmbeddedRedis, find_redis_server


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # as it ends before it is opened, or read
        return False


def wait_gone(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_alive(pid)


def test_data_survive_a_restart_and_a_kill() -> None:
    with EmbeddedRedis(settings={"databases": 5}) as server:
        port = server.port
        with server.connect(4) as client:
            assert client.config_get("databases") == {"databases": "5"}
            client.set("kept", "1")
        server.restart()
        with server.connect(4) as client:
            client.incr("kept")
        server.crash()
        assert not server.running
        server.start()
        assert server.port == port
        with server.connect(4) as client:
            assert client.get("kept") == "2"
        folder, pid = server.folder, server.pid
        assert folder is not None
        assert pid is not None
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "redis.conf").stat().st_mode) == 0o600
    assert not folder.exists()
    assert wait_gone(pid)


def test_it_asks_for_its_password_on_both_ways_in() -> None:
    with EmbeddedRedis(password='a "b" \\c:/@') as server:
        for uri in (server.uri, server.socket_uri):
            with redis.Redis.from_url(uri) as client:
                assert client.ping()
        with (
            redis.Redis.from_url(server.uri_for(0, password="wrong")) as client,
            pytest.raises(redis.AuthenticationError),
        ):
            client.ping()
    with (
        EmbeddedRedis(password="") as server,
        redis.Redis(port=server.port) as client,
        redis.Redis.from_url(server.socket_uri) as local,
    ):
        assert client.ping()
        assert local.ping()


def test_it_lives_on_when_the_thread_that_started_it_ends() -> None:
    server = EmbeddedRedis()
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    try:
        time.sleep(0.3)
        with server.connect() as client:
            assert client.ping()
    finally:
        server.remove()


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a child of its parent's death"
)
def test_it_dies_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import time; from walflow.testing.redis import EmbeddedRedis\n"
        "server = EmbeddedRedis(); server.start(); print(server.pid, flush=True)\n"
        "time.sleep(600)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert owner.stdout is not None
    with owner.stdout:
        pid = int(owner.stdout.readline())
        assert is_alive(pid)
        owner.send_signal(signal.SIGKILL)
        owner.wait(60)
    assert wait_gone(pid)


def test_a_server_that_cannot_start_shows_its_log_and_leaves_nothing() -> None:
    server = EmbeddedRedis(settings={"no-such-setting": 1})
    with pytest.raises(StoreError, match="no-such-setting"), server:
        pytest.fail("it has started")
    assert not server.running
    assert server.folder is None


def test_a_program_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALFLOW_REDIS_SERVER", "/no/such/redis-server")
    with pytest.raises(StoreError, match="/no/such/redis-server") as raised:
        find_redis_server()
    assert "WALFLOW_REDIS_SERVER" in raised.value.hint
