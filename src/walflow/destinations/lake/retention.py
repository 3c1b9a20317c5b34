"""How long former versions of a table are kept: all for a while, then fewer and fewer.

A busy table has a version a second. All of a day would be more than its list of versions, which
each commit writes anew, can bear.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from walflow.destinations.lake.format import Version

__all__ = ["Retention", "kept_by_age"]

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0

_ALL_KEPT = 15 * _MINUTE
"""All younger versions stay: a reader who names no version needs time to finish."""
_KEPT = ((_MINUTE, _HOUR), (10 * _MINUTE, _DAY), (_HOUR, 30 * _DAY), (_DAY, 3650 * _DAY))
"""One version a minute stays for an hour, and so on, as far as the settings allow."""


@dataclass(slots=True)
class Retention:
    """How long each new one of a series is kept."""

    longest: float
    """By the settings, in seconds."""
    _last: dict[float, int] = field(default_factory=dict)

    def seconds(self, now: float) -> float:
        """For the one that is new now."""
        seconds = _ALL_KEPT
        for every, long in _KEPT:
            if self._last.get(every) != (turn := int(now // every)):
                self._last[every] = turn
                seconds = long
        return min(seconds, self.longest)


def kept_by_age(versions: Sequence[Version], now: float, longest: float) -> set[int]:
    """The versions, oldest to newest, that the table had at the moments to be kept."""
    times = [version.committed.timestamp() for version in versions]
    moments = [now - min(_ALL_KEPT, longest)]
    for every, long in _KEPT:
        begin, moment = now - min(long, longest), now // every * every
        while moment >= begin:
            moments.append(moment)
            moment -= every
    staying = {version.id for version in versions[bisect_right(times, moments[0]) :]}
    for moment in moments:
        if (at := bisect_right(times, moment) - 1) >= 0:
            staying.add(versions[at].id)
    return staying
