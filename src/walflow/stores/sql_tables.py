"""The tables of a store in a database, as the newest migration leaves them.

Every key begins with the pipeline. Schemas and states are kept whole as JSON; columns beside it are
those that someone would ask for by SQL. The schema that the tables are in is not named here: a
connection has it in its ``schema_translate_map``.
"""

from __future__ import annotations

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

__all__ = ["ALL", "leases", "mappings", "metadata", "requests", "schemas", "states"]

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
