"""Sending to a web service: what is sent, when it is sent again, and what is never shown."""

from __future__ import annotations

import datetime
import email.utils
import gzip
import json
import threading
import time
import traceback
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import httpx
import pyarrow as pa
import pytest

from tests.conftest import Database
from tests.destinations.http_server import Answer, HttpTables, Received
from tests.pipeline.capturing import wait_for
from tests.pipeline.following import wait_phase
from tests.pipeline.running import WAIT, catch_up, in_source, running, settings_for
from walflow.destinations.base import Capabilities
from walflow.destinations.http import (
    SIGNATURE_HEADER,
    HttpDestination,
    HttpOptions,
    is_signed,
    signature,
)
from walflow.destinations.http.typed_json import json_values
from walflow.destinations.own import adapted
from walflow.errors import BadUri, ConfigError, DestinationError
from walflow.model import Phase, TableName, TableSchema
from walflow.testing.sources import make_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = make_schema({"id": "int", "v": "string"}, ["id"], "a/b t", "größe")
QUICK = HttpOptions(secret="s3cret", retry_delay_ms=1, retry_attempts=3)


@pytest.fixture
def service() -> Iterator[HttpTables]:
    with HttpTables(secret="s3cret") as service:
        yield service


@pytest.fixture
def destination(service: HttpTables) -> Iterator[HttpDestination]:
    destination = HttpDestination(service.uri, QUICK)
    yield destination
    destination.shutdown()


def rows(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int32()), "v": [f"v{id}" for id in ids]})


def inserts(*ids: int) -> pa.RecordBatch:
    count = len(ids)
    return pa.record_batch(
        {
            "_change_type": ["insert"] * count,
            "_lsn": pa.array([100] * count, pa.int64()),
            "_seq": pa.array(range(count), pa.int64()),
            "_timestamp": pa.array([0] * count, pa.timestamp("us", "UTC")),
            "_xid": pa.array([7] * count, pa.int64()),
            "_unchanged": pa.array([None] * count, pa.list_(pa.string())),
            "_old": pa.array([None] * count, pa.struct([("id", pa.int32())])),
            "_exact": pa.array([None] * count, pa.map_(pa.string(), pa.string())),
            **dict(zip(("id", "v"), rows(*ids).columns, strict=True)),
        }
    )


def begin(destination: HttpDestination, *ids: int) -> None:
    destination.truncate_table(TABLE)
    destination.write_row_batch(TABLE, rows(*ids))


def ids_of(service: HttpTables) -> list[Any]:
    return [row["id"] for row in service.rows_of(TABLE)]


# -- what is sent -----------------------------------------------------------------------------


def test_what_it_offers(destination: HttpDestination) -> None:
    assert adapted(destination).capabilities == Capabilities(checks=True)


def test_requests_are_these(service: HttpTables, destination: HttpDestination) -> None:
    begin(destination, 1, 2)
    destination.write_change_batch(TABLE, inserts(3, 4))
    delete, copied, changed = service.received
    path = "/in%20box/v1/gr%C3%B6%C3%9Fe/a%2Fb%20t"
    copy = delete.path.removeprefix(f"{path}?copy=")
    assert [delete.method, copied.method, copied.path] == ["DELETE", "POST", path]
    assert copied.headers["Idempotency-Key"] == f"gr%C3%B6%C3%9Fe.a/b%20t/copy/{copy}/1"
    assert changed.headers["Idempotency-Key"] == "gr%C3%B6%C3%9Fe.a/b%20t/0/64:0/0/64:1"
    assert copied.body == {
        "table": {
            "schema": "größe",
            "name": "a/b t",
            "columns": [
                {
                    "name": "id",
                    "type": "int",
                    "postgres_type": "any",
                    "nullable": False,
                    "key": True,
                },
                {
                    "name": "v",
                    "type": "string",
                    "postgres_type": "any",
                    "nullable": True,
                    "key": False,
                },
            ],
        },
        "kind": "rows",
        "copy": copy,
        "batch": 1,
        "rows": [{"row": {"id": 1, "v": "v1"}}, {"row": {"id": 2, "v": "v2"}}],
    }
    assert changed.body is not None
    assert changed.body["events"][1] == {
        "type": "insert",
        "lsn": "0/64",
        "seq": 1,
        "timestamp": "1970-01-01T00:00:00.000000Z",
        "xid": "7",
        "row": {"id": 4, "v": "v4"},
    }


