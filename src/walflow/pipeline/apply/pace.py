"""How much of what waits for a table goes into one batch: about what fits into some seconds.

A batch is all or nothing. One that takes everything would have to begin again each time that the
process ends before it is done; one that is bounded keeps what it has reached.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

__all__ = ["Pace"]

_FIRST_BYTES_A_SECOND = 400_000
"""Of the log's files: less than any destination here is known to take. A process that is ended
again and again gets on with its first batch."""
_TINY_SHARE = 1 / 16
"""Of the first guess: how long a smaller batch took is not due to its size."""
_GROWTH = 4
"""A batch is at most so many times larger than those that are known."""
_FIXED_SHARE = 4
"""What a batch costs however small it is may be this part of its time. Batches that are smaller
would be more work in all, and no progress."""
_REMEMBERED = 8


class Pace:
    """What is known of one table's last batches. For one thread at a time."""

    def __init__(self, seconds: float) -> None:
        """``seconds``: about how long a batch may take."""
        self._seconds = seconds
        self._first = _FIRST_BYTES_A_SECOND * seconds
        self._batches: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)

    def took(self, size: int, seconds: float) -> None:
        """A batch of so many bytes was written in so many seconds."""
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
    """What a batch costs in any case, and what each byte does, in seconds."""
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
