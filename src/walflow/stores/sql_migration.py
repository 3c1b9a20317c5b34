"""Bringing a database to this version's tables, whatever it had before."""

from __future__ import annotations

import threading
from pathlib import Path

import sqlalchemy as sa

from walflow.errors import StoreForeign
from walflow.stores import migrations
from walflow.stores.migrations import HEAD, REVISIONS, VERSION_TABLE
from walflow.stores.sql_database import Database
from walflow.stores.sql_tables import ALL

__all__ = ["is_current", "migrate", "try_making"]

# Alembic's environment is one for the whole process.
_alembic = threading.Lock()


def migrate(database: Database) -> None:
    """Make or change the tables, once, however many open the database at the same time.

    All or nothing. Raises StoreForeign if another walflow, or something else, made them.
    """
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
    """Whether its tables are of this version; None if there are none. Changes nothing."""
    with database.reading("be opened") as connection:
        version = _version(database, connection)
    return None if version is None else version == HEAD


def try_making(database: Database) -> None:
    """Make the tables where there are none, and take it back. Raises what ``migrate`` does."""
    with _alembic, database.writing("make its tables") as connection:
        database.lock(connection, "migration")
        _refuse_strangers(database, connection)
        database.make_schema(connection)
        _upgrade(database, connection)
        connection.rollback()


def _version(database: Database, connection: sa.Connection) -> str | None:
    """The revision that the tables are of; None if there are none."""
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
