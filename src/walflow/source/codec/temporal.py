"""Dates and timestamps: clamped to the years 1 to 9999, with an overflow text for clamped values.

Spark, Iceberg and most readers support only those years. Postgres goes from 4714 BC to 294276 AD
and has infinities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from walflow.source.codec.cells import Cells
from walflow.source.codec.converted import Converted, Mask, fixed_width, mask, overflow_texts
from walflow.source.codec.scalars import read_fixed

__all__ = ["DATE", "TIMESTAMP", "TIMESTAMPTZ", "Calendar", "from_binary", "from_text"]

_EPOCH_DAYS = 10_957  # 1970-01-01 to 2000-01-01, where Postgres counts from
_DAY = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, from 1970


@dataclass(frozen=True, slots=True)
class Calendar:
    """One of the three types: its Arrow type, its bounds, and the text format."""

    kind: pa.DataType
    dtype: str
    epoch: int
    lowest: int
    highest: int
    lowest_text: str
    highest_text: str
    suffix: str = ""


DATE = Calendar(
    kind=pa.date32(),
    dtype="i4",
    epoch=_EPOCH_DAYS,
    lowest=_FIRST_DAY,
    highest=_LAST_DAY,
    lowest_text="0001-01-01",
    highest_text="9999-12-31",
)
TIMESTAMP = Calendar(
    kind=pa.timestamp("us"),
    dtype="i8",
    epoch=_EPOCH_DAYS * _DAY,
    lowest=_FIRST_DAY * _DAY,
    highest=(_LAST_DAY + 1) * _DAY - 1,
    lowest_text="0001-01-01 00:00:00",
    highest_text="9999-12-31 23:59:59.999999",
)
TIMESTAMPTZ = Calendar(
    kind=pa.timestamp("us", "UTC"),
    dtype="i8",
    epoch=_EPOCH_DAYS * _DAY,
    lowest=_FIRST_DAY * _DAY,
    highest=(_LAST_DAY + 1) * _DAY - 1,
    lowest_text="0001-01-01 00:00:00+00",
    highest_text="9999-12-31 23:59:59.999999+00",
    suffix="+00",
)


def from_text(calendar: Calendar, cells: Cells) -> Converted:
    """Raises pa.ArrowInvalid for a text that is no ISO date or timestamp (in UTC)."""
    text = cells.to_text()
    try:
        return Converted(pc.cast(text, calendar.kind))
    except pa.ArrowInvalid:
        pass  # at least one row is out of Arrow's range: look for them
    early: Any = pc.match_substring_regex(text, r"^(-infinity|\d{4,}-.* BC)$")
    late: Any = pc.match_substring_regex(text, r"^(infinity|\d{5,}-.*[^C])$")
    clamped: Any = pc.if_else(late, calendar.highest_text, text)
    clamped = pc.if_else(early, calendar.lowest_text, clamped)
    return Converted(
        pc.cast(clamped, calendar.kind), overflow_texts(cells, mask(early) | mask(late))
    )


def from_binary(calendar: Calendar, cells: Cells) -> Converted:
    raw = read_fixed(cells, calendar.dtype)
    lowest, highest = calendar.lowest - calendar.epoch, calendar.highest - calendar.epoch
    overflow = None
    if len(raw) and (raw.min() < lowest or raw.max() > highest):
        odd = (raw < lowest) | (raw > highest)
        if cells.valid is not None:
            odd &= cells.valid
        overflow = _texts(calendar, raw, odd)
        raw = np.clip(raw, lowest, highest)
    raw += calendar.epoch
    return Converted(fixed_width(calendar.kind, raw, cells.valid), overflow)


def _texts(calendar: Calendar, raw: npt.NDArray[Any], rows: Mask) -> pa.StringArray | None:
    if not rows.any():
        return None
    texts = np.full(len(raw), None, object)
    # These rows are rare by nature, so one at a time is fast enough.
    for row in np.flatnonzero(rows).tolist():
        texts[row] = _text(calendar, int(raw[row]))
    return pa.array(texts, pa.string())


def _text(calendar: Calendar, value: int) -> str:
    """What Postgres's output function prints in UTC and ISO style; counts from 2000-01-01."""
    limits = np.iinfo(calendar.dtype)
    if value == limits.max:
        return "infinity"
    if value == limits.min:
        return "-infinity"
    value += calendar.epoch
    days, clock = (value, "") if calendar.dtype == "i4" else _split(value)
    year, month, day = _civil(days)
    era = "" if year > 0 else " BC"
    shown = year if year > 0 else 1 - year
    return f"{shown:04d}-{month:02d}-{day:02d}{clock}{calendar.suffix}{era}"


def _split(value: int) -> tuple[int, str]:
    days, rest = divmod(value, _DAY)
    seconds, micros = divmod(rest, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    fraction = f".{micros:06d}".rstrip("0") if micros else ""
    return days, f" {hour:02d}:{minute:02d}:{second:02d}{fraction}"


def _civil(days: int) -> tuple[int, int, int]:
    """Year (0 is 1 BC), month and day of a day counted from 1970, proleptic Gregorian.

    The year is taken to begin in March, so that the leap day is its last; 400 years have 146097
    days, and 719468 days lie between 0000-03-01 and 1970-01-01.
    """
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    return era * 400 + year_of_era + (month <= 2), month, day
