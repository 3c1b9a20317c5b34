"""Copies that wait for a thread: the largest comes first."""

from __future__ import annotations

import threading
from functools import partial

from tests.pipeline.running import WAIT
from walflow.pipeline.table_sync.table_sync import LargestFirst


def test_the_largest_comes_first_and_equals_in_their_order() -> None:
    pool, begun, go_on = LargestFirst(1, "test"), threading.Event(), threading.Event()
    done: list[str] = []

    def hold() -> None:
        begun.set()
        assert go_on.wait(WAIT)

    pool.submit(0, hold)
    assert begun.wait(WAIT)
    last = threading.Event()
    for name, size in (("small", 1), ("large", 30), ("first", 2), ("second", 2)):
        pool.submit(size, partial(done.append, name))
    pool.submit(-1, last.set)
    go_on.set()
    assert last.wait(WAIT)
    pool.close()
    assert done == ["large", "first", "second", "small"]
