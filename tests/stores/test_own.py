"""A store of one's own, with no more than it must have."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.stores.settings import settings
from tests.stores.small import Small
from walflow.errors import ConfigError, StoreError
from walflow.model import TableName
from walflow.pipeline.pipeline import Pipeline
from walflow.stores.base import Action, Holder, Request
from walflow.stores.own import FolderLease, completed, takes_requests
from walflow.testing.store_leases import LeaseContract, OpenStores
from walflow.testing.store_samples import ERRORED, ITEMS, ORDERS, SCHEMA, WAY
from walflow.testing.stores import OpenStore, StoreContract

ONE, TWO = Holder("one", "east", 1), Holder("two", "west", 2)


class TestSmallStore(StoreContract):
    persistent = False
    cached = False

    @pytest.fixture
    def open_store(self) -> OpenStore:
        stores: dict[str, Small] = defaultdict(Small)
        return stores.__getitem__


class TestFolderLease(LeaseContract):
    """The lease in the log's folder is as good as a store's own."""

    @pytest.fixture
    def pipeline(self) -> str:
        return "p"

    @pytest.fixture
    def opening(self, tmp_path: Path) -> OpenStores:
        return lambda pipeline: completed(Small(), pipeline, tmp_path / "log")


def test_a_lease_that_is_only_looked_at_makes_no_folder(tmp_path: Path) -> None:
    lease = FolderLease(tmp_path / "log", "p")
    assert lease.get_lease() is None
    lease.release_lease(ONE)
    assert list(tmp_path.iterdir()) == []


def test_a_lease_that_a_crash_has_torn_is_free(tmp_path: Path) -> None:
    lease = FolderLease(tmp_path, "p")
    lease.acquire_lease(ONE, 300)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    assert lease.get_lease() is None
    lease.acquire_lease(TWO, 300)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file")
    with pytest.raises(StoreError, match="the lease"):
        FolderLease(tmp_path / "log", "p").acquire_lease(ONE, 300)


def test_what_a_store_lacks_has_a_default(tmp_path: Path) -> None:
    store = completed(Small(), "p", tmp_path / "log")
    assert not takes_requests(store)
    store.update_table_replication_states({ORDERS: WAY[0], ITEMS: WAY[1]})
    store.update_table_replication_states({ORDERS: ERRORED})
    store.store_table_schema(SCHEMA)
    store.store_table_mapping(3, TableName("a", "b"))
    assert store.get_table_replication_history(ORDERS) == [ERRORED]
    assert store.get_table_replication_history(7) == []
    request = Request.new(TableName("shop", "orders"), Action.RETRY)
    store.put_request(request)
    assert store.open_requests() == [request]
    store.finish_request(request.id, "done")
    assert store.open_requests() == []
    store.drop()
    assert store.get_table_replication_states() == {}
    assert (store.get_table_schemas(), store.get_table_mappings()) == ([], {})
    store.close()


class WithLeases(Small):
    """Half of what a store with leases has."""

    def acquire_lease(self, holder: Holder, seconds: float) -> None:
        raise NotImplementedError

    def get_lease(self) -> None:
        raise NotImplementedError


class Forgetful(Small):
    cleanup_table_state = None  # type: ignore[assignment] # it has the name, but it is no call


@pytest.mark.parametrize(
    ("store", "missing"),
    [
        (WithLeases(), "WithLeases is not a store: it lacks renew_lease, release_lease."),
        (Forgetful(), "Forgetful is not a store: it lacks cleanup_table_state."),
        ({}, "dict is not a store: it lacks get_table_schema, get_table_schemas, load_table_s"),
    ],
)
def test_a_pipeline_says_what_a_store_lacks(store: Any, missing: str) -> None:
    with pytest.raises(ConfigError, match="is not a store") as refused:
        Pipeline(settings(), store)
    assert missing in refused.value.message
    assert "StoreContract" in refused.value.hint


def test_a_pipeline_says_what_a_destination_lacks() -> None:
    with pytest.raises(ConfigError, match="is not a destination") as refused:
        Pipeline(settings(), Small(), Small())  # type: ignore[arg-type] # that is the point
    assert "it lacks name, truncate_table, write_table_rows, write_events" in str(refused.value)
