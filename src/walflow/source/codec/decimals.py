"""numeric: becomes a decimal where the value fits exactly, otherwise NULL with its overflow text.

Nothing is ever rounded into a decimal. As ``double``, a value becomes the nearest double, and its
overflow text is stored unless the double's shortest decimal form is the same number.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from walflow.source.codec.cells import Cells
from walflow.source.codec.converted import Converted, Mask, fixed_width, mask, overflow_texts
from walflow.source.codec.scalars import read_fixed

__all__ = [
    "BINARY_DIGITS",
    "decimal_from_binary",
    "decimal_from_text",
    "declared_decimal",
    "double_from_text",
    "numeric_text",
]

MAX_DIGITS = 38
BINARY_DIGITS = 18
"""Up to this precision the binary format is read: the unscaled value fits 64 bits."""

_NEGATIVE, _NAN, _INFINITE, _MINUS_INFINITE = 0x4000, 0xC000, 0xD000, 0xF000
_SPECIAL = {_NAN: "NaN", _INFINITE: "Infinity", _MINUS_INFINITE: "-Infinity"}
_POWERS = 10 ** np.arange(19, dtype=np.int64)


def declared_decimal(typmod: int) -> tuple[int, int] | None:
    """Precision and scale of the decimal that holds every value of ``numeric(p,s)``.

    None without a precision, or when it takes more than 38 digits. Since Postgres 15 the scale is
    signed and may be above the precision.
    """
    if typmod < 4:
        return None
    precision = ((typmod - 4) >> 16) & 0xFFFF
    scale = (((typmod - 4) & 0x7FF) ^ 1024) - 1024
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    return (precision, scale) if precision <= MAX_DIGITS else None


def decimal_from_text(cells: Cells, precision: int, scale: int) -> Converted:
    kind = pa.decimal128(precision, scale)
    if len(cells) == 0:
        return Converted(pa.array([], kind))
    lengths = cells.end - cells.start
    # Arrow computes modulo 2**128 and does not always notice: it may be trusted only where the
    # integer digits (at most the text's length) and the scale together stay within 38.
    if int(lengths.max()) + scale <= MAX_DIGITS:
        try:
            return Converted(pc.cast(cells.to_text(), kind))
        except pa.ArrowInvalid:
            pass  # some row does not fit: find out which
    text = cells.to_text()
    whole = precision - scale
    integer = f"(0|[1-9][0-9]{{0,{whole - 1}}})" if whole else "0"
    fits: Any = pc.match_substring_regex(text, rf"^-?{integer}([.][0-9]{{0,{scale}}}0*)?$")
    trimmed: Any = pc.replace_substring_regex(text, rf"^(-?[0-9]+[.][0-9]{{{scale}}})0+$", r"\1")
    held: Any = pc.if_else(fits, trimmed, pa.scalar(None, pa.string()))
    return Converted(pc.cast(held, kind), overflow_texts(cells, mask(pc.invert(fits))))


def _widened(
    unscaled: npt.NDArray[np.int64], precision: int, scale: int, valid: Mask | None
) -> pa.Array[Any]:
    """64-bit unscaled values as Arrow's 128-bit decimals."""
    wide = np.empty((len(unscaled), 2), np.int64)
    wide[:, 0] = unscaled
    np.right_shift(unscaled, 63, out=wide[:, 1])
    return fixed_width(pa.decimal128(precision, scale), wide, valid)


def decimal_from_binary(cells: Cells, precision: int, scale: int) -> Converted:
    """For at most 18 digits of precision.

    A numeric is sent as four 16-bit words (how many base-10000 digits follow, the weight of the
    first, the sign, the display scale) and the digits. Four digits are one eight-byte read.
    """
    header = read_fixed(cells, "u8")
    if cells.valid is not None:
        header *= cells.valid
    count = (header >> np.uint64(48)).view(np.int64)
    weight = (header.view(np.int64) << 16) >> 48
    sign = (header >> np.uint64(16)).astype(np.uint16)
    most = int(count.max(initial=0))

    first = np.minimum(count, 4) if most > 4 else count
    unscaled, odd = _scaled(_four_digits(cells, 8, first), 4 * (weight - first + 1), scale)
    if most > 4:
        rest = _four_digits(cells, 16, np.clip(count - 4, 0, 4))
        more, odd_more = _scaled(rest, 4 * (weight - count + 1), scale)
        unscaled, odd = unscaled + more, odd | odd_more | (count > 8)
    if 4 * int(weight.max(initial=0)) + scale > precision - 4:
        # Only then can the first digit be worth too much.
        room = _POWERS[np.clip(precision - scale - 4 * weight, 0, 4)]
        odd |= (count > 0) & (read_fixed(cells, "u2", skip=8) >= room)
    if sign.any():
        unscaled = np.where(sign == _NEGATIVE, -unscaled, unscaled)
        odd |= sign >= _NAN
    valid, overflow = cells.valid, None
    if odd.any():
        overflow = _binary_texts(cells, odd)
        valid = ~odd if valid is None else valid & ~odd
    return Converted(_widened(unscaled, precision, scale, valid), overflow)


