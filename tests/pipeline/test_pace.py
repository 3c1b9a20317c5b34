"""How much goes into one batch: what fits into ten seconds, whatever a destination is like."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from walflow.pipeline.apply.pace import Pace

SEGMENT = 1_000_000


def batches(seconds_of: Callable[[int], float], backlog: int) -> list[tuple[int, float]]:
    """The batches (segments and seconds) in which a backlog gets into a destination that takes so
    many seconds for so many segments."""
    pace, done = Pace(10), []
    while backlog:
        count = pace.fitting([SEGMENT] * backlog)
        assert 1 <= count <= backlog
        pace.took(count * SEGMENT, seconds_of(count))
        done.append((count, seconds_of(count)))
        backlog -= count
    return done


@pytest.mark.parametrize("a_second", [0.2, 1, 2, 5, 20, 100])
def test_a_batch_takes_about_ten_seconds(a_second: float) -> None:
    done = batches(lambda count: 0.3 + count / a_second, 5000)
    # The first one is a guess.
    assert all(seconds <= 15 for _, seconds in done[1:] if seconds > 2 / a_second + 0.3)
    assert done[0][0] == 4
    # Small ones are few: a backlog takes hardly longer than in one go.
    assert sum(seconds for _, seconds in done) < 1.15 * (0.3 + 5000 / a_second)


def test_a_table_that_costs_much_however_little_is_written_gets_large_batches() -> None:
    """A MERGE that has to look through a very large table, say."""
    done = batches(lambda count: 60 + count / 2, 5000)
    assert len(done) < 20
    assert sum(seconds for _, seconds in done) < 1.5 * (60 + 5000 / 2)


def test_a_segment_is_the_least() -> None:
    pace = Pace(10)
    assert pace.fitting([10**12, 1]) == 1
    pace.took(10**12, 10_000)
    assert pace.fitting([1, 10**12]) == 1
    pace.took(1, 10_000)
    assert pace.fitting([10**12]) == 1


def test_small_batches_do_not_make_the_next_large_one_small() -> None:
    pace = Pace(10)
    for size, seconds in ((2000, 0.5), (1000, 0.9), (4000, 0.3), (500, 0.4)):
        pace.took(size, seconds)
    assert pace.fitting([SEGMENT] * 100) >= 4


def test_a_small_batch_that_took_long_says_nothing_of_larger_ones() -> None:
    pace = Pace(10)
    for _ in range(10):
        pace.took(2000, 30)
        assert pace.fitting([2000] * 1000) == 1000


def test_a_machine_that_stood_still_is_forgotten() -> None:
    pace = Pace(10)
    pace.took(10_000, 120)
    counts = []
    for _ in range(20):
        counts.append(pace.fitting([SEGMENT] * 1000))
        pace.took(counts[-1] * SEGMENT, 0.3 + counts[-1] / 10)
    assert counts[-1] > 60
