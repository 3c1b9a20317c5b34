"""Numbers and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["human_age", "human_bytes", "human_count", "human_rate", "human_seconds", "iso_time"]


def human_count(number: int) -> str:
    """Up to seven digits in full, then in millions."""
    return f"{number:,}" if number < 10_000_000 else f"{number / 1e6:,.1f}M"


def human_rate(number: float) -> str:
    """In at most six characters."""
    return f"{number:,.0f}" if number < 99_999.5 else f"{number / 1000:,.0f}k"


def human_bytes(number: int) -> str:
    if number < 1024:
        return f"{number} B"
    size = float(number)
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1024
        if size < 1000 or unit == "TB":
            break
    return f"{size:.1f} {unit}" if size < 10 else f"{size:,.0f} {unit}"


def human_seconds(seconds: float) -> str:
    if seconds < 0.05:
        return "0 s"
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:,.1f} h"


def human_age(seconds: float) -> str:
    """An age in whole units; negative ages (another host's clock) are 0."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def iso_time(at: float, timespec: str = "milliseconds") -> str:
    """A Unix time in ISO 8601, UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