def test_bodies_may_stay_as_they_are(service: HttpTables) -> None:
    destination = HttpDestination(service.uri, HttpOptions(secret="s3cret", gzip=False))
    begin(destination, 1)
    destination.shutdown()
    assert "Content-Encoding" not in service.received[-1].headers
    assert ids_of(service) == [1]


def test_values_that_json_has_no_words_for() -> None:
    moment = datetime.datetime(1, 1, 1, 0, 0, 0, 5)
    values: list[tuple[pa.Array, list[Any]]] = [
        (pa.array([2**63 - 1, None]), [str(2**63 - 1), None]),
        (pa.array([0.1, float("nan")], pa.float32()), [0.1, "NaN"]),
        (pa.array([float("inf"), float("-inf"), 1e300]), ["Infinity", "-Infinity", 1e300]),
        (pa.array([Decimal("0E-18")], pa.decimal128(38, 18)), ["0." + "0" * 18]),
        (pa.array([b"\xff\x00"]), ["/wA="]),
        (pa.array([datetime.date(1, 1, 1)]), ["0001-01-01"]),
        (pa.array([moment], pa.timestamp("us")), ["0001-01-01T00:00:00.000005"]),
        (pa.array([moment], pa.timestamp("us", "UTC")), ["0001-01-01T00:00:00.000005Z"]),
        (
            pa.array([[2**60], None, [], [None, 3]], pa.list_(pa.int64())),
            [[str(2**60)], None, [], [None, "3"]],
        ),
        # What is left of a larger batch begins in the middle of its buffers.
        (pa.array([[1], [2, 3], [4]], pa.list_(pa.int64())).slice(1), [["2", "3"], ["4"]]),
    ]
    for array, expected in values:
        told = json_values(array)
        assert told == expected
        assert json.loads(json.dumps(told, allow_nan=False)) == expected


# -- sending again ----------------------------------------------------------------------------


class Trouble:
    """The next requests fail in these ways; each later one is dealt with."""

    def __init__(self, service: HttpTables, *ways: Answer | str) -> None:
        self._ways = list(ways)
        self._drop = False
        service.before = self._before
        service.lost = self._lost

    def _before(self, received: Received) -> Answer | None:
        way = self._ways.pop(0) if self._ways else None
        # An answer that is lost: the request was dealt with. One that is dropped: it was not.
        self._drop = way in ("lost", "dropped")
        return Answer(500) if way == "dropped" else way if isinstance(way, Answer) else None

    def _lost(self, received: Received) -> bool:
        return self._drop


@pytest.mark.parametrize("way", [Answer(500), Answer(503), Answer(429), "dropped", "lost"])
def test_what_may_pass_is_sent_again(
    service: HttpTables, destination: HttpDestination, way: Answer | str
) -> None:
    begin(destination, 1)
    sent = len(service.received)
    Trouble(service, way, way)
    destination.write_row_batch(TABLE, rows(2))
    Trouble(service, way, way)
    destination.write_change_batch(TABLE, inserts(3, 4))
    assert ids_of(service) == [1, 2, 3, 4]
    for attempts in (service.received[sent : sent + 3], service.received[sent + 3 :]):
        assert len(attempts) == 3
        first = attempts[0]
        assert all(again.body == first.body for again in attempts)
        keys = {again.headers["Idempotency-Key"] for again in attempts}
        assert len(keys) == 1


