"""A store in Postgres, in a schema of its own, for several machines."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy.dialects import postgresql

from walflow.config.tls import in_files
from walflow.errors import BadUri, StoreError
from walflow.model import quote_identifier
from walflow.redaction import MASK, redacted
from walflow.stores.sql_database import Database

__all__ = ["PostgresDatabase"]

# Without these a vanished server is noticed after hours; what the user's URI says wins.
_DEFAULTS = {
    "application_name": "walflow_store",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}

_URI_HINT = (
    "It is postgresql://user:password@host:port/database. Characters such as @ : / ? # in "
    "user name or password must be percent-encoded: @ is %40, : is %3A, / is %2F, # is %23."
)


class PostgresDatabase(Database):
    """A schema of a Postgres database. Connections that the server ended are replaced."""

    clock = sa.literal_column("extract(epoch FROM clock_timestamp())::float8", sa.Double)

    def __init__(self, uri: str, schema: str) -> None:
        """Connects at its first use."""
        given = _parse(uri)
        options = {**_DEFAULTS, **given, "client_encoding": "UTF8"}
        self._user = str(given.get("user") or "the_role")
        self._database = str(given.get("dbname") or self._user)
        self._password = str(given.get("password") or "")

        def connect() -> psycopg.Connection[tuple[Any, ...]]:
            with in_files(options) as parameters:
                # Prepared statements would not survive a transaction pooler between us and the
                # server.
                return psycopg.connect(make_conninfo("", **parameters), prepare_threshold=None)

        engine = sa.create_engine(
            # The driver is given the URI itself, so every libpq parameter passes, and SQLAlchemy
            # never has the password.
            "postgresql+psycopg://",
            creator=connect,
            isolation_level="READ COMMITTED",
            pool_pre_ping=True,
            hide_parameters=True,
            execution_options={"schema_translate_map": {None: schema}},
        )
        super().__init__(engine, _shown(given), schema)

    def error(self, cause: str, doing: str) -> StoreError:
        text = redacted(cause)
        if self._password:
            text = text.replace(self._password, MASK)
        hint = None
        if re.search(r"authentication failed|no password supplied|pg_hba", text):
            hint = "Check user name and password in store.uri, and the server's pg_hba.conf."
        elif "permission denied" in text:
            role, schema = quote_identifier(self._user), quote_identifier(self.schema or "")
            hint = (
                f"As the database's owner: CREATE SCHEMA IF NOT EXISTS {schema} AUTHORIZATION "
                f"{role}; or GRANT CREATE ON DATABASE {quote_identifier(self._database)} TO {role};"
            )
        return StoreError(f"the store {self.where} cannot {doing}: {text}", hint=hint)

    def insert(self, table: sa.Table) -> Any:
        return postgresql.insert(table)

    def lock(self, connection: sa.Connection, name: str) -> None:
        key = f"walflow store {self.schema} {name}"
        connection.execute(
            sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(key, 0)))
        )

    def make_schema(self, connection: sa.Connection) -> None:
        # IF NOT EXISTS asks for the right to make schemas even where there is nothing to make.
        if not sa.inspect(connection).has_schema(self.schema or ""):
            connection.execute(sa.schema.CreateSchema(self.schema or ""))


def _parse(uri: str) -> dict[str, Any]:
    try:
        given: dict[str, Any] = dict(conninfo_to_dict(uri.strip()))
    except psycopg.ProgrammingError:
        # libpq's message quotes what it could not read, which may be a password.
        raise BadUri("The store's Postgres URI cannot be read.", hint=_URI_HINT) from None
    # A password with unescaped characters ends up elsewhere: say so, without showing it.
    host, port = str(given.get("host") or ""), str(given.get("port") or "")
    impossible = "@" in host or ("/" in host and not host.startswith("/"))
    if impossible or not re.fullmatch(r"[\d,]*", port) or "@" in str(given.get("dbname") or ""):
        raise BadUri("The store's Postgres URI has an impossible host or port.", hint=_URI_HINT)
    return given


def _shown(given: dict[str, Any]) -> str:
    user = f"{given['user']}@" if given.get("user") else ""
    host = given.get("host") or given.get("hostaddr") or "localhost"
    port = f":{given['port']}" if given.get("port") else ""
    return f"postgresql://{user}{host}{port}/{given.get('dbname') or ''}"
