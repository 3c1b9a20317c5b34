"""How often a pipeline looks at things, and how long it waits for others."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Timing"]


@dataclass(frozen=True, slots=True)
class Timing:
    """In seconds. Users do not choose these. They are a value so that a test can give a pipeline
    short ones where it would wait, and long ones where a slow machine must not matter."""

    publication: float = 2.0
    """Between two looks at what is published."""
    set_aside: float = 10.0
    """Between two such looks at a table that was set aside for a reason that only a full look shows
    the end of."""
    requests: float = 1.0
    """Between two looks at what commands ask for."""
    cut: float = 10.0
    """Between two positions at which all tables end a batch, so that they can be read together."""
    batch: float = 10.0
    """About how long a table's batch may take: what is left waits for the next one. If the process
    ends, no more than this is done again."""
    lease: float = 15.0
    """How long the pipeline stays ours without a word of us."""
    lease_renewal: float = 3.0
    lease_poll: float = 0.5
    """Between two attempts to take a lease that another process has."""
    catalog: float = 15.0
    """How long a start waits for a catalog before the source's log is received without it."""
    store_pause: float = 0.5
    """Before a store that does not answer is asked again."""
    table_lock: float = 10.0
    """A table that is locked for longer gives its connections to others, and is tried again."""
