"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "table_states",
        sa.Column("pipeline", sa.Text, primary_key=True),
        sa.Column("table_oid", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("since", sa.Double, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("state", sa.JSON, nullable=False),
    )
    op.create_table(
        "table_schemas",
        sa.Column("pipeline", sa.Text, primary_key=True),
        sa.Column("table_oid", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("schema", sa.JSON, nullable=False),
    )
    op.create_table(
        "table_mappings",
        sa.Column("pipeline", sa.Text, primary_key=True),
        sa.Column("table_oid", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("destination_schema", sa.Text, nullable=False),
        sa.Column("destination_name", sa.Text, nullable=False),
    )
    op.create_table(
        "leases",
        sa.Column("pipeline", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
        sa.Column("report", sa.JSON),
    )
    op.create_table(
        "requests",
        sa.Column("pipeline", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("table_schema", sa.Text, nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("asked", sa.Double, nullable=False),
        sa.Column("outcome", sa.Text),
        sa.Column("refused", sa.Boolean, nullable=False),
        sa.Column("finished", sa.Double),
    )
    op.create_index("requests_by_age", "requests", ["pipeline", "asked"])