def _four_digits(cells: Cells, skip: int, count: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The first ``count`` (0 to 4) base-10000 digits behind ``skip`` bytes, as one number."""
    words = read_fixed(cells, "u8", skip=skip)
    surplus = (8 * (4 - count)).view(np.uint64)
    words >>= surplus  # twice, because a shift by all 64 bits is not defined
    words >>= surplus
    halves = np.uint64(0x0000_FFFF_0000_FFFF)
    pairs = (words & halves) + ((words >> np.uint64(16)) & halves) * np.uint64(10**4)
    low = pairs & np.uint64(0xFFFF_FFFF)
    return (low + (pairs >> np.uint64(32)) * np.uint64(10**8)).view(np.int64)


def _scaled(
    digits: npt.NDArray[np.int64], power: npt.NDArray[np.int64], scale: int
) -> tuple[npt.NDArray[np.int64], Mask]:
    """``digits * 10**(power + scale)``, and the rows where this is not a whole number."""
    power = power + scale
    below = power < 0
    scaled = digits * _POWERS[np.clip(power, 0, BINARY_DIGITS)]
    if not below.any():
        return scaled, below
    # Powers are multiples of four, so in all rows whose last digit reaches behind the scale it
    # does so by the same amount.
    divisor = int(_POWERS[4 - scale % 4])
    quotient = digits // divisor
    odd = below & ((power <= -4) | (quotient * divisor != digits))
    return np.where(below, quotient, scaled), odd


def _binary_texts(cells: Cells, rows: Mask) -> pa.StringArray:
    texts = np.full(len(cells), None, object)
    # Only NaN can be in a column that has a precision, so these rows are rare.
    for row in np.flatnonzero(rows).tolist():
        texts[row] = numeric_text(cells.data[cells.start[row] : cells.end[row]].tobytes())
    return pa.array(texts, pa.string())


def numeric_text(raw: bytes) -> str:
    """What Postgres prints for a numeric in binary format."""
    count, weight, sign, shown = struct.unpack_from("!HhHH", raw)
    if sign in _SPECIAL:
        return _SPECIAL[sign]
    digits = "".join(f"{digit:04d}" for digit in struct.unpack_from(f"!{count}H", raw, 8))
    point = 4 * (weight + 1)
    if point < 0:
        digits, point = "0" * -point + digits, 0
    digits = digits.ljust(point + shown, "0")
    whole = digits[:point].lstrip("0") or "0"
    minus = "-" if sign == _NEGATIVE else ""
    return minus + whole + ("." + digits[point : point + shown] if shown else "")


_SURE_DIGITS, _MOST_DIGITS = 15, 17
"""A number of at most 15 digits is always the shortest form of its nearest double, and no
shortest form has more than 17."""


def double_from_text(cells: Cells) -> Converted:
    """The nearest doubles; NULL past their range. NaN and the infinities are held."""
    text = cells.to_text()
    rows = np.flatnonzero(cells.end - cells.start > _SURE_DIGITS)
    if len(rows) == 0:
        return Converted(pc.cast(text, pa.float64()))
    long: Any = text.take(pa.array(rows, pa.int64()))
    if pc.max(pc.binary_length(long)).as_py() > 300:
        # Arrow refuses what is past the range of doubles; Python says infinity.
        numbers = np.array([float(item) for item in text.to_pylist() if item is not None])
        spread = np.full(len(cells), np.nan)
        spread[slice(None) if cells.valid is None else cells.valid] = numbers
    else:
        spread = pc.cast(text, pa.float64()).to_numpy(zero_copy_only=False).copy()
    nearest = spread[rows]

    plain = pc.replace_substring_regex(long, "[.]0*$", "")
    plain = pc.replace_substring_regex(plain, "([.][0-9]*[1-9])0+$", r"\1")
    held = mask(pc.equal(plain, pc.cast(pa.array(nearest), pa.string()))).copy()
    digits = pc.utf8_trim(pc.replace_substring_regex(plain, "[-.]", ""), "0")
    doubtful = ~held & (pc.binary_length(digits).to_numpy() <= _MOST_DIGITS)
    for row in np.flatnonzero(doubtful).tolist():
        held[row] = Decimal(repr(float(nearest[row]))) == Decimal(long[row].as_py())

    odd = np.zeros(len(cells), np.bool_)
    odd[rows] = ~held
    past = np.zeros(len(cells), np.bool_)
    past[rows] = np.isinf(nearest)
    valid = cells.valid
    if past.any():
        valid = ~past if valid is None else valid & ~past
    return Converted(fixed_width(pa.float64(), spread, valid), overflow_texts(cells, odd))
