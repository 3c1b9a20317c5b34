"""The embedded server: it answers, it survives, and it never outlives its owner."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Database
from walflow.errors import PostgresMissing
from walflow.testing.postgres import EmbeddedPostgres, available_versions


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


def test_every_version_answers_and_logs_for_logical_replication(
    any_postgres: EmbeddedPostgres,
) -> None:
    with any_postgres.connect() as connection:
        assert connection.info.server_version // 10000 == any_postgres.version
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
        assert connection.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)
        connection.execute("SELECT pg_create_logical_replication_slot('probe', 'pgoutput', true)")


def test_client_programs_run_against_every_version(any_postgres: EmbeddedPostgres) -> None:
    answer = subprocess.run(
        [any_postgres.psql, any_postgres.uri, "-XAtc", "select 41 + 1"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.stdout.strip() == "42"
    for tool in (any_postgres.pgbench, any_postgres.pg_recvlogical):
        subprocess.run([tool, "--version"], check=True, capture_output=True, timeout=60)


def test_a_database_is_empty_and_goes_with_its_slots_and_roles(database: Database) -> None:
    uri = database.replicator("GRANT CREATE ON SCHEMA public TO {role}")
    with psycopg.connect(uri) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('left_over', 'pgoutput')")
        assert connection.execute("SELECT current_database()").fetchone() == (database.name,)


def test_data_survive_a_restart_and_a_crash() -> None:
    with EmbeddedPostgres(settings={"max_connections": 33}) as server:
        with server.connect() as connection:
            assert connection.execute("SHOW max_connections").fetchone() == ("33",)
            connection.execute("CREATE TABLE kept AS SELECT 1 AS value")
        port = server.port
        server.restart()
        with server.connect() as connection:
            connection.execute("UPDATE kept SET value = 2")
        server.crash()
        assert not server.running
        server.start()
        assert server.port == port
        with server.connect() as connection:
            assert connection.execute("SELECT value FROM kept").fetchone() == (2,)
        folder, pid = server.folder, server.pid
        assert folder is not None
        assert pid is not None
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()
    assert wait_gone(pid)


def test_it_lives_on_when_the_thread_that_started_it_ends() -> None:
    server = EmbeddedPostgres()
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    try:
        time.sleep(0.3)
        with server.connect() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        server.remove()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Not pytest's own, which is closed to the account that root's servers run as."""
    folder = Path(tempfile.mkdtemp(prefix="walflow-test-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root's servers run under another account: run as root"
)
@pytest.mark.parametrize("version", available_versions())
def test_programs_that_its_account_cannot_reach_are_copied(
    monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """As those of an environment in root's home are, with the libraries that a wheel brings."""
    monkeypatch.setattr("walflow.testing.postgres.may_enter", lambda *_: False)
    with EmbeddedPostgres(version) as server, server.connect() as connection:
        assert server.folder is not None
        assert list(server.folder.glob("install/**/bin/postgres"))
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a child of its parent's death"
)
def test_it_dies_with_an_owner_that_is_killed(open_folder: Path) -> None:
    script = (
        "import time; from walflow.testing.postgres import EmbeddedPostgres\n"
        "server = EmbeddedPostgres(); server.start(); print(server.pid, flush=True)\n"
        "time.sleep(600)"
    )
    environment = os.environ | {"TMPDIR": str(open_folder)}
    owner = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert owner.stdout is not None
    with owner.stdout:
        pid = int(owner.stdout.readline())
        assert is_alive(pid)
        owner.send_signal(signal.SIGKILL)
        owner.wait(60)
    assert wait_gone(pid)


def test_tls_with_a_certificate_that_is_checked() -> None:
    able = [major for major in available_versions() if EmbeddedPostgres(major).can_tls]
    if not able:
        pytest.skip("no Postgres here has OpenSSL in it; run: python tests/fetch_postgres.py 17")
    with EmbeddedPostgres(able[-1], tls=True) as server:
        uri = server.uri_for(
            "postgres", sslmode="verify-full", sslrootcert=str(server.root_certificate)
        )
        with psycopg.connect(uri) as connection:
            assert connection.execute(
                "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
            ).fetchone() == (True,)


def test_an_unknown_version_says_how_to_get_it() -> None:
    with pytest.raises(PostgresMissing) as raised:
        EmbeddedPostgres(99)
    assert "fetch_postgres.py 99" in raised.value.hint


def test_a_server_that_cannot_start_shows_its_log() -> None:
    server = EmbeddedPostgres(settings={"no_such_setting": 1})
    try:
        with pytest.raises(Exception, match="no_such_setting"):
            server.start()
    finally:
        server.remove()
