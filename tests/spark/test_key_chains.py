"""Whether rows may have changed their key twice."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from walflow.model import ChangeStats, Column, PgType, TableName, TableSchema
from walflow.spark.key_chains import may_chain

SCHEMA = TableSchema(
    oid=1,
    name=TableName("public", "t"),
    columns=(
        Column("a.b", PgType("bigint", 20, 20), "bigint"),
        Column("c", PgType("text", 25, 25), "string"),
    ),
    key=("a.b", "c"),
)
Key = tuple[int, str | None]
MOVES = ChangeStats(rows=3, updates=3, key_changes=3)


def written(folder: Path, name: str, *moves: tuple[Key | None, Key]) -> str:
    """Updates, each from the old key, if one is told, to the new one."""
    old = [
        None if before is None else dict(zip(SCHEMA.key, before, strict=True))
        for before, _ in moves
    ]
    kind = pa.struct([("a.b", pa.int64()), ("c", pa.string())])
    table = {
        "_change_type": ["update"] * len(moves),
        "_old": pa.array(old, kind),
        "a.b": pa.array([new[0] for _, new in moves], pa.int64()),
        "c": pa.array([new[1] for _, new in moves], pa.string()),
    }
    path = folder / name
    pq.write_table(pa.table(table), path)
    return str(path)


@pytest.mark.parametrize(
    ("moves", "chains"),
    [
        ([((1, "a"), (2, "a")), ((3, "a"), (4, "a"))], False),
        ([((1, "a"), (2, "a")), ((2, "a"), (3, "a"))], True),
        ([((1, "a"), (1, "b")), ((1, "b"), (1, "a"))], True),
        # Told, as under REPLICA IDENTITY FULL, and the same.
        ([((1, "a"), (1, "a")), ((1, "a"), (2, "a"))], False),
        ([(None, (1, "a")), ((1, "a"), (2, "a"))], False),
        # What is not known may be anything.
        ([((1, None), (1, None)), ((1, None), (2, "a"))], True),
    ],
)
def test_a_key_that_a_row_came_to_and_one_left(
    tmp_path: Path, moves: list[tuple[Key | None, Key]], chains: bool
) -> None:
    together = [written(tmp_path, "together", *moves)]
    apart = [written(tmp_path, str(n), move) for n, move in enumerate(moves)]
    assert may_chain(together, SCHEMA, MOVES) is chains
    assert may_chain(apart, SCHEMA, MOVES) is chains


def test_what_the_keys_do_not_tell(tmp_path: Path) -> None:
    file = written(tmp_path, "moves", ((1, "a"), (2, "a")))
    assert not may_chain([file], SCHEMA, MOVES)
    assert may_chain([], SCHEMA, MOVES)
    assert may_chain([file], SCHEMA, MOVES + ChangeStats(overflow=True))
    assert not may_chain([], SCHEMA, ChangeStats(rows=1, updates=1))
