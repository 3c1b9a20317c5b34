"""The tables of a store in a database, and how a database gets the tables of this version.

Every key begins with the pipeline. Schemas and states are stored whole as JSON. The columns beside
it are those that someone would ask for by SQL. The schema that the tables are in is not named here:
a connection has it in its ``schema_translate_map``.
"""

from __future__ import annotations

import threading
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
)

from walflow.errors import StoreForeign
from walflow.stores import migrations
from walflow.stores.migrations import HEAD, REVISIONS, VERSION_TABLE
from walflow.stores.sql_database import Database

__all__ = [
    "ALL",
    "is_current",
    "leases",
    "mappings",
    "metadata",
    "migrate",
    "requests",
    "schemas",
    "states",
    "try_making",
]

metadata = MetaData()

states = Table(
    "table_states",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("table_oid", BigInteger, primary_key=True, autoincrement=False),
    # Counts up within a table; the largest is the current state.
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("phase", Text, nullable=False),
    Column("since", Double, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("state", JSON, nullable=False),
)

schemas = Table(
    "table_schemas",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("table_oid", BigInteger, primary_key=True, autoincrement=False),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("schema", JSON, nullable=False),
)

mappings = Table(
    "table_mappings",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("table_oid", BigInteger, primary_key=True, autoincrement=False),
    Column("destination_schema", Text, nullable=False),
    Column("destination_name", Text, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", BigInteger, nullable=False),
    # By the database's clock.
    Column("expires", Double, nullable=False),
    Column("report", JSON(none_as_null=True)),
)

requests = Table(
    "requests",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("table_schema", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("asked", Double, nullable=False),
    Column("outcome", Text),
    Column("refused", Boolean, nullable=False),
    # By the database's clock; null while it waits.
    Column("finished", Double),
    Index("requests_by_age", "pipeline", "asked"),
)

ALL = (states, schemas, mappings, leases, requests)


# Alembic's environment is one for the whole process.
_alembic = threading.Lock()


def migrate(database: Database) -> None:
    """Create or migrate the tables, once, even if many processes open the database at the same
    time. All or nothing. Raises StoreForeign if another version of walflow, or something else,
    created them."""
    with database.reading("be opened") as connection:
        if _version(database, connection) == HEAD:
            return
    with _alembic, database.writing("make its tables") as connection:
        database.lock(connection, "migration")
        version = _version(database, connection)
        if version == HEAD:
            return
        if version is None:
            _refuse_strangers(database, connection)
            database.make_schema(connection)
        _upgrade(database, connection)


def is_current(database: Database) -> bool | None:
    """Whether the tables are of this version. None if there are none. Changes nothing."""
    with database.reading("be opened") as connection:
        version = _version(database, connection)
    return None if version is None else version == HEAD


def try_making(database: Database) -> None:
    """Create the tables if there are none, and roll back. Raises the errors of ``migrate``."""
    with _alembic, database.writing("make its tables") as connection:
        database.lock(connection, "migration")
        _refuse_strangers(database, connection)
        database.make_schema(connection)
        _upgrade(database, connection)
        connection.rollback()


def _version(database: Database, connection: sa.Connection) -> str | None:
    """The tables' revision. None if there are no tables."""
    if not sa.inspect(connection).has_table(VERSION_TABLE, schema=database.schema):
        return None
    table = sa.table(VERSION_TABLE, sa.column("version_num"), schema=database.schema)
    version = connection.scalar(sa.select(table.c.version_num))
    if version is not None and version not in REVISIONS:
        raise StoreForeign(
            f"the store {database.where} has version {version}, made by another walflow: this one "
            f"knows {', '.join(REVISIONS)}",
            hint="Use the version of walflow that made it (a newer one, perhaps: pip install "
            "--upgrade walflow), or name another store.",
        )
    return version


def _refuse_strangers(database: Database, connection: sa.Connection) -> None:
    inspector = sa.inspect(connection)
    taken = [t.name for t in ALL if inspector.has_table(t.name, schema=database.schema)]
    if taken:
        raise StoreForeign(
            f"the store {database.where} has tables that walflow did not make: {', '.join(taken)}",
            hint="Name another file or database in store.uri, or another schema in "
            "store.postgres_schema.",
        )


def _upgrade(database: Database, connection: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    folder = str(Path(migrations.__file__).parent)
    config.set_main_option("script_location", folder.replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["schema"] = database.schema
    command.upgrade(config, "head")