def test_what_comes_late_does_nothing(service: HttpTables, destination: HttpDestination) -> None:
    begin(destination, 1)
    begin(destination, 2)
    destination.write_change_batch(TABLE, inserts(3))
    first, first_rows, second, second_rows, _ = service.received
    with httpx.Client(base_url=service.uri.partition("/in")[0]) as client:

        def send_again(late: Received) -> int:
            body = b"" if late.body is None else json.dumps(late.body).encode()
            signed = signature("s3cret", int(time.time()), late.method, late.path, body)
            headers = {SIGNATURE_HEADER: signed, "Idempotency-Key": "late"}
            answer = client.request(late.method, late.path, content=body, headers=headers)
            return answer.status_code

        assert [send_again(late) for late in (second, first, second_rows)] == [200] * 3
        assert send_again(first_rows) == 422
    assert ids_of(service) == [2, 3]


def test_names_that_are_ways(service: HttpTables, destination: HttpDestination) -> None:
    up = make_schema({"id": "int"}, [], "..", ".")
    destination.truncate_table(up)
    assert service.received[-1].path.startswith("/in%20box/v1/%2E/%2E%2E?")
    assert list(service.copies) == [(".", "..")]


def test_it_can_be_used_again(service: HttpTables, destination: HttpDestination) -> None:
    begin(destination, 1)
    destination.break_off()
    destination.shutdown()
    destination.startup()
    Trouble(service, Answer(503))
    begin(destination, 2)
    assert ids_of(service) == [2]


def test_an_answer_that_cannot_be_read_is_asked_for_again(
    service: HttpTables, destination: HttpDestination
) -> None:
    Trouble(service, Answer(200, "no gzip", {"Content-Encoding": "gzip"}))
    destination.truncate_table(TABLE)
    assert len(service.received) == 2


@pytest.mark.parametrize("as_date", [False, True])
def test_retry_after_is_obeyed(
    service: HttpTables, destination: HttpDestination, as_date: bool
) -> None:
    # Dates have whole seconds.
    until = int(time.time()) + 3
    date = email.utils.formatdate(until, usegmt=True)
    Trouble(service, Answer(429, headers={"Retry-After": date if as_date else "1"}))
    destination.truncate_table(TABLE)
    first, second = service.received
    if as_date:
        # Less than that after the first, if that one took its time to come.
        assert second.at + (time.time() - time.monotonic()) >= until - 0.1
    else:
        assert second.at - first.at >= 0.9


def test_no_time_at_all_is_too_short(service: HttpTables) -> None:
    destination = HttpDestination(service.uri, HttpOptions(secret="s3cret", retry_delay_ms=200))
    Trouble(service, Answer(429, headers={"Retry-After": "0"}))
    destination.truncate_table(TABLE)
    destination.shutdown()
    first, second = service.received
    assert second.at - first.at >= 0.19


def test_it_is_given_up_in_the_end(service: HttpTables, destination: HttpDestination) -> None:
    Trouble(service, *[Answer(500, "out of order")] * 9)
    with pytest.raises(DestinationError, match=r"emptying .* it answered 500: out of order") as no:
        destination.truncate_table(TABLE)
    assert no.value.retry
    assert len(service.received) == 1 + QUICK.retry_attempts


@pytest.mark.parametrize("status", [302, 400, 401, 404, 409, 422])
def test_what_was_refused_is_not_sent_again(
    service: HttpTables, destination: HttpDestination, status: int
) -> None:
    begin(destination, 1)
    Trouble(service, Answer(status, "column v is too long; password=hunter2"))
    with pytest.raises(DestinationError, match=f"refused by http://.* with {status}") as refusal:
        destination.write_change_batch(TABLE, inserts(2))
    assert not refusal.value.retry
    assert refusal.value.hint == "column v is too long; password=***"
    assert len(service.received) == 3


def test_nobody_is_there() -> None:
    with HttpTables() as service:
        uri = service.uri
    destination = HttpDestination(uri, HttpOptions(retry_attempts=1, retry_delay_ms=1))
    with pytest.raises(DestinationError, match="ConnectError") as error:
        destination.truncate_table(TABLE)
    destination.shutdown()
    assert error.value.retry


