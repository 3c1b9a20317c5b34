"""A service that keeps tables by the protocol of HTTP destinations, and accepts nothing else."""

from __future__ import annotations

import base64
import datetime
import gzip
import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from walflow.destinations.http import SIGNATURE_HEADER, is_signed
from walflow.destinations.rowwise import Row
from walflow.model import Lsn, TableSchema
from walflow.testing.sources import Inexact

__all__ = ["Answer", "HttpTables", "Received"]

Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    text: str = ""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any] | None
    at: float


@dataclass(frozen=True, slots=True)
class _Row:
    values: dict[str, Any]
    exact: dict[str, str]


@dataclass(slots=True)
class _Table:
    columns: list[dict[str, Any]]
    rows: list[_Row] = field(default_factory=list)
    position: tuple[int, int] = (0, 0)
    batches: set[int] = field(default_factory=set)
    """Of the copy."""


class _Refused(Exception):
    pass


class HttpTables:
    """Use as a context manager. ``fault`` is asked before (or, ``lost``, after) each request is
    dealt with, and may give another answer; None in place of an answer drops the connection."""

    def __init__(self, secret: str | None = None, token: str | None = None) -> None:
        self.tables: dict[Name, _Table] = {}
        self.copies: dict[Name, list[str]] = defaultdict(list)
        """Their ids, the newest last."""
        self.received: list[Received] = []
        self.before: Callable[[Received], Answer | None] = lambda received: None
        self.lost: Callable[[Received], bool] = lambda received: False
        """Whether to drop the connection after the request was dealt with."""
        self._secret = secret
        self._token = token
        self._locks: dict[Name, threading.Lock] = defaultdict(threading.Lock)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/in%20box/v1"

    def rows_of(self, table: TableSchema) -> list[Row]:
        kept = self.tables[table.name.schema, table.name.name]
        types = {column["name"]: column["type"] for column in kept.columns}
        return [
            {
                name: Inexact(_value(types[name], value), row.exact[name])
                if name in row.exact
                else _value(types[name], value)
                for name, value in row.values.items()
            }
            for row in kept.rows
        ]

    # -- requests -----------------------------------------------------------------------------

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer._deal_with(self)

            do_DELETE = do_POST  # noqa: N815 - so too

            def log_message(self, format: str, *args: Any) -> None:
                """Quietly."""

        return Handler

    def _deal_with(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        plain = gzip.decompress(body) if request.headers.get("Content-Encoding") else body
        received = Received(
            request.command,
            request.path,
            dict(request.headers),
            json.loads(plain) if plain else None,
            time.monotonic(),
        )
        self.received.append(received)
        answer = self.before(received)
        if answer is None:
            try:
                self._check_sender(request, body)
                self._keep(received)
                answer = Answer(200)
            except (_Refused, KeyError, AssertionError) as refusal:
                answer = Answer(422, f"{type(refusal).__name__}: {refusal}")
        if self.lost(received):
            request.close_connection = True
            return
        request.send_response(answer.status)
        for name, value in answer.headers.items():
            request.send_header(name, value)
        text = answer.text.encode()
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        request.wfile.write(text)

    def _check_sender(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        headers = request.headers
        if self._token is not None and headers.get("Authorization") != f"Bearer {self._token}":
            raise _Refused("no such token")
        if self._secret is None:
            return
        given = headers.get(SIGNATURE_HEADER, "")
        if not is_signed(self._secret, given, request.command, request.path, body, now=time.time()):
            raise _Refused("not signed with the secret")

    def _keep(self, received: Received) -> None:
        parts = urlsplit(received.path)
        box, version, *names = parts.path.removeprefix("/").split("/")
        assert (box, version, len(names)) == ("in%20box", "v1", 2), received.path
        name = (unquote(names[0]), unquote(names[1]))
        with self._locks[name]:
            if received.method == "DELETE":
                (copy,) = parse_qs(parts.query)["copy"]
                if copy not in self.copies[name]:
                    self.copies[name].append(copy)
                    # With its position, and what it has of the copy before.
                    self.tables.pop(name, None)
                return
            body = received.body
            assert body is not None
            assert received.headers["Idempotency-Key"]
            assert (body["table"]["schema"], body["table"]["name"]) == name
            if body["kind"] == "rows":
                self._keep_rows(name, body)
            else:
                assert body["kind"] == "events"
                self._keep_events(self.tables[name], body)

    def _keep_rows(self, name: Name, body: dict[str, Any]) -> None:
        if [body["copy"]] != self.copies[name][-1:]:
            raise _Refused("rows of another copy than the last one that was begun")
        columns = body["table"]["columns"]
        table = self.tables.setdefault(name, _Table(columns))
        _check_schema(table, columns)
        if body["batch"] in table.batches:
            return
        table.batches.add(body["batch"])
        for told in body["rows"]:
            assert set(told) <= {"row", "exact"}, told
            assert list(told["row"]) == [column["name"] for column in columns]
            assert set(told.get("exact", {})) <= set(told["row"])
            table.rows.append(_Row(told["row"], told.get("exact", {})))

    def _keep_events(self, table: _Table, body: dict[str, Any]) -> None:
        _check_schema(table, body["table"]["columns"])
        before = (0, 0)
        for event in body["events"]:
            position = (int(Lsn.parse(event["lsn"])), event["seq"])
            if position <= before:
                raise _Refused(f"{event['lsn']}:{event['seq']} is not in its place")
            before = position
            if position <= table.position:
                continue  # it was here before
            _apply(table, event)
            table.position = position


def _check_schema(table: _Table, columns: list[dict[str, Any]]) -> None:
    if columns != table.columns:
        raise _Refused("the table has another form")


def _apply(table: _Table, event: dict[str, Any]) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", event["timestamp"])
    assert isinstance(event["xid"], str)
    key = [column["name"] for column in table.columns if column["key"]]
    names = [column["name"] for column in table.columns]
    match event["type"]:
        case "truncate":
            table.rows.clear()
        case "insert":
            assert list(event["row"]) == names, event
            table.rows.append(_Row(event["row"], event.get("exact", {})))
        case "delete":
            del table.rows[_find(table, event["old"], event.get("old_exact", {}))]
        case "update":
            row, unchanged = event["row"], event.get("unchanged", [])
            assert {*row, *unchanged} == set(names), event
            assert not set(row) & set(unchanged), event
            assert key or "old" in event, event
            exact = event.get("exact", {})
            if "old" in event:
                number = _find(table, event["old"], event.get("old_exact", {}))
            else:
                number = _find(
                    table,
                    {name: row[name] for name in key},
                    {name: text for name, text in exact.items() if name in key},
                )
            old = table.rows[number]
            kept = {name: text for name, text in old.exact.items() if name in unchanged}
            table.rows[number] = _Row(
                {name: {**old.values, **row}[name] for name in names}, {**kept, **exact}
            )
        case kind:
            raise _Refused(f"no kind of change: {kind}")


def _find(table: _Table, identity: dict[str, Any], exact: dict[str, str]) -> int:
    for number, row in enumerate(table.rows):
        texts = {name: text for name, text in row.exact.items() if name in identity}
        if {name: row.values[name] for name in identity} == identity and texts == exact:
            return number
    raise _Refused(f"there is no row {identity}")


def _value(kind: str, told: Any) -> Any:
    """The JSON of a value back, by the column's type; wrong JSON types are not forgiven."""
    if told is None:
        return None
    if element := re.fullmatch(r"array<(.+)>", kind):
        return [_value(element[1], part) for part in told]
    if kind.startswith("decimal"):
        assert isinstance(told, str)
        assert re.fullmatch(r"-?\d+(\.\d+)?", told), told
        return Decimal(told)
    match kind:
        case "boolean":
            assert isinstance(told, bool)
            return told
        case "int":
            assert type(told) is int
            return told
        case "bigint":
            assert isinstance(told, str)
            return int(told)
        case "float" | "double":
            assert type(told) in (float, int) or told in ("NaN", "Infinity", "-Infinity")
            return float(told)
        case "string":
            assert isinstance(told, str)
            return told
        case "binary":
            return base64.b64decode(told, validate=True)
        case "date":
            return datetime.date.fromisoformat(told)
        case "timestamp":
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", told), told
            return datetime.datetime.fromisoformat(told)
        case "timestamp_ntz":
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}", told), told
            return datetime.datetime.fromisoformat(told)
    raise AssertionError(f"no type: {kind}")
