"""A store in a SQL database, SQLite or Postgres."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import sqlalchemy as sa

from walflow.errors import StoreForeign
from walflow.model import TableName, TableSchema
from walflow.serialization import from_dict, to_dict
from walflow.states import TableReplicationState
from walflow.stores.cached import HISTORY_LENGTH, CachedStore
from walflow.stores.refusals import nothing_to_roll_back
from walflow.stores.sql_database import Database
from walflow.stores.sql_leases import SqlLeases, SqlRequests
from walflow.stores.sql_tables import ALL, mappings, migrate, schemas, states

__all__ = ["SqlStore"]

_Record = TypeVar("_Record")


class SqlStore(CachedStore, SqlLeases, SqlRequests):
    """One pipeline's entries in a database. Every write is one transaction."""

    def __init__(self, database: Database, pipeline: str) -> None:
        """Migrates the database to this version and fills the cache. The database is closed with
        the store, or if this fails."""
        super().__init__()
        self._db = database
        self._pipeline = pipeline
        try:
            migrate(database)
            self.load()
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        self._db.close()

    # -- states -------------------------------------------------------------------------------

    def get_table_replication_history(self, table: int) -> list[TableReplicationState]:
        with self._db.reading("read a table's history") as connection:
            rows = connection.scalars(
                sa.select(states.c.state).where(*self._of(states, table)).order_by(states.c.number)
            ).all()
        return [self._decoded(TableReplicationState, raw) for raw in rows]

    def read_states(self) -> Mapping[int, TableReplicationState]:
        with self._db.reading("read the tables' states") as connection:
            rows = connection.execute(self._current(states.c.table_oid, states.c.state)).all()
        return {table: self._decoded(TableReplicationState, raw) for table, raw in rows}

    def write_states(self, new: Mapping[int, TableReplicationState]) -> None:
        rows = [_state_row(self._pipeline, table, state) for table, state in new.items()]
        key = (states.c.table_oid, states.c.number, states.c.phase, states.c.since)
        with self._db.writing("keep the tables' states") as connection:
            # Nobody may add to a history between our look at its end and our own addition.
            self._db.lock(connection, self._pipeline)
            found = connection.execute(self._current(*key, tables=list(new)))
            current = {row.table_oid: row for row in found}
            for row in rows:
                row["number"] = _number(current.get(row["table_oid"]), row)
            insert = self._db.insert(states)
            progress = {name: insert.excluded[name] for name in ("position", "state")}
            connection.execute(
                insert.on_conflict_do_update(
                    index_elements=list(states.primary_key), set_=progress
                ),
                rows,
            )
            self._forget_oldest(connection, rows)

    def _forget_oldest(self, connection: sa.Connection, rows: list[dict[str, Any]]) -> None:
        forgotten = [
            {"of_table": row["table_oid"], "upto": row["number"] - HISTORY_LENGTH}
            for row in rows
            if row["number"] > HISTORY_LENGTH
        ]
        if forgotten:
            old = sa.delete(states).where(
                states.c.pipeline == self._pipeline,
                states.c.table_oid == sa.bindparam("of_table"),
                states.c.number <= sa.bindparam("upto"),
            )
            connection.execute(old, forgotten)

    def roll_back(self, table: int) -> TableReplicationState:
        with self._db.writing("roll a table's state back") as connection:
            self._db.lock(connection, self._pipeline)
            newest = connection.execute(
                sa.select(states.c.number, states.c.state)
                .where(*self._of(states, table))
                .order_by(states.c.number.desc())
                .limit(2)
            ).all()
            if len(newest) < 2:
                raise nothing_to_roll_back(self._pipeline, table)
            connection.execute(
                sa.delete(states).where(
                    *self._of(states, table), states.c.number == newest[0].number
                )
            )
            return self._decoded(TableReplicationState, newest[1].state)

    def _current(self, *columns: sa.Column[Any], tables: list[int] | None = None) -> sa.Select[Any]:
        """These columns of the current states of all tables, or of these tables."""
        asked = [states.c.pipeline == self._pipeline]
        if tables is not None:
            asked.append(states.c.table_oid.in_(tables))
        newest = (
            sa.select(states.c.table_oid, sa.func.max(states.c.number).label("number"))
            .where(*asked)
            .group_by(states.c.table_oid)
            .subquery()
        )
        return (
            sa.select(*columns)
            .join(
                newest,
                sa.and_(
                    states.c.table_oid == newest.c.table_oid, states.c.number == newest.c.number
                ),
            )
            .where(states.c.pipeline == self._pipeline)
        )

    # -- schemas and mappings -----------------------------------------------------------------

    def read_schemas(self) -> Iterable[TableSchema]:
        with self._db.reading("read the tables' schemas") as connection:
            rows = connection.scalars(
                sa.select(schemas.c.schema)
                .where(schemas.c.pipeline == self._pipeline)
                .order_by(schemas.c.table_oid, schemas.c.version)
            ).all()
        return [self._decoded(TableSchema, raw) for raw in rows]

    def write_schema(self, schema: TableSchema) -> None:
        self._put(
            schemas,
            {"table_oid": schema.oid, "version": int(schema.version)},
            {"schema": to_dict(schema)},
        )

    def read_mappings(self) -> Mapping[int, TableName]:
        with self._db.reading("read the mappings") as connection:
            rows = connection.execute(
                sa.select(mappings).where(mappings.c.pipeline == self._pipeline)
            ).all()
        return {
            row.table_oid: TableName(row.destination_schema, row.destination_name) for row in rows
        }

    def write_mapping(self, table: int, destination: TableName) -> None:
        self._put(
            mappings,
            {"table_oid": table},
            {"destination_schema": destination.schema, "destination_name": destination.name},
        )

    # -- forgetting ---------------------------------------------------------------------------

    def forget_table(self, table: int) -> None:
        with self._db.writing("forget a table") as connection:
            self._db.lock(connection, self._pipeline)
            for stored in (states, schemas, mappings):
                connection.execute(sa.delete(stored).where(*self._of(stored, table)))

    def forget_pipeline(self) -> None:
        with self._db.writing("forget the pipeline") as connection:
            self._db.lock(connection, self._pipeline)
            for stored in ALL:
                connection.execute(sa.delete(stored).where(stored.c.pipeline == self._pipeline))

    # -- rows ---------------------------------------------------------------------------------

    def _of(self, stored: sa.Table, table: int) -> tuple[sa.ColumnElement[bool], ...]:
        return stored.c.pipeline == self._pipeline, stored.c.table_oid == table

    def _put(self, stored: sa.Table, key: dict[str, Any], values: dict[str, Any]) -> None:
        key = {"pipeline": self._pipeline, **key}
        insert = self._db.insert(stored).values(**key, **values)
        with self._db.writing("keep a table's schema or mapping") as connection:
            connection.execute(insert.on_conflict_do_update(index_elements=list(key), set_=values))

    def _decoded(self, kind: type[_Record], raw: Any) -> _Record:
        try:
            return from_dict(kind, raw)
        except ValueError as error:
            raise StoreForeign(
                f"the store {self._db.where} has an entry of the pipeline {self._pipeline} that "
                f"this version of walflow cannot read: {error}",
                hint="Upgrade walflow, if a newer one wrote it.",
            ) from error


def _state_row(pipeline: str, table: int, state: TableReplicationState) -> dict[str, Any]:
    return {
        "pipeline": pipeline,
        "table_oid": table,
        "phase": state.phase.value,
        "since": state.since,
        "position": int(state.position),
        "state": to_dict(state),
    }


def _number(current: sa.Row[Any] | None, row: Mapping[str, Any]) -> int:
    """The state's number in its history: the current one's, or the next."""
    if current is None:
        return 1
    same = (current.phase, current.since) == (row["phase"], row["since"])
    return int(current.number) + (0 if same else 1)