def test_whoever_breaks_off_does_not_wait_for_the_next_attempt(service: HttpTables) -> None:
    Trouble(service, Answer(503, headers={"Retry-After": "120"}))
    destination = HttpDestination(service.uri, QUICK)
    failed: list[Exception] = []

    def send() -> None:
        try:
            destination.truncate_table(TABLE)
        except DestinationError as error:
            failed.append(error)

    sending = threading.Thread(target=send)
    sending.start()
    wait_for(lambda: bool(service.received), WAIT, "the request has come")
    destination.break_off()
    sending.join(WAIT)
    destination.shutdown()
    assert not sending.is_alive()
    assert len(failed) == 1


def test_trying_it_out_leaves_nothing(service: HttpTables, destination: HttpDestination) -> None:
    destination.check_writable()
    assert service.tables == {}
    assert [received.method for received in service.received] == ["DELETE", "POST", "DELETE"]
    assert {received.path.partition("?")[0] for received in service.received} == {
        "/in%20box/v1/walflow_check/scratch"
    }
    # Also if nothing can be removed afterwards, what went wrong first is told.
    Trouble(service, Answer(200), Answer(403, "read only"), Answer(405, "nothing is removed"))
    with pytest.raises(DestinationError) as refusal:
        destination.check_writable()
    assert refusal.value.hint == "read only"
    assert len(service.received) == 6
    # And at once.
    Trouble(service, Answer(503))
    with pytest.raises(DestinationError, match="it answered 503"):
        destination.check_writable()
    assert len(service.received) == 7


# -- signatures, options, secrets -------------------------------------------------------------


def test_who_lacks_the_secret_is_refused(service: HttpTables) -> None:
    destination = HttpDestination(service.uri, HttpOptions(secret="another"))
    with pytest.raises(DestinationError) as refusal:
        destination.truncate_table(TABLE)
    destination.shutdown()
    assert "not signed with the secret" in refusal.value.hint


def test_a_signature_is_for_one_request() -> None:
    body = gzip.compress(b"{}", mtime=0)
    header = signature("s3cret", 1000, "POST", "/a/t", body)
    assert is_signed("s3cret", header, "post", "/a/t", body, now=1299)
    for secret, method, target, content, now in [
        ("other", "POST", "/a/t", body, 1000),
        ("s3cret", "DELETE", "/a/t", body, 1000),
        ("s3cret", "POST", "/a/other", body, 1000),
        ("s3cret", "POST", "/a/t", b"{}", 1000),
        ("s3cret", "POST", "/a/t", body, 1301),
    ]:
        assert not is_signed(secret, header, method, target, content, now=now)
    for broken in (
        "",
        "t=1000",
        "v1=00",
        "t=x,v1=00",
        "t=1000,v1=ä\udce4",
        header.replace("t=1000", "t=1001"),
    ):
        assert not is_signed("s3cret", broken, "POST", "/a/t", body, now=1000)


def test_options_from_text() -> None:
    parsed = HttpOptions.parse({"timeout_ms": "50", "gzip": "No", "retry_attempts": "0"})
    assert parsed == HttpOptions(timeout_ms=50, gzip=False, retry_attempts=0)
    assert HttpOptions.parse({"token": "t0ken\n"}).token == "t0ken"
    for options, problem in [
        ({"retries": "3"}, "retries, which an HTTP destination has no use for"),
        ({"time_out_ms": "3"}, "did you mean timeout_ms"),
        ({"batch_rows": "0"}, "batch_rows must be a whole number, at least 1"),
        ({"gzip": "perhaps"}, "gzip must be true or false"),
        ({"token": " "}, "options.token is empty"),
        ({"secret": "s3\ncret"}, "options.secret is empty, or has what a header cannot have"),
        ({"token": "tökén"}, "options.token is empty, or has what a header cannot have"),
    ]:
        with pytest.raises(ConfigError, match=problem):
            HttpOptions.parse(options)


