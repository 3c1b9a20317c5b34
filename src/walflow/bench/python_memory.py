"""What this process says of its memory."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass

import psutil
import pyarrow as pa

__all__ = ["PythonMemory", "python_memory"]

_MB = 1e6


@dataclass(frozen=True, slots=True)
class PythonMemory:
    resident_mb: float
    """As the operating system counts it: all of these, code, and what allocators keep."""
    arrow_mb: float
    """What Arrow's pool has lent. What it keeps for later besides is not known."""
    arrow_most_mb: float
    """The most that it had lent at once."""
    blocks: int
    """Objects of Python, more or less."""
    threads: int


def python_memory() -> PythonMemory:
    pool = pa.default_memory_pool()
    return PythonMemory(
        resident_mb=psutil.Process().memory_info().rss / _MB,
        arrow_mb=pool.bytes_allocated() / _MB,
        arrow_most_mb=(pool.max_memory() or 0) / _MB,
        blocks=sys.getallocatedblocks(),
        threads=threading.active_count(),
    )
