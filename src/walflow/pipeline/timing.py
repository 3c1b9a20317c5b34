"""How often a pipeline checks things, and how long it waits for others."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Timing"]


@dataclass(frozen=True, slots=True)
class Timing:
    """All values are in seconds. They are not settings for users. A test can give a pipeline short
    times where it would wait, and long ones where a slow machine must not matter."""

    publication: float = 2.0
    """Between two checks of what is published."""
    set_aside: float = 10.0
    """Between two full reads of the catalog for tables that were set aside for a cause that the
    cheap check does not see."""
    requests: float = 1.0
    """Between two checks for operators' requests."""
    cut: float = 10.0
    """Between two positions at which all tables end a batch, so that they can be read together."""
    batch: float = 10.0
    """How long a table's batch should take. The rest waits for the next one. If the process ends,
    at most this much work is repeated."""
    lease: float = 15.0
    """How long the lease stays valid without a renewal."""
    lease_renewal: float = 3.0
    lease_poll: float = 0.5
    """Between two attempts to take a lease that another process holds."""
    catalog: float = 15.0
    """How long a start waits for a catalog. After that, the source's log is received without it."""
    store_pause: float = 0.5
    """Between two attempts to reach a store that does not answer."""
    table_lock: float = 10.0
    """A table that is locked for longer releases its connections to others, and is tried again."""
