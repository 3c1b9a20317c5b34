"""The store in a Postgres database keeps the contract of stores."""

from __future__ import annotations

import pytest

from tests.conftest import Database
from walflow.stores.sql import SqlStore
from walflow.stores.sql_postgres import PostgresDatabase
from walflow.testing.stores import OpenStore, StoreContract


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def open_store(self, database: Database) -> OpenStore:
        return lambda pipeline: SqlStore(PostgresDatabase(database.uri, "wal flow"), pipeline)
