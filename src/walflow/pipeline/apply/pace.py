"""How much goes into one batch: about what can be written in some seconds.

A batch is all or nothing. An unbounded batch would have to begin again each time the process ends
before it is done. A bounded one loses at most some seconds of work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

__all__ = ["Pace"]

_FIRST_BYTES_A_SECOND = 400_000
"""The assumed speed before the first batch, in bytes of the log's files: every destination is
faster. So a process that is killed again and again gets past its first batch."""
_TINY_SHARE = 1 / 16
"""A batch below this share of the first guess says nothing about speed: its time does not come
from its size."""
_GROWTH = 4
"""A batch is at most this many times larger than the largest one so far."""
_FIXED_SHARE = 4
"""The fixed cost of a batch may be one in so many parts of its time. With smaller batches the total
work would grow."""
_REMEMBERED = 8


class Pace:
    """The sizes and times of one table's last batches. For one thread at a time."""

    def __init__(self, seconds: float) -> None:
        """``seconds``: how long a batch should take, roughly."""
        self._seconds = seconds
        self._first = _FIRST_BYTES_A_SECOND * seconds
        self._batches: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)

    def took(self, size: int, seconds: float) -> None:
        """Note that a batch of this many bytes was written in this time."""
        self._batches.append((max(1.0, size), seconds))

    def fitting(self, sizes: Sequence[int]) -> int:
        """How many of the pieces of these sizes go into the next batch: at least one."""
        room, count = self._room(), 0
        for size in sizes:
            room -= size
            if room < 0 and count:
                break
            count += 1
        return count

    def _room(self) -> float:
        if not self._batches:
            return self._first
        largest = max(size for size, _ in self._batches)
        if largest < self._first * _TINY_SHARE:
            return self._first
        fixed, each = _costs(self._batches)
        useful = max(self._seconds - fixed, (_FIXED_SHARE - 1) * fixed)
        fits = useful / each if each else float("inf")
        if max(seconds for _, seconds in self._batches) < self._seconds / _GROWTH:
            # Quick ones say little of what takes long.
            return max(self._first, min(fits, _GROWTH * largest))
        return min(fits, _GROWTH * largest)


def _costs(batches: Collection[tuple[float, float]]) -> tuple[float, float]:
    """The fixed cost of a batch and the cost of a byte, in seconds."""
    count = len(batches)
    sizes, times = [size for size, _ in batches], [seconds for _, seconds in batches]
    by_size = 0.0, sum(times) / sum(sizes)
    if max(sizes) < 2 * min(sizes):
        return by_size  # they do not tell the one from the other
    mean_size, mean_time = sum(sizes) / count, sum(times) / count
    together = sum((s - mean_size) * (t - mean_time) for s, t in batches)
    each = max(0.0, together / sum((s - mean_size) ** 2 for s in sizes))
    fixed = mean_time - each * mean_size
    return (fixed, each) if fixed >= 0 else by_size
