"""The store in memory keeps the contract of stores."""

from __future__ import annotations

import pytest

from walflow.model import Phase, TableName
from walflow.states import TableReplicationState
from walflow.stores.memory import Memory, MemoryStore
from walflow.testing.stores import OpenStore, StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        memory = Memory()
        return lambda pipeline: MemoryStore(pipeline, memory)


def test_without_a_shared_memory_a_store_is_alone() -> None:
    one, two = MemoryStore("p"), MemoryStore("p")
    one.update_table_replication_state(1, TableReplicationState(TableName("a", "t"), Phase.READY))
    assert two.load_table_replication_states() == 0