def test_secrets_are_not_shown() -> None:
    assert "s3cret" not in repr(HttpOptions(secret="s3cret", token="s3cret"))
    destination = HttpDestination(
        "http://me:s3cret@127.0.0.1:9/x",
        HttpOptions(secret="s3cret", token="s3cret", retry_attempts=0),
    )
    with pytest.raises(DestinationError) as error:
        destination.truncate_table(TABLE)
    destination.shutdown()
    assert "s3cret" not in f"{error.value} {error.value.hint} {destination.name}"


def test_a_service_that_tells_what_it_was_sent(
    service: HttpTables, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    options = HttpOptions(secret="s3cret", token="t0ken", retry_attempts=1, retry_delay_ms=1)
    destination = HttpDestination(service.uri, options)
    # The cut after 500 characters must not leave a piece of it.
    told = "x" * 497 + "t0ken s3cret"
    Trouble(service, Answer(500, told), Answer(400, told))
    with pytest.raises(DestinationError) as refusal:
        destination.truncate_table(TABLE)
    destination.shutdown()
    shown = "".join(capsys.readouterr())
    for text in (f"{refusal.value} {refusal.value.hint}", f"{caplog.text} {shown}"):
        assert "x***" in text
        assert "t0k" not in text
        assert "s3" not in text


def test_what_cannot_be_sent_is_not_tried_again(
    service: HttpTables, destination: HttpDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if something had got through that a header cannot have.
    monkeypatch.setitem(destination._sender._client.headers, "X-Broken", "t0ken\n")
    with pytest.raises(DestinationError, match=r"sent to .*: LocalProtocolError") as error:
        destination.truncate_table(TABLE)
    assert not error.value.retry
    assert "t0ken" not in "".join(traceback.format_exception(error.value))
    assert service.received == []


@pytest.mark.parametrize("uri", ["http://", "http:///x", "ftp://host/x", "http://host/x?a=b"])
def test_uris_that_are_none(uri: str) -> None:
    with pytest.raises(BadUri, match="http://host/path or https://host/path"):
        HttpDestination(uri)


# -- whole pipelines --------------------------------------------------------------------------


def schema_of(table: str) -> TableSchema:
    return TableSchema(oid=0, name=TableName("public", table), columns=(), key=())


@pytest.mark.spark
def test_a_pipeline_follows_tables_over_a_bad_line(
    database: Database, spark: SparkSession, tmp_path: Any
) -> None:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v text)",
        "CREATE TABLE refused (id int PRIMARY KEY)",
        "INSERT INTO orders SELECT n, 'row ' || n FROM generate_series(1, 2500) n",
        "CREATE PUBLICATION walflow FOR ALL TABLES",
    )
    with HttpTables(secret="s3cret") as service:
        service.lost = lambda received: len(service.received) % 3 == 0

        def refuse(received: Received) -> Answer | None:
            is_refused = received.path.partition("?")[0].endswith("/refused")
            return Answer(400, "no such table here") if is_refused else None

        service.before = refuse
        settings = settings_for(
            database,
            tmp_path,
            destination__uri=service.uri,
            destination__options={"secret": "s3cret", "retry_delay_ms": "1"},
        )
        assert "s3cret" not in f"{settings} {settings.model_dump_json()}"
        with running(settings, spark) as pipeline:
            database.execute(
                "UPDATE orders SET v = 'new' WHERE id % 3 = 0",
                "DELETE FROM orders WHERE id > 2000",
                "UPDATE orders SET id = -id WHERE id <= 5",
            )
            catch_up(pipeline)
            stored = [tuple(row.values()) for row in service.rows_of(schema_of("orders"))]
            assert sorted(stored) == in_source(database, "orders")
            state = wait_phase(pipeline, "refused", Phase.ERRORED)
            assert state.error is not None
            assert state.error.hint == "no such table here"
            assert state.waits_for_operator
