"""The store in Redis keeps the contract, on a server that is killed, shared, or set up badly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from structlog.testing import capture_logs

from tests.pipeline.capturing import wait_for
from tests.pipeline.running import WAIT
from tests.stores.redis_proxy import make_certificate, proxy_to
from walflow.errors import BadUri, LeaseLost, PipelineInUse, StoreError, StoreForeign
from walflow.model import Lsn, Phase, TableName
from walflow.stores.base import Action, Holder, Report, Request
from walflow.stores.redis import RedisStore
from walflow.stores.redis_connection import RedisConnection
from walflow.testing.redis import EmbeddedRedis
from walflow.testing.store_samples import ERRORED, ITEMS, ORDERS, SCHEMA, SINCE, WAY, state_of
from walflow.testing.stores import OpenStore, StoreContract

ASKED = Request("r1", TableName("shop", "orders"), Action.RESYNC, SINCE)
ME, OTHER = Holder("me", "host", 1), Holder("other", "host", 2)


@pytest.fixture(scope="module")
def shared_server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def server(shared_server: EmbeddedRedis) -> EmbeddedRedis:
    """Running, and empty."""
    shared_server.start()
    with shared_server.connect() as client:
        client.flushall()
    return shared_server


@pytest.fixture
def store(server: EmbeddedRedis) -> Iterator[RedisStore]:
    opened = RedisStore(server.uri, "p")
    yield opened
    opened.close()


class TestRedisStore(StoreContract):
    @pytest.fixture
    def open_store(self, shared_server: EmbeddedRedis) -> OpenStore:
        return lambda pipeline: RedisStore(shared_server.uri, pipeline)


class TestRedisStoreThroughItsSocket(StoreContract):
    """Also with a prefix that a search for keys would take for a pattern."""

    @pytest.fixture
    def open_store(self, shared_server: EmbeddedRedis) -> OpenStore:
        return lambda pipeline: RedisStore(shared_server.socket_uri, pipeline, "[e*]?\\:")


def everything(uri: str, pipeline: str) -> dict[str, Any]:
    """All that a store remembers, read by one that has just been opened."""
    store = RedisStore(uri, pipeline)
    try:
        lease = store.get_lease()
        return {
            "states": store.get_table_replication_states(),
            "histories": [store.get_table_replication_history(t) for t in (ORDERS, ITEMS)],
            "schemas": [store.get_table_schema(ORDERS, Lsn(at)) for at in (1, 10, 1 << 50)],
            "mappings": store.get_table_mappings(),
            "lease": None if lease is None else (lease.holder, lease.report),
            "requests": (store.open_requests(), store.get_request("r1"), store.get_request("r2")),
        }
    finally:
        store.close()


def keys_of(server: EmbeddedRedis) -> dict[bytes, bytes]:
    """All keys, with their values as the server dumps them."""
    client: Any
    with redis.Redis.from_url(server.uri) as client:
        return {key: client.dump(key) for key in client.keys("*")}


# -- a server that goes and comes ---------------------------------------------------------------


def test_what_was_answered_survives_the_kill_of_the_server(server: EmbeddedRedis) -> None:
    store = RedisStore(server.uri, "p")
    report = Report(Lsn(1 << 40), Lsn(2), Lsn(3), 0.5, SINCE)
    steps: list[Callable[[], object]] = [
        lambda: store.update_table_replication_states({ORDERS: WAY[0], ITEMS: WAY[0]}),
        lambda: store.update_table_replication_state(ORDERS, ERRORED),
        lambda: store.update_table_replication_state(ITEMS, WAY[1]),
        lambda: store.rollback_table_replication_state(ITEMS),
        lambda: store.store_table_schema(SCHEMA),
        lambda: store.store_table_mapping(ORDERS, TableName("lake", "orders")),
        lambda: store.acquire_lease(ME, 600),
        lambda: store.renew_lease(ME, 600, report),
        lambda: store.put_request(ASKED),
        lambda: store.finish_request("r1", "copied\nagain"),
    ]
    for step in steps:
        step()
        before = everything(server.uri, "p")
        server.crash()
        server.start()
        assert everything(server.uri, "p") == before
    assert before["histories"] == [[WAY[0], ERRORED], [WAY[0]]]
    assert before["lease"] == (ME, report)
    assert before["requests"][1].outcome == "copied\nagain"
    store.close()


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer to start a server, or to wake it, than anybody is patient."""
    defaults = RedisConnection.ask.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "patience", float(WAIT))


