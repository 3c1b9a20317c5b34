"""The budget of connections: never exceeded, shared fairly, first come first served."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.pipeline.capturing import wait_for
from tests.pipeline.running import HOLD, WAIT
from walflow.errors import Stopped
from walflow.pipeline.table_sync.copy_connections import Connections

NEVER = threading.Event()


class Holder:
    """A table that holds its share until it is told to let go."""

    def __init__(self, pool: ThreadPoolExecutor, connections: Connections, wanted: int) -> None:
        self.granted = 0
        self._let_go = threading.Event()
        self._job: Future[None] = pool.submit(self._hold, connections, wanted)

    def _hold(self, connections: Connections, wanted: int) -> None:
        with connections.share(wanted, NEVER) as granted:
            self.granted = granted
            assert self._let_go.wait(HOLD)

    def let_go(self) -> None:
        self._let_go.set()
        self._job.result(WAIT)


def waiting(connections: Connections, count: int) -> Callable[[], bool]:
    return lambda: len(connections._waiting) == count


def test_one_alone_has_all_that_it_can_use() -> None:
    connections = Connections(4)
    for wanted, granted in ((9, 4), (3, 3), (1, 1)):
        with connections.share(wanted, NEVER) as got:
            assert got == granted


def test_who_comes_while_others_are_there_gets_a_fair_part() -> None:
    connections = Connections(8)
    with connections.share(2, NEVER), connections.share(8, NEVER) as second:
        assert second == 4
        with connections.share(8, NEVER) as third:
            assert third == 2
    with connections.share(8, NEVER) as alone:
        assert alone == 8


def test_those_that_wait_are_served_in_turn_and_counted() -> None:
    connections = Connections(4)
    with ThreadPoolExecutor(4) as pool:
        large = Holder(pool, connections, 4)
        wait_for(lambda: large.granted == 4, WAIT)
        small = Holder(pool, connections, 1)
        wait_for(waiting(connections, 1), WAIT)
        another = Holder(pool, connections, 4)
        wait_for(waiting(connections, 2), WAIT)
        # The large one asks again for its next piece: it comes after both.
        again = Holder(pool, connections, 4)
        wait_for(waiting(connections, 3), WAIT)
        assert (small.granted, another.granted, again.granted) == (0, 0, 0)
        large.let_go()
        wait_for(lambda: all(h.granted for h in (small, another, again)), WAIT)
        assert small.granted == 1
        assert small.granted + another.granted + again.granted <= 4
        for holder in (small, another, again):
            holder.let_go()


def test_more_tables_than_connections() -> None:
    connections = Connections(2)
    with ThreadPoolExecutor(5) as pool:
        holders = [Holder(pool, connections, 2) for _ in range(5)]
        while holders:
            wait_for(lambda: any(h.granted for h in holders), WAIT)
            assert sum(h.granted for h in holders) <= 2
            served = next(h for h in holders if h.granted)
            served.let_go()
            holders.remove(served)


def test_who_waits_can_be_stopped_and_leaves_no_gap() -> None:
    connections = Connections(1)
    stop = threading.Event()

    def wait() -> None:
        with connections.share(1, stop):
            raise AssertionError("there was none free")

    with ThreadPoolExecutor(1) as pool:
        with connections.share(1, NEVER):
            job = pool.submit(wait)
            wait_for(waiting(connections, 1), WAIT)
            stop.set()
            with pytest.raises(Stopped):
                job.result(WAIT)
        with connections.share(1, NEVER) as got:
            assert got == 1


def test_an_error_gives_the_share_back() -> None:
    connections = Connections(2)
    with pytest.raises(ValueError, match="x"), connections.share(2, NEVER):
        raise ValueError("x")
    with connections.share(2, NEVER) as got:
        assert got == 2
