"""A store in Redis, 6.2 or newer, for pipelines that move between machines.

All keys begin with ``<prefix><pipeline>:``. The store is as durable as the server: with an
append-only file it survives the server's restart.
"""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from walflow.model import TableName, TableSchema
from walflow.serialization import from_dict, from_json, to_json
from walflow.states import TableReplicationState
from walflow.stores import redis_scripts as scripts
from walflow.stores.base import Holder, Lease, Report, Request
from walflow.stores.cached import CachedStore
from walflow.stores.redis_connection import RedisConnection
from walflow.stores.refusals import lease_lost, nothing_to_roll_back, pipeline_in_use

__all__ = ["RedisStore"]

_Value = TypeVar("_Value")


class RedisStore(CachedStore):
    """Reads are cached, and each write is one atomic script. Calls wait some seconds for a server
    that restarts, and raise StoreError if it stays away."""

    def __init__(self, uri: str, pipeline: str, prefix: str = "etl:") -> None:
        """``uri`` in redis-py's format: redis://, rediss:// (TLS) or unix://, with options."""
        super().__init__()
        self._pipeline = pipeline
        self._keys = scripts.Keys.of(prefix, pipeline)
        self._server = RedisConnection(uri)
        try:
            self._check_format()
            self._server.warn_of_loss()
            self.load()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._server.close()

    def _check_format(self) -> None:
        found: Any = self._server.ask(lambda client: client.get(self._keys.format))
        if found not in (None, scripts.FORMAT):
            raise self._server.foreign(f"its format is {found!r}")

    # -- schemas, states, mappings ------------------------------------------------------------

    def get_table_replication_history(self, table: int) -> list[TableReplicationState]:
        keys = self._keys
        earlier, current = self._server.read_together(
            ("HGET", keys.history, str(table)), ("HGET", keys.states, str(table))
        )
        lines = [*(earlier.split("\n") if earlier else ()), *([current] if current else ())]
        return [self._understood(_state, line) for line in lines]

    def read_schemas(self) -> Iterable[TableSchema]:
        return [self._record(TableSchema, text) for text in self._all(self._keys.schemas).values()]

    def write_schema(self, schema: TableSchema) -> None:
        field = f"{schema.oid}:{int(schema.version)}"
        self._put(self._keys.schemas, field, to_json(schema).decode())

    def read_states(self) -> Mapping[int, TableReplicationState]:
        return self._all_by_table(self._keys.states, _state)

    def write_states(self, states: Mapping[int, TableReplicationState]) -> None:
        pairs = [part for table, state in states.items() for part in (table, _state_line(state))]
        self._server.run(scripts.UPDATE_STATES, self._keys.of_states, *pairs)

    def roll_back(self, table: int) -> TableReplicationState:
        this_call = uuid.uuid4().hex
        line = self._server.run(scripts.ROLL_BACK, self._keys.of_states, table, this_call)
        if line is None:
            raise nothing_to_roll_back(self._pipeline, table)
        return self._understood(_state, line)

    def read_mappings(self) -> Mapping[int, TableName]:
        return self._all_by_table(self._keys.mappings, functools.partial(from_json, TableName))

    def write_mapping(self, table: int, destination: TableName) -> None:
        self._put(self._keys.mappings, str(table), to_json(destination).decode())

    def forget_table(self, table: int) -> None:
        keys = [*self._keys.of_states, self._keys.mappings, self._keys.schemas]
        self._server.run(scripts.CLEAN_UP_TABLE, keys, table)

    def forget_pipeline(self) -> None:
        self._server.ask(lambda client: client.unlink(*self._keys.all))

    def _all(self, key: str) -> dict[str, str]:
        entries: Any = self._server.ask(lambda client: client.hgetall(key))
        return dict(entries)

    def _all_by_table(self, key: str, read: Callable[[str], _Value]) -> dict[int, _Value]:
        return {
            self._understood(int, table): self._understood(read, text)
            for table, text in self._all(key).items()
        }

    def _put(self, key: str, field: str, value: str) -> None:
        self._server.run(scripts.PUT_FIELD, [self._keys.format, key], field, value)

    # -- leases -------------------------------------------------------------------------------

    def acquire_lease(self, holder: Holder, seconds: float) -> None:
        held = self._server.run(
            scripts.ACQUIRE_LEASE,
            self._keys.of_lease,
            holder.id,
            to_json(holder).decode(),
            _ms(seconds),
        )
        if held is not None:
            by, milliseconds_left = held
            other = self._record(Holder, by)
            raise pipeline_in_use(self._pipeline, other, int(milliseconds_left) / 1000)

    def renew_lease(self, holder: Holder, seconds: float, report: Report | None = None) -> None:
        taken_by = self._server.run(
            scripts.RENEW_LEASE,
            self._keys.of_lease,
            holder.id,
            to_json(holder).decode(),
            _ms(seconds),
            *([] if report is None else [to_json(report).decode()]),
        )
        if taken_by is not None:
            other = self._record(Holder, taken_by) if taken_by else None
            raise lease_lost(self._pipeline, other)

    def release_lease(self, holder: Holder) -> None:
        self._server.run(scripts.RELEASE_LEASE, self._keys.of_lease, holder.id)

    def get_lease(self) -> Lease | None:
        now, lease = self._server.read_together(("TIME",), ("HGETALL", self._keys.lease))
        if not lease:
            return None
        seconds, microseconds = now
        return Lease(
            self._record(Holder, lease["holder"]),
            int(lease["ends"]) / 1000 - (seconds + microseconds / 1_000_000),
            self._record(Report, lease["report"]) if "report" in lease else None,
        )

    # -- requests -----------------------------------------------------------------------------

    def put_request(self, request: Request) -> None:
        self._server.run(
            scripts.PUT_REQUEST, self._keys.of_requests, request.id, to_json(request).decode()
        )

    def open_requests(self) -> list[Request]:
        waiting = [self._understood(_request, r) for r in self._all(self._keys.requests).values()]
        return sorted(waiting, key=lambda request: (request.asked, request.id))

    def finish_request(self, id: str, outcome: str, *, refused: bool = False) -> None:
        text = json.dumps({"outcome": outcome, "refused": refused})
        self._server.run(scripts.FINISH_REQUEST, self._keys.of_requests, id, text)

    def get_request(self, id: str) -> Request | None:
        waiting, finished = self._server.read_together(
            ("HGET", self._keys.requests, id), ("HGET", self._keys.finished, id)
        )
        text = waiting or finished
        return None if text is None else self._understood(_request, text)

    def _record(self, kind: type[_Value], text: str) -> _Value:
        return self._understood(functools.partial(from_json, kind), text)

    def _understood(self, read: Callable[[str], _Value], text: str) -> _Value:
        try:
            return read(text)
        except (ValueError, TypeError) as error:
            raise self._server.foreign(f"{text[:200]!r} ({error})") from error


# A state is one line: what makes it the same entry of the history (phase and time), which the
# server compares, then the whole of it.


def _state_line(state: TableReplicationState) -> str:
    return f"{state.phase} {float(state.since)!r} {to_json(state).decode()}"


def _state(line: str) -> TableReplicationState:
    _, _, text = line.split(" ", 2)
    return from_json(TableReplicationState, text)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _request(text: str) -> Request:
    """A request as text. A finished one has its outcome on a second line."""
    asked, _, came = text.partition("\n")
    return from_dict(Request, {**json.loads(asked), **(json.loads(came) if came else {})})
