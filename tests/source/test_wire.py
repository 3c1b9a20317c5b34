"""Reading the wire: where frames start, and how an answer comes in."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from tests.conftest import Database
from walflow.source.connection import Session, connect
from walflow.source.copy.copy_out import copy_out
from walflow.source.wire.frames import frame_starts


def _starts_one_by_one(wire: bytearray, first: int, have: int) -> list[int]:
    starts = [first]
    while starts[-1] + 5 <= have:
        starts.append(starts[-1] + 1 + struct.unpack_from("!I", wire, starts[-1] + 1)[0])
    return [start for start in starts if start <= have]


def _content(kind: str, chance: random.Random) -> bytes:
    match kind:
        case "rows":
            return bytes(chance.choices(b"abcd\0\0", k=chance.choice([0, 1, 30, 60])))
        case "frames":  # that look like what they are in
            return b"d\0\0\0\x05xd\0\0\0\x04" * chance.randrange(10)
        case _:
            return chance.randbytes(chance.choice([0, 10, 50, 70_000]))


@pytest.mark.parametrize("kind", ["rows", "frames", "bytes"])
def test_frames_are_found_whatever_is_in_them(kind: str) -> None:
    chance = random.Random(kind)
    for count in [0, 1, 10, 100, 3000]:
        for other_kinds in [0.0, 0.1]:
            wire = bytearray(chance.randbytes(7))
            for _ in range(count if kind != "bytes" else count // 20):
                content = _content(kind, chance)
                wire += b"N" if chance.random() < other_kinds else b"d"
                wire += struct.pack("!I", len(content) + 4) + content
            # As much as has arrived, which may end anywhere.
            for have in [len(wire), chance.randrange(7, len(wire) + 1)]:
                found = frame_starts(np.frombuffer(wire, np.uint8), 7, have)
                assert found.tolist() == _starts_one_by_one(wire, 7, have)


def test_a_session_serves_on_after_its_copies(database: Database) -> None:
    database.execute("CREATE TABLE t AS SELECT generate_series(1, 50000) AS id")
    with connect(database.uri, application_name="test") as session:
        _copy_again_and_again(session)


def _copy_again_and_again(session: Session) -> None:
    for _ in range(3):
        query = b"COPY (SELECT id FROM t ORDER BY id) TO STDOUT (FORMAT binary)"
        ids: list[int] = []
        for rows in copy_out(session, query, "read", piece_bytes=100_000):
            assert len(rows) > 0
            at = rows.end[:, None] + np.arange(-4, 0)
            ids += rows.data[at].view(">i4")[:, 0].tolist()
        assert ids == list(range(1, 50_001))
        assert session.execute("SELECT count(*) FROM t").fetchone() == (50_000,)
