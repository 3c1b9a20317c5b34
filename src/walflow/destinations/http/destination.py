"""Tables kept by a web service, which is sent rows and changes."""

from __future__ import annotations

import gzip
import json
import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx

from walflow.destinations.arrow import ArrowDestination
from walflow.destinations.http.options import HttpOptions
from walflow.destinations.http.sending import Sender
from walflow.errors import BadUri, DestinationError
from walflow.model import Lsn, TableName, TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["HttpDestination"]

_NOT_FOUND = 404
_SCRATCH = TableSchema(oid=0, name=TableName("walflow_check", "scratch"), columns=(), key=())


@dataclass(slots=True)
class _Copy:
    """A copy of a table, from one DELETE to the next."""

    id: str
    batches: int = 0


class HttpDestination(ArrowDestination):
    """``DELETE {uri}/{schema}/{table}`` empties a table, ``POST`` brings rows or changes.

    Requests of a table are sent one after the other, each when the one before it was accepted.
    Every POST has an ``Idempotency-Key``, the same each time that it is sent.
    """

    def __init__(self, uri: str, options: HttpOptions | None = None) -> None:
        self.options = options or HttpOptions()
        self._sender = Sender(self.options)
        self._base = _base_url(uri)
        self.name = f"http {self._base.host}"
        self.batch_rows = self.options.batch_rows
        self._copies: dict[TableName, _Copy] = {}
        self._lock = threading.Lock()

    def startup(self) -> None:
        super().startup()
        if self._sender.ended:
            self._sender.close()
            self._sender = Sender(self.options)

    def break_off(self) -> None:
        super().break_off()
        self._sender.break_off()

    def shutdown(self) -> None:
        self._sender.close()

    def truncate_table(self, table: TableSchema) -> None:
        copy = _Copy(uuid.uuid4().hex)
        url = self._url(table).copy_add_param("copy", copy.id)
        self._sender.send("DELETE", url, f"emptying {table.name}", accept=(_NOT_FOUND,))
        with self._lock:
            self._copies[table.name] = copy

    def write_row_batch(self, table: TableSchema, rows: pa.RecordBatch) -> None:
        from walflow.destinations.http.typed_json import json_rows

        with self._lock:
            copy = self._copies.setdefault(table.name, _Copy(uuid.uuid4().hex))
            copy.batches += 1
            number = copy.batches
        self._post(
            table,
            f"batch {number} of the copy of {table.name}",
            f"{table.name}/copy/{copy.id}/{number}",
            {"kind": "rows", "copy": copy.id, "batch": number, "rows": json_rows(table, rows)},
        )

    def write_change_batch(self, table: TableSchema, changes: pa.RecordBatch) -> None:
        from walflow.destinations.http.typed_json import json_events

        positions = changes.column("_lsn"), changes.column("_seq")
        first, last = (
            f"{Lsn(positions[0][row].as_py())}:{positions[1][row].as_py()}"
            for row in (0, changes.num_rows - 1)
        )
        self._post(
            table,
            f"changes {first} to {last} of {table.name}",
            f"{table.name}/{first}/{last}",
            {"kind": "events", "events": json_events(table, changes)},
        )

    def check_writable(self) -> None:
        """Make and empty ``walflow_check.scratch``: always the same, so that services which keep
        something of every name do not get more of them."""
        # A check should fail now, not after retries.
        once = HttpDestination(str(self._base), replace(self.options, retry_attempts=0))
        try:
            once._try_out()
        finally:
            once.shutdown()

    def _try_out(self) -> None:
        import pyarrow as pa

        self.truncate_table(_SCRATCH)
        try:
            self.write_row_batch(_SCRATCH, pa.record_batch({}))
        except DestinationError:
            # The first error is the one to raise. The next check removes what is left.
            with suppress(DestinationError):
                self.truncate_table(_SCRATCH)
            raise
        self.truncate_table(_SCRATCH)

    def _post(self, table: TableSchema, what: str, key: str, content: dict[str, Any]) -> None:
        from walflow.destinations.http.typed_json import json_table

        content = {"table": json_table(table), **content}
        body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": quote(key, safe="/:")}
        if self.options.gzip:
            body = gzip.compress(body, compresslevel=6, mtime=0)
            headers["Content-Encoding"] = "gzip"
        self._sender.send("POST", self._url(table), what, body, headers)

    def _url(self, table: TableSchema) -> httpx.URL:
        names = (_segment(part) for part in (table.name.schema, table.name.name))
        path = "/".join((self._base.raw_path.decode().rstrip("/"), *names))
        return self._base.copy_with(raw_path=path.encode())


def _segment(name: str) -> str:
    if name in (".", ".."):
        # As they are, these would be ways to other tables.
        return "%2E" * len(name)
    return quote(name, safe="")


def _base_url(uri: str) -> httpx.URL:
    try:
        url = httpx.URL(uri)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        raise BadUri(
            "The destination's URI is not http://host/path or https://host/path.",
            hint="Tables are below it: https://host/path/schema/table.",
        )
    return url
