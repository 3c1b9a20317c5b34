"""Checks that a store in the source's own database is not followed like other tables there."""

from __future__ import annotations

from walflow.config import Settings
from walflow.errors import ConfigError
from walflow.model import TableName
from walflow.source.connection import Session, source_errors
from walflow.stores.sql_tables import ALL

__all__ = ["check_store_not_followed"]


def check_store_not_followed(connection: Session, settings: Settings) -> None:
    """Raise ConfigError if the tables of a Postgres store are published and followed: each note of
    a change would be another change, without end."""
    uri, schema = settings.store.uri, settings.store.postgres_schema
    if uri is None or not uri.get_secret_value().lower().startswith("postgres"):
        return
    publication = settings.publication
    with source_errors("see whether the store is published"):
        published = connection.execute(
            "SELECT schemaname, tablename FROM pg_publication_tables"
            " WHERE pubname = %s AND schemaname = %s AND tablename = ANY(%s)",
            [publication, schema, [table.name for table in ALL]],
        ).fetchall()
    if any(settings.tables.have(TableName(*row)) for row in published):
        raise ConfigError(
            f'The publication "{publication}" has the tables of the pipeline\'s store in it '
            f"(schema {schema}): every note of a change would be another change to follow.",
            hint="Keep the store elsewhere (store.uri), or leave its tables out "
            f"(tables.exclude: [{schema}.*]).",
        )
