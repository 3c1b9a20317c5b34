"""The part of the stores' contract about several processes: leases and requests.

It is used through ``walflow.testing.stores.StoreContract``, which has the fixtures.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from walflow.errors import LeaseLost, PipelineInUse
from walflow.model import Lsn, TableName
from walflow.stores.base import (
    Action,
    Holder,
    LeaseStore,
    Report,
    Request,
    RequestStore,
    Store,
)
from walflow.stores.own import calls_of

__all__ = [
    "LEASES",
    "REQUESTS",
    "LeaseContract",
    "OpenStores",
    "RequestContract",
    "has",
    "needs",
]

_ONE = Holder("5d6e", "east.example", 4711)
_TWO = Holder("77aa", "west.example", 4712)
_REPORT = Report(Lsn(300), Lsn(200), Lsn(100), 1.5, 1_763_000_000.25)
_SHORT = 0.2
_LONG = 300.0
_WAIT_SECONDS = 300.0
"""Only ends what hangs."""


OpenStores = Callable[[str], Store]

LEASES = calls_of(LeaseStore)
REQUESTS = calls_of(RequestStore)


def has(store: object, *calls: str) -> bool:
    """Whether the store has these calls, which are optional."""
    return all(hasattr(store, call) for call in calls)


def needs(store: object, *calls: str) -> None:
    """Skip the test if the store does not have these optional calls."""
    if not has(store, *calls):
        pytest.skip(f"optional, and not in this store: {', '.join(calls)}")


class LeaseContract:
    """Only one process at a time runs a pipeline."""

    @pytest.fixture
    def opening_leases(self, opening: OpenStores) -> OpenStores:
        return opening_with(opening, LEASES)

    @pytest.fixture
    def leases(self, opening_leases: OpenStores, pipeline: str) -> Store:
        return opening_leases(pipeline)

    def test_a_lease_is_seen_by_all(self, opening_leases: OpenStores, pipeline: str) -> None:
        store, other = opening_leases(pipeline), opening_leases(pipeline)
        store.acquire_lease(_ONE, _LONG)
        for seen in (store.get_lease(), other.get_lease()):
            assert seen is not None
            assert (seen.holder, seen.report) == (_ONE, None)
            assert 0 < seen.seconds_left <= _LONG

    def test_the_holder_may_take_it_again(self, leases: Store) -> None:
        leases.acquire_lease(_ONE, 1)
        leases.acquire_lease(_ONE, _LONG)
        assert _seconds_left(leases) > 1

    def test_another_is_refused(self, opening_leases: OpenStores, pipeline: str) -> None:
        store, other = opening_leases(pipeline), opening_leases(pipeline)
        store.acquire_lease(_ONE, _LONG)
        with pytest.raises(PipelineInUse) as refused:
            other.acquire_lease(_TWO, _LONG)
        assert _ONE.host in refused.value.message
        assert str(_ONE.pid) in refused.value.message
        assert _holder(store) == _ONE

    def test_a_released_lease_is_free(self, leases: Store) -> None:
        leases.acquire_lease(_ONE, _LONG)
        leases.release_lease(_ONE)
        leases.release_lease(_ONE)
        assert leases.get_lease() is None
        leases.acquire_lease(_TWO, _LONG)
        assert _holder(leases) == _TWO

    def test_only_the_holder_releases(self, leases: Store) -> None:
        leases.release_lease(_TWO)
        leases.acquire_lease(_ONE, _LONG)
        leases.release_lease(_TWO)
        assert _holder(leases) == _ONE

    def test_a_lease_that_ran_out_can_be_taken(self, leases: Store) -> None:
        leases.acquire_lease(_ONE, _SHORT)
        leases.renew_lease(_ONE, _SHORT, _REPORT)
        _wait_until_run_out(leases)
        assert _holder(leases) == _ONE
        leases.acquire_lease(_TWO, _LONG)
        lease = leases.get_lease()
        assert lease is not None
        assert (lease.holder, lease.report) == (_TWO, None)
        # The one that had it learns of it, and changes nothing.
        with pytest.raises(LeaseLost) as lost:
            leases.renew_lease(_ONE, _LONG, _REPORT)
        assert _TWO.host in lost.value.message
        leases.release_lease(_ONE)
        with pytest.raises(PipelineInUse):
            leases.acquire_lease(_ONE, _LONG)
        lease = leases.get_lease()
        assert lease is not None
        assert (lease.holder, lease.report) == (_TWO, None)

    def test_a_lease_that_was_taken_and_released_is_lost_too(self, leases: Store) -> None:
        leases.acquire_lease(_ONE, _SHORT)
        _wait_until_run_out(leases)
        leases.acquire_lease(_TWO, _LONG)
        leases.release_lease(_TWO)
        with pytest.raises(LeaseLost):
            leases.renew_lease(_ONE, _LONG)
        assert leases.get_lease() is None

    def test_a_lease_that_ran_out_is_renewed_if_nobody_took_it(self, leases: Store) -> None:
        leases.acquire_lease(_ONE, _SHORT)
        _wait_until_run_out(leases)
        leases.renew_lease(_ONE, _LONG, _REPORT)
        assert _seconds_left(leases) > _SHORT
        with pytest.raises(PipelineInUse):
            leases.acquire_lease(_TWO, _LONG)

    def test_the_last_report_stays(self, leases: Store) -> None:
        newer = replace(_REPORT, applied=Lsn(200), lag_seconds=0.0)
        leases.acquire_lease(_ONE, _LONG)
        for report, expected in ((_REPORT, _REPORT), (newer, newer), (None, newer)):
            leases.renew_lease(_ONE, _LONG, report)
            lease = leases.get_lease()
            assert lease is not None
            assert lease.report == expected

    def test_of_many_at_once_one_gets_it(self, opening_leases: OpenStores, pipeline: str) -> None:
        stores = [opening_leases(pipeline) for _ in range(4)]
        holders = [Holder(f"h{number}", "host", number) for number in range(8)]
        for attempt in ("never taken", "released", "run out"):
            ready = threading.Barrier(len(holders))

            def take(number: int, ready: threading.Barrier = ready) -> Holder | None:
                ready.wait(_WAIT_SECONDS)
                try:
                    stores[number % len(stores)].acquire_lease(holders[number], _LONG)
                except PipelineInUse:
                    return None
                return holders[number]

            with ThreadPoolExecutor(len(holders)) as pool:
                winners = [won for won in pool.map(take, range(len(holders))) if won is not None]
            assert len(winners) == 1, attempt
            assert _holder(stores[0]) == winners[0]
            stores[0].release_lease(winners[0])
            if attempt == "released":
                stores[0].acquire_lease(_ONE, _SHORT)
                _wait_until_run_out(stores[0])


class RequestContract:
    """Requests of a command to a pipeline that runs in another process."""

    @pytest.fixture
    def opening_requests(self, opening: OpenStores) -> OpenStores:
        return opening_with(opening, REQUESTS)

    @pytest.fixture
    def requests(self, opening_requests: OpenStores, pipeline: str) -> Store:
        return opening_requests(pipeline)

    def test_requests_wait_oldest_first(self, opening_requests: OpenStores, pipeline: str) -> None:
        running, command = opening_requests(pipeline), opening_requests(pipeline)
        asked = [_request(f"r{n}", action, n) for n, action in enumerate(Action)]
        for request in (asked[2], asked[0], asked[1]):
            command.put_request(request)
        assert running.open_requests() == asked
        assert running.get_request("r1") == asked[1]
        assert running.get_request("r9") is None

    def test_an_outcome_is_seen_by_all(self, opening_requests: OpenStores, pipeline: str) -> None:
        running, command = opening_requests(pipeline), opening_requests(pipeline)
        first, second, third = (_request(f"r{n}", Action.RETRY, n) for n in range(3))
        for request in (first, second, third):
            command.put_request(request)
        running.finish_request("r0", "done: größer")
        running.finish_request("r2", "no such table", refused=True)
        assert command.get_request("r0") == replace(first, outcome="done: größer")
        assert command.get_request("r2") == replace(third, outcome="no such table", refused=True)
        assert command.get_request("r1") == second
        assert command.open_requests() == [second]

    def test_an_unknown_request_is_not_finished(self, requests: Store) -> None:
        requests.finish_request("r9", "done")
        assert requests.get_request("r9") is None
        assert requests.open_requests() == []

    def test_a_request_that_is_put_twice_is_one(self, requests: Store) -> None:
        request = _request("r1", Action.ROLLBACK, 0)
        requests.put_request(request)
        requests.put_request(request)
        assert requests.open_requests() == [request]


def opening_with(opening: OpenStores, calls: tuple[str, ...]) -> OpenStores:
    def open_one(pipeline: str) -> Store:
        store = opening(pipeline)
        needs(store, *calls)
        return store

    return open_one


def _request(id: str, action: Action, age: int) -> Request:
    # Of today: a store may forget what was finished long ago.
    return Request(id, TableName("shop", 'the "orders"'), action, time.time() - 60 + age)


def _holder(store: Store) -> Holder | None:
    lease = store.get_lease()
    return None if lease is None else lease.holder


def _seconds_left(store: Store) -> float:
    lease = store.get_lease()
    assert lease is not None
    return lease.seconds_left


def _wait_until_run_out(store: Store) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while _seconds_left(store) > 0:
        assert time.monotonic() < deadline, "the lease does not run out"
        time.sleep(0.02)
