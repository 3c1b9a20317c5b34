"""Messages of the replication stream as they arrive: one buffer, and where each message lies.

Both ways to read the log (walsender and bulk) deliver frames; the decoder does not know which.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from walflow.source.codec.cells import Positions, pad

__all__ = ["LIVE_HEADER", "FrameBuffer", "Frames", "through_last_commit"]

COMMIT = ord("C")

LIVE_HEADER = 25
"""Bytes before a message in the walsender's stream: 'w', two positions, a clock."""


@dataclass(frozen=True, slots=True)
class Frames:
    """Complete pgoutput messages: ``data[start[i]:end[i]]``, with padding behind the data."""

    data: npt.NDArray[np.uint8]
    start: Positions
    end: Positions

    def __len__(self) -> int:
        return len(self.start)

    @property
    def size(self) -> int:
        return len(self.data)

    def message(self, index: int) -> bytes:
        return self.data[int(self.start[index]) : int(self.end[index])].tobytes()


def through_last_commit(data: npt.NDArray[np.uint8], start: Positions) -> int:
    """How many of the messages that start here there are up to and with the last commit."""
    commits = np.flatnonzero(data[start] == COMMIT)
    return int(commits[-1]) + 1 if len(commits) else 0


class FrameBuffer:
    """Collects messages, and hands them over cut behind a commit wherever there is one.

    A segment of the change log may end only where a hand-over ends with a commit; what follows
    the last commit therefore waits for the next hand-over. Only a transaction that is larger than
    a hand-over comes in pieces.
    """

    __slots__ = ("data", "header", "lengths")

    def __init__(self, header: int) -> None:
        self.header = header
        self.data = bytearray()
        """Append here, and the appended length (header included) to ``lengths``: this is the
        innermost loop of receiving, so it is not wrapped in a method."""
        self.lengths: list[int] = []

    def cut(self, *, partial: bool) -> Frames | None:
        """All up to the last commit; without any commit, all there is if ``partial``."""
        if not self.lengths:
            return None
        sizes = np.array(self.lengths, np.int64)
        end = np.cumsum(sizes)
        start = end - sizes + self.header
        bytes_ = np.frombuffer(self.data, np.uint8)
        count = through_last_commit(bytes_, start) or (len(start) if partial else 0)
        del bytes_  # releases the bytearray, which must be free to grow
        if not count:
            return None
        if count == len(start):
            frames = Frames(pad(self.data), start, end)
            self.data, self.lengths = bytearray(), []
            return frames
        border = int(end[count - 1])
        frames = Frames(pad(self.data[:border]), start[:count], end[:count])
        self.data, self.lengths = self.data[border:], self.lengths[count:]
        return frames
