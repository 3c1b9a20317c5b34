"""Leases and requests in a database. They are never cached, and each call is one transaction."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from walflow.model import TableName
from walflow.serialization import from_dict, to_dict
from walflow.stores.base import Action, Holder, Lease, Report, Request
from walflow.stores.refusals import lease_lost, pipeline_in_use
from walflow.stores.sql_database import Database
from walflow.stores.sql_tables import leases, requests

__all__ = ["SqlLeases", "SqlRequests"]

_REMEMBERED_SECONDS = 86_400.0
"""How long a finished request can be read."""


class SqlLeases:
    """The lease of one pipeline. Times are the database's."""

    _db: Database
    _pipeline: str

    def acquire_lease(self, holder: Holder, seconds: float) -> None:
        insert = self._db.insert(leases).values(
            pipeline=self._pipeline,
            holder=holder.id,
            host=holder.host,
            pid=holder.pid,
            expires=self._db.clock + seconds,
            report=sa.null(),
        )
        own = leases.c.holder == holder.id
        take = insert.on_conflict_do_update(
            index_elements=[leases.c.pipeline],
            set_={
                **{name: insert.excluded[name] for name in ("holder", "host", "pid", "expires")},
                "report": sa.case((own, leases.c.report), else_=sa.null()),
            },
            where=sa.or_(own, leases.c.expires <= self._db.clock),
        ).execution_options(preserve_rowcount=True)
        with self._db.writing("take the lease") as connection:
            # It may be released between the two statements: then it is free after all.
            while connection.execute(take).rowcount == 0:
                lease = self._lease(connection)
                if lease is not None:
                    raise pipeline_in_use(self._pipeline, lease.holder, lease.seconds_left)

    def renew_lease(self, holder: Holder, seconds: float, report: Report | None = None) -> None:
        values: dict[str, Any] = {"expires": self._db.clock + seconds}
        if report is not None:
            values["report"] = to_dict(report)
        renew = sa.update(leases).where(*self._held_by(holder)).values(values)
        with self._db.writing("renew the lease") as connection:
            if connection.execute(renew).rowcount == 0:
                lease = self._lease(connection)
                raise lease_lost(self._pipeline, None if lease is None else lease.holder)

    def release_lease(self, holder: Holder) -> None:
        with self._db.writing("release the lease") as connection:
            connection.execute(sa.delete(leases).where(*self._held_by(holder)))

    def get_lease(self) -> Lease | None:
        with self._db.reading("read the lease") as connection:
            return self._lease(connection)

    def _held_by(self, holder: Holder) -> tuple[sa.ColumnElement[bool], ...]:
        return leases.c.pipeline == self._pipeline, leases.c.holder == holder.id

    def _lease(self, connection: sa.Connection) -> Lease | None:
        left = (leases.c.expires - self._db.clock).label("left")
        row = connection.execute(
            sa.select(leases, left).where(leases.c.pipeline == self._pipeline)
        ).first()
        if row is None:
            return None
        report = None if row.report is None else from_dict(Report, row.report)
        return Lease(Holder(row.holder, row.host, row.pid), row.left, report)


class SqlRequests:
    """The requests to one pipeline."""

    _db: Database
    _pipeline: str

    def put_request(self, request: Request) -> None:
        finished = None if request.outcome is None else self._db.clock
        insert = self._db.insert(requests).values(
            pipeline=self._pipeline,
            id=request.id,
            table_schema=request.table.schema,
            table_name=request.table.name,
            action=request.action.value,
            asked=request.asked,
            outcome=request.outcome,
            refused=request.refused,
            finished=finished,
        )
        old = sa.delete(requests).where(
            requests.c.pipeline == self._pipeline,
            requests.c.finished < self._db.clock - _REMEMBERED_SECONDS,
        )
        with self._db.writing("keep the request") as connection:
            connection.execute(old)
            connection.execute(insert.on_conflict_do_nothing())

    def open_requests(self) -> list[Request]:
        waiting = (
            sa.select(requests)
            .where(requests.c.pipeline == self._pipeline, requests.c.outcome.is_(None))
            .order_by(requests.c.asked, requests.c.id)
        )
        with self._db.reading("read the requests") as connection:
            return [_request(row) for row in connection.execute(waiting)]

    def finish_request(self, id: str, outcome: str, *, refused: bool = False) -> None:
        finish = (
            sa.update(requests)
            .where(requests.c.pipeline == self._pipeline, requests.c.id == id)
            # Postgres has no text with NUL in it.
            .values(outcome=outcome.replace("\0", "\\0"), refused=refused, finished=self._db.clock)
        )
        with self._db.writing("keep the outcome of a request") as connection:
            connection.execute(finish)

    def get_request(self, id: str) -> Request | None:
        one = sa.select(requests).where(requests.c.pipeline == self._pipeline, requests.c.id == id)
        with self._db.reading("read the request") as connection:
            row = connection.execute(one).first()
        return None if row is None else _request(row)


def _request(row: sa.Row[Any]) -> Request:
    return Request(
        id=row.id,
        table=TableName(row.table_schema, row.table_name),
        action=Action(row.action),
        asked=row.asked,
        outcome=row.outcome,
        refused=row.refused,
    )
