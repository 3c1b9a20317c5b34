"""Messages of the server in one buffer, and the position of each.

Every way to read from the server (the live stream, a backlog, a copy) delivers frames. What decodes
them does not depend on how they arrived.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from walflow.source.codec.cells import Bytes, Positions

__all__ = ["FRAME_HEADER", "Frames", "frame_starts"]

FRAME_HEADER = 5
"""Bytes before a frame's content: its kind, and its size without the kind."""

_DATA = ord("d")
_FEW_BYTES = 4 << 10
"""Up to this many frames it is quicker to step from frame to frame."""
_BLOCK_BYTES = 256 << 10
"""How many bytes are searched at once: few enough for the processor's cache."""

_size_at = struct.Struct("!I").unpack_from


@dataclass(frozen=True, slots=True)
class Frames:
    """Whole messages: ``data[start[i]:end[i]]``, with padding after the data."""

    data: Bytes
    start: Positions
    end: Positions

    def __len__(self) -> int:
        return len(self.start)

    @property
    def size(self) -> int:
        return len(self.data)

    def message(self, index: int) -> bytes:
        return self.data[int(self.start[index]) : int(self.end[index])].tobytes()


def frame_starts(buffer: Bytes, first: int, have: int) -> Positions:
    """Where the whole frames in ``buffer[first:have]`` start, and last where the next frame starts.

    A frame's size is in the frame itself, so finding the frames one by one in Python would cost
    more than decoding them. Instead, all positions are found that look like the start of a data
    frame. The chain of sizes is followed only where it leaves these positions: at other kinds of
    frames, and at positions that only looked like a start.
    """
    if have - first < _FEW_BYTES or len(_step(buffer, first, have, most=1)) == 1:
        return np.array(_step(buffer, first, have), np.int64)
    place, following = _candidates(buffer, first, have)
    leaves = np.flatnonzero(following[:-1] != place[1:])
    patience = 16 + len(place) // 64
    found: list[Positions] = []
    at = first
    while at <= have:
        if not patience:
            # These are no ordinary rows: too much in them looks like frames.
            found.append(np.array(_step(buffer, at, have), np.int64))
            break
        patience -= 1
        nearest = int(np.searchsorted(place, at))
        if nearest == len(place) or place[nearest] != at:
            steps = _step(buffer, at, have, most=1)
            found.append(np.array(steps[:1], np.int64))
            if len(steps) == 1:
                break
            at = steps[1]
        else:
            leave = int(np.searchsorted(leaves, nearest))
            last = int(leaves[leave]) if leave < len(leaves) else len(place) - 1
            found.append(place[nearest : last + 1])
            at = int(following[last])
    return np.concatenate(found)


def _candidates(buffer: Bytes, first: int, have: int) -> tuple[Positions, Positions]:
    """Positions that look like the start of a data frame of less than 16 MiB, and for each the
    start of the next frame."""
    found = []
    for begin in range(first, have - FRAME_HEADER + 1, _BLOCK_BYTES):
        end = min(begin + _BLOCK_BYTES, have - FRAME_HEADER + 1)
        looks = buffer[begin:end] == _DATA
        looks &= buffer[begin + 1 : end + 1] == 0
        found.append(np.flatnonzero(looks) + begin)
    place = np.concatenate(found)
    sizes: npt.NDArray[np.uint32] = np.ndarray((have - 4,), ">u4", buffer[1:], strides=(1,))
    following = place + 1 + sizes[place]
    if (following[:-1] != place[1:]).any():
        # Most that are none do not lead to another one.
        within = np.minimum(following, have - 2)
        leads = (buffer[within] == _DATA) & (buffer[within + 1] == 0)
        leads |= following >= have - 2
        place, following = place[leads], following[leads]
    return place, following


def _step(buffer: Bytes, first: int, have: int, most: int | None = None) -> list[int]:
    """The same as ``frame_starts``, from frame to frame. ``most``: stop after this many frames."""
    view = buffer.data[:have]
    starts: list[int] = []
    append = starts.append
    at = first
    # It runs over the end, and steps back: a test would cost as much as the step.
    try:
        while most is None or len(starts) <= most:
            append(at)
            at += 1 + _size_at(view, at + 1)[0]
    except struct.error:
        pass
    while starts[-1] > have:
        starts.pop()
    return starts
