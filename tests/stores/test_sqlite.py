"""The store in a SQLite file keeps the contract of stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from walflow.stores.sql import SqlStore
from walflow.stores.sql_sqlite import SqliteDatabase
from walflow.testing.stores import OpenStore, StoreContract


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda pipeline: SqlStore(SqliteDatabase(tmp_path / "a" / "state.db"), pipeline)
