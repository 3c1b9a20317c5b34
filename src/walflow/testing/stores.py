"""The contract of stores as tests: derive a class, give a fixture, and your own store is checked.

    from pathlib import Path

    import pytest
    from walflow.testing.stores import OpenStore, StoreContract

    from my_store import MyStore


    class TestMyStore(StoreContract):
        @pytest.fixture
        def open_store(self, tmp_path: Path) -> OpenStore:
            return lambda pipeline: MyStore(tmp_path / "state", pipeline)

A store needs the calls of ``walflow.stores.base.BasicStore``. Tests of others (histories, leases,
requests, several tables at once) are skipped if it has none of them.

``open_store`` opens the store of the pipeline that it is given, on the same backing (file,
database, server) each time it is called within a test. The backing may be used by other tests
too: pipelines have names of their own in every test. What is opened is closed afterwards.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar, cast

try:
    import pytest
except ModuleNotFoundError as missing:
    raise ImportError("The contract of stores is for pytest: pip install pytest") from missing

from walflow.errors import NothingToRollBack
from walflow.model import Lsn, Phase, TableName
from walflow.states import TableReplicationState
from walflow.stores.base import Action, BasicStore, Holder, Request, Store
from walflow.stores.own import check_calls
from walflow.testing.store_leases import (
    LEASES,
    REQUESTS,
    LeaseContract,
    OpenStores,
    RequestContract,
    has,
    needs,
)
from walflow.testing.store_samples import ERRORED, ITEMS, ORDERS, SCHEMA, SINCE, WAY, state_of

__all__ = ["OpenStore", "StoreContract"]

OpenStore = Callable[[str], BasicStore]

_THREADS = 8
_WAIT_SECONDS = 300.0
"""Only ends what hangs."""


class StoreContract(LeaseContract, RequestContract):
    """The behaviour of stores. Derive from it, and give the fixture ``open_store``."""

    persistent: ClassVar[bool] = True
    """False for a store that loses its content when it is closed: it is not opened again."""
    cached: ClassVar[bool] = True
    """False for a store whose getters see other processes' writes at once."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        raise NotImplementedError(f"{type(self).__name__} has no fixture open_store")

    @pytest.fixture
    def pipeline(self) -> str:
        """The name of this test's pipeline. Another pipeline's name begins with it."""
        return f"contract_{uuid.uuid4().hex[:12]}"

    @pytest.fixture
    def opening(self, open_store: OpenStore) -> Iterator[OpenStores]:
        """``open_store``. What it opened is closed after the test."""
        opened: list[Store] = []

        def open_one(pipeline: str) -> Store:
            # Optional calls are called only if they are there.
            opened.append(cast("Store", open_store(pipeline)))
            return opened[-1]

        yield open_one
        for store in opened:
            _close(store)

    @pytest.fixture
    def store(self, opening: OpenStores, pipeline: str) -> Store:
        return opening(pipeline)

    def reopened(self, store: Store, opening: OpenStores, pipeline: str) -> Store:
        """The store as it is after a restart of the process."""
        if not self.persistent:
            pytest.skip("persistent = False: this store is not expected to survive a restart")
        _close(store)
        return opening(pipeline)

    # -- the whole ----------------------------------------------------------------------------

    def test_it_is_a_store(self, store: Store) -> None:
        check_calls(store)

    def test_closing_repeats_safely(self, store: Store) -> None:
        needs(store, "close")
        store.close()
        store.close()

    def test_a_new_store_is_empty(self, store: Store) -> None:
        assert store.get_table_replication_states() == {}
        assert store.get_table_replication_state(ORDERS) is None
        assert_history(store, ORDERS, [])
        assert store.get_table_schemas() == []
        assert store.get_table_schema(ORDERS) is None
        assert store.get_table_mappings() == {}
        assert store.get_table_mapping(ORDERS) is None
        assert store.load_table_replication_states() == 0
        assert store.load_table_schemas() == 0
        assert store.load_table_mappings() == 0
        if has(store, *LEASES):
            assert store.get_lease() is None
        if has(store, *REQUESTS):
            assert store.open_requests() == []

    # -- states -------------------------------------------------------------------------------

    def test_a_state_comes_back_as_it_was(self, store: Store) -> None:
        store.update_table_replication_state(ORDERS, ERRORED)
        assert store.load_table_replication_states() == 1
        state = store.get_table_replication_state(ORDERS)
        assert state == ERRORED
        assert state is not None
        # What equality leaves out.
        assert state.membership.came_empty == ERRORED.membership.came_empty
        assert store.get_table_replication_states() == {ORDERS: ERRORED}
        assert_history(store, ORDERS, [ERRORED])
        assert store.get_table_replication_state(ITEMS) is None

    def test_the_last_error_stays_beside_whatever_phase(self, store: Store) -> None:
        # A table that is tried again is not set aside any more, but has not succeeded either.
        tried = replace(ERRORED, phase=Phase.CATCHUP, since=ERRORED.since + 1)
        over = replace(tried, phase=Phase.READY, since=tried.since + 1, attempts=0, error=None)
        for state in (ERRORED, tried, over):
            store.update_table_replication_state(ORDERS, state)
            store.load_table_replication_states()
            assert store.get_table_replication_state(ORDERS) == state
        assert_history(store, ORDERS, [ERRORED, tried, over])

    def test_moves_are_history(self, store: Store) -> None:
        for state in WAY:
            store.update_table_replication_state(ORDERS, state)
            assert store.get_table_replication_state(ORDERS) == state
        assert_history(store, ORDERS, WAY)

    def test_progress_is_not_history(self, store: Store) -> None:
        init, ready = state_of(Phase.INIT), state_of(Phase.READY, 1)
        store.update_table_replication_state(ORDERS, init)
        for position in (10, 20, 30):
            ready = replace(ready, position=Lsn(position), changes_applied=position)
            store.update_table_replication_state(ORDERS, ready)
            assert store.get_table_replication_state(ORDERS) == ready
        assert_history(store, ORDERS, [init, ready])

    def test_the_same_phase_at_another_time_is_history(self, store: Store) -> None:
        # The third is like the first, but that is not the current one any more.
        way = [state_of(Phase.INIT), state_of(Phase.INIT, 1), state_of(Phase.INIT)]
        way.append(state_of(Phase.DATA_SYNC))
        for state in way:
            store.update_table_replication_state(ORDERS, state)
        assert_history(store, ORDERS, way)

    def test_rollback_goes_back_to_the_first_state(self, store: Store) -> None:
        for state in WAY:
            store.update_table_replication_state(ORDERS, state)
        for kept in range(len(WAY) - 1, 0, -1):
            assert store.rollback_table_replication_state(ORDERS) == WAY[kept - 1]
            assert store.get_table_replication_state(ORDERS) == WAY[kept - 1]
            assert_history(store, ORDERS, WAY[:kept])
        with pytest.raises(NothingToRollBack):
            store.rollback_table_replication_state(ORDERS)
        assert store.get_table_replication_state(ORDERS) == WAY[0]
        assert_history(store, ORDERS, WAY[:1])

    def test_an_unknown_table_has_nothing_to_roll_back(self, store: Store) -> None:
        with pytest.raises(NothingToRollBack):
            store.rollback_table_replication_state(ORDERS)
        assert store.get_table_replication_states() == {}
        assert store.load_table_replication_states() == 0

    def test_history_goes_on_after_a_rollback(self, store: Store) -> None:
        first, second, third, fourth = WAY
        for state in (first, second, third):
            store.update_table_replication_state(ORDERS, state)
        store.rollback_table_replication_state(ORDERS)
        store.update_table_replication_state(ORDERS, replace(second, rows_copied=5))
        store.update_table_replication_state(ORDERS, fourth)
        expected = [first, replace(second, rows_copied=5), fourth]
        assert_history(store, ORDERS, expected)

    def test_of_a_long_history_a_hundred_are_kept(self, store: Store) -> None:
        needs(store, "get_table_replication_history")
        way = [state_of(Phase.READY, step) for step in range(120)]
        for state in way:
            store.update_table_replication_state(ORDERS, state)
        history = store.get_table_replication_history(ORDERS)
        assert 100 <= len(history) <= len(way)
        assert history == way[-len(history) :]
        assert store.rollback_table_replication_state(ORDERS) == way[-2]

    def test_many_tables_at_once(self, store: Store) -> None:
        needs(store, "update_table_replication_states")
        first = {table: state_of(Phase.INIT, rows_copied=table) for table in range(300)}
        store.update_table_replication_states(first)
        assert store.get_table_replication_states() == first
        progress = {table: state_of(Phase.INIT, rows_copied=-1) for table in range(150)}
        moves = {table: state_of(Phase.DATA_SYNC, 1) for table in range(100, 400, 2)}
        store.update_table_replication_states(progress)
        store.update_table_replication_states(moves)
        store.update_table_replication_states({})
        assert store.get_table_replication_states() == {**first, **progress, **moves}
        assert store.load_table_replication_states() == 350
        assert store.get_table_replication_states() == {**first, **progress, **moves}
        assert_history(store, 100, [progress[100], moves[100]])
        assert_history(store, 398, [moves[398]])

    def test_of_several_tables_all_or_none_change(self, store: Store) -> None:
        needs(store, "update_table_replication_states")
        before = dict.fromkeys(range(20), WAY[0])
        store.update_table_replication_states(before)
        broken: dict[int, Any] = {**dict.fromkeys(range(19), WAY[1]), 19: None}
        with pytest.raises(Exception):  # noqa: B017, PT011 (each store in its own way)
            store.update_table_replication_states(broken)
        assert store.get_table_replication_states() == before
        assert store.load_table_replication_states() == 20
        assert store.get_table_replication_states() == before
        for table in before:
            assert_history(store, table, [WAY[0]])

    def test_what_a_getter_gave_is_the_callers_own(self, store: Store) -> None:
        store.update_table_replication_state(ORDERS, ERRORED)
        store.store_table_mapping(ORDERS, TableName("lake", "orders"))
        store.store_table_schema(SCHEMA)
        store.get_table_replication_states().clear()
        store.get_table_mappings().clear()
        store.get_table_schemas().clear()
        if has(store, "get_table_replication_history"):
            store.get_table_replication_history(ORDERS).clear()
        self.check_full(store)

    # -- schemas and mappings -------------------------------------------------------------------

    def test_a_schema_comes_back_as_it_was(self, store: Store) -> None:
        store.store_table_schema(SCHEMA)
        assert store.load_table_schemas() == 1
        assert store.get_table_schema(ORDERS) == SCHEMA
        assert store.get_table_schemas() == [SCHEMA]

    def test_the_form_at_a_position(self, store: Store) -> None:
        schemas = {v: replace(SCHEMA, key=(f"k{v}",), version=Lsn(v)) for v in (1000, 5, 30)}
        for schema in schemas.values():
            store.store_table_schema(schema)
        for _ in ("from the cache", "loaded anew"):
            assert store.get_table_schema(ORDERS, Lsn(4)) is None
            assert store.get_table_schema(ORDERS, Lsn(5)) == schemas[5]
            assert store.get_table_schema(ORDERS, Lsn(29)) == schemas[5]
            assert store.get_table_schema(ORDERS, Lsn(30)) == schemas[30]
            assert store.get_table_schema(ORDERS, Lsn(999)) == schemas[30]
            assert store.get_table_schema(ORDERS, Lsn(1 << 62)) == schemas[1000]
            assert store.get_table_schema(ORDERS) == schemas[1000]
            assert store.get_table_schemas() == [schemas[1000]]
            assert store.load_table_schemas() == 3

    def test_a_form_of_the_same_version_is_replaced(self, store: Store) -> None:
        renamed = replace(SCHEMA, name=TableName("public", "renamed"))
        store.store_table_schema(SCHEMA)
        store.store_table_schema(renamed)
        assert store.get_table_schema(ORDERS) == renamed
        assert store.load_table_schemas() == 1
        assert store.get_table_schema(ORDERS) == renamed

    def test_mappings(self, store: Store) -> None:
        names = {ORDERS: TableName("a.b", 'c:"d"'), ITEMS: TableName("größe", "{x} %s * _")}
        store.store_table_mapping(ORDERS, TableName("before", "this"))
        for table, name in names.items():
            store.store_table_mapping(table, name)
        for _ in ("from the cache", "loaded anew"):
            assert store.get_table_mappings() == names
            assert store.get_table_mapping(ORDERS) == names[ORDERS]
            assert store.get_table_mapping(1) is None
            assert store.load_table_mappings() == 2

    # -- forgetting, others, restarts ---------------------------------------------------------

    def fill(self, store: Store) -> None:
        store.update_table_replication_state(ORDERS, WAY[0])
        store.update_table_replication_state(ORDERS, ERRORED)
        store.store_table_schema(replace(SCHEMA, version=Lsn(1), key=()))
        store.store_table_schema(SCHEMA)
        store.store_table_mapping(ORDERS, TableName("lake", "orders"))

    def check_full(self, store: Store) -> None:
        assert store.get_table_replication_states() == {ORDERS: ERRORED}
        assert store.get_table_schemas() == [SCHEMA]
        assert store.get_table_mappings() == {ORDERS: TableName("lake", "orders")}

    def test_cleanup_forgets_a_table(
        self, store: Store, opening: OpenStores, pipeline: str
    ) -> None:
        self.fill(store)
        store.update_table_replication_state(ITEMS, WAY[0])
        store.store_table_schema(replace(SCHEMA, oid=ITEMS))
        store.store_table_mapping(ITEMS, TableName("lake", "items"))
        store.cleanup_table_state(ITEMS)
        store.cleanup_table_state(ITEMS)
        for current in (store, opening(pipeline)):
            self.check_full(current)
            assert current.get_table_schema(ITEMS) is None
            assert_history(current, ITEMS, [])
            assert_history(current, ORDERS, [WAY[0], ERRORED])
        # A table that comes back begins anew.
        store.update_table_replication_state(ITEMS, WAY[1])
        assert_history(store, ITEMS, [WAY[1]])
        assert store.get_table_schema(ITEMS) is None

    @pytest.mark.parametrize("larger_name_goes", [False, True])
    def test_pipelines_do_not_touch_one_another(
        self, opening: OpenStores, pipeline: str, larger_name_goes: bool
    ) -> None:
        names = [pipeline, f"{pipeline}_2"]
        goes, stays = (opening(name) for name in (reversed(names) if larger_name_goes else names))
        holder = Holder("me", "host", 1)
        asked = Request("r1", TableName("shop", "orders"), Action.RETRY, SINCE)
        leases, requests = has(goes, *LEASES), has(goes, *REQUESTS)
        for store in (goes, stays):
            self.fill(store)
            if leases:
                store.acquire_lease(holder, 60)
            if requests:
                store.put_request(asked)
        goes.cleanup_table_state(ORDERS)
        assert goes.get_table_replication_states() == {}
        self.fill(goes)
        goes.rollback_table_replication_state(ORDERS)
        if requests:
            goes.finish_request("r1", "done")
        if leases:
            goes.release_lease(holder)
        for _ in range(2):
            goes.drop() if has(goes, "drop") else goes.cleanup_table_state(ORDERS)
        again = [opening(name) for name in names]
        gone, stayed = reversed(again) if larger_name_goes else again
        for store in (goes, gone):
            self.test_a_new_store_is_empty(store)
            assert not requests or store.get_request("r1") is None
        for store in (stays, stayed):
            self.check_full(store)
            assert_history(store, ORDERS, [WAY[0], ERRORED])
            if leases:
                lease = store.get_lease()
                assert lease is not None
                assert lease.holder == holder
            if requests:
                assert store.open_requests() == [asked]

    def test_a_restart_finds_everything(
        self, store: Store, opening: OpenStores, pipeline: str
    ) -> None:
        self.fill(store)
        asked = Request("r1", TableName("shop", "orders"), Action.RESYNC, SINCE)
        if has(store, *REQUESTS):
            store.put_request(asked)
        if has(store, *LEASES):
            store.acquire_lease(Holder("me", "host", 1), 60)
        again = self.reopened(store, opening, pipeline)
        self.check_full(again)
        assert_history(again, ORDERS, [WAY[0], ERRORED])
        assert again.get_table_schema(ORDERS, Lsn(2)) == replace(SCHEMA, version=Lsn(1), key=())
        if has(again, *REQUESTS):
            assert again.open_requests() == [asked]
        if has(again, *LEASES):
            assert again.get_lease() is not None
        assert again.rollback_table_replication_state(ORDERS) == WAY[0]
        once_more = self.reopened(again, opening, pipeline)
        assert once_more.get_table_replication_states() == {ORDERS: WAY[0]}

    def test_another_open_store_sees_it_when_it_loads(
        self, opening: OpenStores, pipeline: str
    ) -> None:
        writer, reader = opening(pipeline), opening(pipeline)
        self.fill(writer)
        if self.cached:
            assert reader.get_table_replication_states() == {}
            assert reader.get_table_schemas() == []
            assert reader.get_table_mappings() == {}
        assert_history(reader, ORDERS, [WAY[0], ERRORED])
        assert reader.load_table_replication_states() == 1
        assert reader.load_table_schemas() == 2
        assert reader.load_table_mappings() == 1
        self.check_full(reader)
        writer.cleanup_table_state(ORDERS)
        assert reader.load_table_replication_states() == 0
        assert reader.load_table_schemas() == 0
        assert reader.load_table_mappings() == 0
        assert reader.get_table_replication_states() == {}

    # -- threads ------------------------------------------------------------------------------

    def test_threads_with_tables_of_their_own(self, store: Store) -> None:
        ways = {
            table: [state_of(Phase.READY, step, rows_copied=table) for step in range(12)]
            for table in range(_THREADS)
        }

        def work(table: int) -> None:
            for state in ways[table]:
                store.update_table_replication_state(table, state)
                assert store.get_table_replication_state(table) == state
                assert store.get_table_replication_states()[table] == state

        _at_once(_THREADS, work)
        for table, way in ways.items():
            assert_history(store, table, way)

    def test_threads_and_stores_with_one_table(self, opening: OpenStores, pipeline: str) -> None:
        stores = [opening(pipeline), opening(pipeline)]
        needs(stores[0], "get_table_replication_history")
        moves = 10

        def work(thread: int) -> None:
            for step in range(moves):
                state = state_of(Phase.READY, thread * moves + step)
                stores[thread % 2].update_table_replication_state(ORDERS, state)

        _at_once(_THREADS, work)
        history = stores[0].get_table_replication_history(ORDERS)
        since = [state.since for state in history]
        assert sorted(since) == [SINCE + step for step in range(_THREADS * moves)]
        for thread in range(_THREADS):
            own = [SINCE + thread * moves + step for step in range(moves)]
            assert [moment for moment in since if moment in own] == own
        for store in stores:
            store.load_table_replication_states()
            assert store.get_table_replication_state(ORDERS) == history[-1]

    def test_the_cache_has_what_was_written_last(self, store: Store) -> None:
        _at_once(
            _THREADS,
            lambda thread: store.update_table_replication_state(
                ORDERS, state_of(Phase.READY, thread)
            ),
        )
        current = store.get_table_replication_state(ORDERS)
        store.load_table_replication_states()
        assert current == store.get_table_replication_state(ORDERS)
        if has(store, "get_table_replication_history"):
            assert current == store.get_table_replication_history(ORDERS)[-1]


def assert_history(store: Store, table: int, expected: list[TableReplicationState]) -> None:
    """For a store that has histories: the table has this one."""
    if has(store, "get_table_replication_history"):
        assert store.get_table_replication_history(table) == expected


def _close(store: Store) -> None:
    if has(store, "close"):
        store.close()


def _at_once(threads: int, work: Callable[[int], None]) -> None:
    """Run it in this many threads, which begin together. Their errors are raised here."""
    ready = threading.Barrier(threads)

    def begin(number: int) -> None:
        ready.wait(_WAIT_SECONDS)
        work(number)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(begin, range(threads)))