def test_a_server_that_restarts_is_waited_for(
    server: EmbeddedRedis, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_patient(monkeypatch)
    store.acquire_lease(ME, 600)
    server.crash()
    restart = threading.Timer(1.0, server.start)
    restart.start()
    try:
        store.update_table_replication_state(ORDERS, ERRORED)
    finally:
        restart.join()
    assert store.get_table_replication_history(ORDERS) == [ERRORED]
    store.renew_lease(ME, 600)


def test_a_server_that_stays_away_is_an_error_until_it_is_back(
    server: EmbeddedRedis, store: RedisStore
) -> None:
    store.update_table_replication_state(ORDERS, WAY[0])
    server.crash()
    with pytest.raises(StoreError, match="refused") as raised:
        store.update_table_replication_states({ORDERS: ERRORED, ITEMS: ERRORED})
    assert raised.value.retry
    assert "server runs" in raised.value.hint
    with pytest.raises(StoreError, match="refused"):
        RedisStore(server.uri, "p")
    assert store.get_table_replication_states() == {ORDERS: WAY[0]}
    server.start()
    store.update_table_replication_state(ORDERS, ERRORED)
    assert store.get_table_replication_history(ORDERS) == [WAY[0], ERRORED]


def test_a_server_that_hangs_is_an_error_too(
    server: EmbeddedRedis, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreError, match="Timeout"):
            store.store_table_mapping(ORDERS, TableName("lake", "orders"))
        assert store.get_table_mappings() == {}
        with pytest.raises(StoreError, match="Timeout"):
            RedisStore(f"{server.uri}?socket_timeout=0.3", "p")
    finally:
        os.kill(pid, signal.SIGCONT)
    be_patient(monkeypatch)
    store.store_table_mapping(ORDERS, TableName("lake", "items"))
    assert everything(server.uri, "p")["mappings"] == {ORDERS: TableName("lake", "items")}


def test_what_is_asked_again_after_a_lost_answer_is_done_once(server: EmbeddedRedis) -> None:
    with proxy_to(server.port) as proxy:
        store = RedisStore(server.uri.replace(str(server.port), str(proxy.port)), "p")
        for table in (ORDERS, ITEMS):
            for state in WAY:
                store.update_table_replication_state(table, state)
        # The server knows the script from now on, so the next call is one question.
        store.rollback_table_replication_state(ITEMS)
        proxy.lose_answer_to(str(ORDERS).encode())
        assert store.rollback_table_replication_state(ORDERS) == WAY[-2]
        assert proxy.lost.is_set()
        assert store.get_table_replication_history(ORDERS) == WAY[:-1]

        proxy.lose_answer_to(str(ORDERS).encode())
        store.update_table_replication_state(ORDERS, ERRORED)
        assert proxy.lost.is_set()
        assert store.get_table_replication_history(ORDERS) == [*WAY[:-1], ERRORED]
        # A second call is a second rollback.
        assert store.rollback_table_replication_state(ORDERS) == WAY[-2]
        assert store.rollback_table_replication_state(ORDERS) == WAY[-3]
        store.close()


def test_a_finished_request_is_not_opened_again(store: RedisStore) -> None:
    store.put_request(ASKED)
    store.finish_request("r1", "done")
    store.put_request(ASKED)
    assert store.open_requests() == []
    request = store.get_request("r1")
    assert request is not None
    assert request.outcome == "done"


def test_finished_requests_are_forgotten_after_a_day(
    server: EmbeddedRedis, store: RedisStore
) -> None:
    for id in ("old", "new"):
        store.put_request(Request(id, ASKED.table, ASKED.action, SINCE))
        store.finish_request(id, "done")
    with server.connect() as client:
        client.zincrby("etl:p:finished_at", -24 * 60 * 60 * 1000, "old")
    store.put_request(ASKED)
    assert store.get_request("old") is None
    assert store.get_request("new") is not None
    with server.connect() as client:
        assert client.zcard("etl:p:finished_at") == client.hlen("etl:p:finished") == 1


# -- several processes --------------------------------------------------------------------------

_MOVES = 25
_MOVING = f"""
import sys
from walflow.stores.redis import RedisStore
from walflow.model import Phase
from walflow.testing.store_samples import state_of
uri, first = sys.stdin.readline().strip(), int(sys.argv[1])
store = RedisStore(uri, "p")
print("ready", flush=True)
sys.stdin.readline()
for step in range(first, first + {_MOVES}):
    store.update_table_replication_states({{t: state_of(Phase.READY, step) for t in (1, 2)}})
store.close()
"""
_HOLDING = """
import sys, time
from walflow.stores.base import Holder
from walflow.stores.redis import RedisStore
store = RedisStore(sys.stdin.readline().strip(), "p")
store.acquire_lease(Holder(sys.argv[1], "host", 1), 3600)
print("ready", flush=True)
while True:
    store.renew_lease(Holder(sys.argv[1], "host", 1), 3600)
    time.sleep(0.1)
"""


def start_child(script: str, argument: str, uri: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", script, argument],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    child.stdin.write(uri + "\n")
    child.stdin.flush()
    return child


def wait_ready(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"


def test_moves_of_two_processes_are_all_history(server: EmbeddedRedis, store: RedisStore) -> None:
    children = [start_child(_MOVING, str(n * _MOVES), server.uri) for n in range(2)]
    for child in children:
        wait_ready(child)
    for child in children:
        child.communicate("go\n", timeout=WAIT)
        assert child.returncode == 0
    histories = [store.get_table_replication_history(table) for table in (1, 2)]
    # Both tables moved together in each step, so in the same order.
    assert histories[0] == histories[1]
    assert sorted(state.since for state in histories[0]) == [
        SINCE + step for step in range(2 * _MOVES)
    ]


def test_a_killed_process_loses_its_lease(server: EmbeddedRedis, store: RedisStore) -> None:
    child = start_child(_HOLDING, "child", server.uri)
    try:
        wait_ready(child)
        with pytest.raises(PipelineInUse, match="process 1 on host"):
            store.acquire_lease(OTHER, 60)
    finally:
        child.kill()
        child.communicate(timeout=WAIT)
    # It dies with a lease that a machine that stands still does not use up. Now it runs out soon.
    store.acquire_lease(Holder("child", "host", 1), 0.5)

    def has_run_out() -> bool:
        lease = store.get_lease()
        assert lease is not None
        assert lease.holder.id == "child"
        return lease.seconds_left <= 0

    wait_for(has_run_out, WAIT)
    store.acquire_lease(OTHER, 60)
    with pytest.raises(LeaseLost, match="process 2 on host"):
        store.renew_lease(Holder("child", "host", 1), 60)


# -- neighbours and strangers -------------------------------------------------------------------


def test_dropping_touches_nothing_else(server: EmbeddedRedis) -> None:
    def fill(store: RedisStore) -> None:
        for table in (ORDERS, ITEMS):
            for state in (*WAY, ERRORED):
                store.update_table_replication_state(table, state)
            store.rollback_table_replication_state(table)
            store.store_table_mapping(table, TableName("lake", str(table)))
        store.store_table_schema(SCHEMA)
        store.acquire_lease(ME, 600)
        store.put_request(ASKED)
        store.put_request(Request("r2", ASKED.table, ASKED.action, SINCE))
        store.finish_request("r2", "done")
        store.close()

    with server.connect() as client:
        client.set("etl:", "a")
        client.set("etl:a", "b")
        client.set("etl:a:", "c")
        client.set("etl:a:states:mine", "d")
        client.set("etl:ab:states", "e")
    with server.connect(3) as client:
        client.set("etl:a:states", "f")
    neighbours = [("a:b", "etl:"), ("a:states", "etl:"), ("states", "etl:a:"), ("a", "etl:a:")]
    neighbours += [("*", "etl:"), ("A", "etl:"), ("a%3Ab", "etl:"), ("a", "")]
    for pipeline, prefix in neighbours:
        fill(RedisStore(server.uri, pipeline, prefix))
    before = keys_of(server)
    assert len(before) == 5 + 10 * len(neighbours)
    fill(RedisStore(server.uri, "a"))
    assert len(keys_of(server)) == len(before) + 10
    gone = RedisStore(server.uri, "a")
    gone.drop()
    # What a process does after it has dropped a pipeline leaves nothing behind either.
    gone.release_lease(ME)
    gone.finish_request("r1", "done")
    gone.cleanup_table_state(ORDERS)
    gone.close()
    assert keys_of(server) == before
    with server.connect(3) as client:
        assert client.get("etl:a:states") == "f"


@pytest.mark.parametrize("format", ["1", "3"])
def test_another_format_is_left_alone(
    server: EmbeddedRedis, store: RedisStore, format: str
) -> None:
    store.update_table_replication_state(ORDERS, WAY[0])
    with server.connect() as client:
        client.set("etl:p:format", format)
    before = keys_of(server)
    with pytest.raises(StoreForeign, match=format):
        RedisStore(server.uri, "p")
    writes: list[Callable[[], None]] = [
        lambda: store.update_table_replication_state(ORDERS, ERRORED),
        lambda: store.store_table_mapping(ORDERS, TableName("a", "b")),
        lambda: store.cleanup_table_state(ORDERS),
        lambda: store.acquire_lease(ME, 1),
        lambda: store.put_request(ASKED),
    ]
    for write in writes:
        with pytest.raises(StoreForeign, match=format):
            write()
    assert keys_of(server) == before
    assert store.get_table_replication_states() == {ORDERS: WAY[0]}


@pytest.mark.parametrize(
    "command",
    [
        ("SET", "etl:p:states", "text"),
        ("HSET", "etl:p:states", "1", "Ready 1.0 {}"),
        ("HSET", "etl:p:schemas", "1:1", "not json"),
        ("HSET", "etl:p:mappings", "1", b"\xff"),
        ("HSET", "etl:p:mappings", "one", '{"schema": "a", "name": "b"}'),
    ],
)
def test_entries_of_something_else_are_told(
    server: EmbeddedRedis, command: tuple[str | bytes, ...]
) -> None:
    client: Any
    with server.connect() as client:
        client.execute_command(*command)
    with pytest.raises(StoreForeign) as raised:
        RedisStore(server.uri, "p")
    assert "store.redis_prefix" in raised.value.hint


def test_any_text_is_kept(store: RedisStore) -> None:
    name = TableName("a b\n\t", "é\u2028\x00")
    state = state_of(Phase.READY)
    odd = type(state)(table=name, phase=Phase.READY, since=0)
    for each in (state, odd, state):
        store.update_table_replication_state(ORDERS, each)
    assert store.get_table_replication_history(ORDERS) == [state, odd, state]
    store.store_table_mapping(ORDERS, name)
    assert store.load_table_mappings() == 1
    assert store.get_table_mapping(ORDERS) == name


# -- addresses, rights and warnings -------------------------------------------------------------


def shown(error: BaseException) -> str:
    """Everything that could be printed of it."""
    hint = error.hint if isinstance(error, StoreError | BadUri) else ""
    return repr(error) + hint + "".join(traceback.format_exception(error))


SECRET = "s3cr:t/w@rd"


def test_no_error_shows_the_password(server: EmbeddedRedis) -> None:
    uris = [
        f"redis://:{SECRET}@127.0.0.1:{server.port}/0",
        f"redis://me:{quote(SECRET, safe='')}@127.0.0.1:1/0",
        f"redis://me:{quote(SECRET, safe='')}@no-such-host.invalid/0",
        f"rediss://:{SECRET}@127.0.0.1:{server.port}/0?socket_timeout=nonsense",
        f"http://:{SECRET}@127.0.0.1:{server.port}/0",
        server.uri_for(0, password=SECRET),
        server.uri_for(0, user="me", password=SECRET),
        f"{server.socket_uri.partition('?')[0]}?password={SECRET}",
        f"unix:///no/such/socket?password={SECRET}",
        f"{server.uri_for(0, password=SECRET)}&no_such_option=1",
        f"{server.uri_for(0, password=SECRET)}?no_such_option=1",
    ]
    for uri in uris:
        with pytest.raises((StoreError, BadUri)) as raised:
            RedisStore(uri, "p")
        for piece in (SECRET, "s3cr", "w@rd", "w%40rd"):
            assert piece not in shown(raised.value), uri
        assert raised.value.hint


def test_a_server_that_repeats_the_login_does_not_give_it_away() -> None:
    with EmbeddedRedis(password=SECRET, settings={"rename-command": 'HELLO ""'}) as server:
        with pytest.raises(StoreError, match=r"\*\*\*") as raised:
            RedisStore(f"{server.uri}?protocol=3", "p")
        assert SECRET not in shown(raised.value)
        # Which is how such a server is used.
        RedisStore(f"{server.uri}?protocol=2", "p").close()


def test_the_rights_that_the_hint_names_are_enough(server: EmbeddedRedis) -> None:
    with pytest.raises(StoreError) as raised:
        RedisStore(server.uri_for(0, user="walflow", password="wrong"), "p")
    rights = raised.value.hint.partition("ACL SETUSER <user> ")[2]
    assert rights
    client: Any
    with server.connect() as client:
        words = rights.replace("<store.redis_prefix>", "etl:").split()
        client.execute_command("ACL", "SETUSER", "walflow", *words)
        try:
            uri = server.uri_for(0, user="walflow", password="password")
            with capture_logs() as logs:
                store = RedisStore(uri, "p")
            # Such a user may not see the settings, so nothing is said of them.
            assert logs == []
            store.acquire_lease(ME, 60)
            store.update_table_replication_state(ORDERS, WAY[0])
            store.update_table_replication_state(ORDERS, WAY[1])
            store.rollback_table_replication_state(ORDERS)
            store.put_request(ASKED)
            store.finish_request("r1", "done")
            assert everything(uri, "p")["histories"][0] == [WAY[0]]
            store.drop()
            store.close()
            with pytest.raises(StoreError) as refused:
                RedisStore(uri, "p", "other:")
            assert "ACL SETUSER" in refused.value.hint
        finally:
            client.execute_command("ACL", "DELUSER", "walflow")


@pytest.mark.parametrize(
    ("settings", "warnings"),
    [
        ({}, []),
        ({"appendonly": False, "save": "60 1"}, []),
        ({"appendonly": False}, ["keeps nothing on disk"]),
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, ["memory is short"]),
        ({"maxmemory": "100mb", "maxmemory-policy": "volatile-lru"}, []),
        ({"maxmemory-policy": "allkeys-random"}, []),
    ],
)
def test_a_server_that_may_lose_everything_is_told_once(
    settings: dict[str, str | int | bool], warnings: list[str]
) -> None:
    with EmbeddedRedis(settings=settings) as server, capture_logs() as logs:
        store = RedisStore(server.uri, "p")
        store.acquire_lease(ME, 60)
        store.close()
        assert len(logs) == len(warnings)
        for entry, words in zip(logs, warnings, strict=True):
            assert words in entry["event"]
            assert entry["log_level"] == "warning"
            assert server.password not in str(entry)


def test_tls_with_a_certificate_that_is_checked(server: EmbeddedRedis, tmp_path: Path) -> None:
    context, certificate = make_certificate(tmp_path)
    with proxy_to(server.port, context) as proxy:
        uri = f"rediss://:{server.password}@127.0.0.1:{proxy.port}/0"
        store = RedisStore(f"{uri}?ssl_ca_certs={certificate}", "p")
        store.update_table_replication_state(ORDERS, ERRORED)
        store.close()
        with pytest.raises(StoreError, match="certificate verify failed"):
            RedisStore(uri, "p")
    assert everything(server.uri, "p")["states"] == {ORDERS: ERRORED}
