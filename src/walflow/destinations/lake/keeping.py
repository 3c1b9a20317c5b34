"""How long what a table once was can be read again: everything for a while, then less and less.

A busy table has a version a second. All of a day would be more than its list of versions, which
each commit writes anew, can bear.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from walflow.destinations.lake.format import Version

__all__ = ["Keeping", "kept_over_time"]

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0

_ALL_KEPT = 15 * _MINUTE
"""All that are younger stay: whoever reads a table, and does not say as of when, must get done."""
_KEPT = ((_MINUTE, _HOUR), (10 * _MINUTE, _DAY), (_HOUR, 30 * _DAY), (_DAY, 3650 * _DAY))
"""One in each of these times stays so long, if the settings let it."""


@dataclass(slots=True)
class Keeping:
    """Says of each of a row of things how long it is kept."""

    longest: float
    """By the settings, in seconds."""
    _last: dict[float, int] = field(default_factory=dict)

    def seconds(self, now: float) -> float:
        """Of the one that has come now."""
        kept = _ALL_KEPT
        for every, long in _KEPT:
            if self._last.get(every) != (turn := int(now // every)):
                self._last[every] = turn
                kept = long
        return min(kept, self.longest)


def kept_over_time(versions: Sequence[Version], now: float, longest: float) -> set[int]:
    """Those, of a table's oldest to newest, that it was at the moments that are kept."""
    times = [version.committed.timestamp() for version in versions]
    moments = [now - min(_ALL_KEPT, longest)]
    for every, long in _KEPT:
        begin, moment = now - min(long, longest), now // every * every
        while moment >= begin:
            moments.append(moment)
            moment -= every
    kept = {version.id for version in versions[bisect_right(times, moments[0]) :]}
    for moment in moments:
        if (at := bisect_right(times, moment) - 1) >= 0:
            kept.add(versions[at].id)
    return kept
