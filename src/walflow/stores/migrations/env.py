"""What Alembic runs: the revisions, on the connection and in the transaction that it is given."""

from __future__ import annotations

from alembic import context

from walflow.stores.migrations import VERSION_TABLE
from walflow.stores.sql_tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    version_table_schema=context.config.attributes["schema"],
)
context.run_migrations()
