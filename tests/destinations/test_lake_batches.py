"""Batches of changes on real tables of both formats, against the row-by-row reference."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.destinations.conftest import OWNER
from tests.destinations.pairs import FOREVER, FORMATS, KEYED, LAST_DAY, NAN, Pair
from tests.destinations.reference import (
    Inexact,
    Source,
    assert_same,
    copy_of,
    iceberg_lake,
    make_schema,
    reading_session,
    stored_rows,
)
from walflow.destinations.base import TableChanges
from walflow.errors import DestinationError
from walflow.model import ChangeStats, Lsn, Span, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

KEYLESS = make_schema(
    {"a": "string", "f": "double", "l": "array<int>", "m": "map<string,string>"}, []
)
# What is proven of one format alone is the same code for both, or has its own file.
iceberg_alone = pytest.mark.parametrize("lake_format", ["iceberg"])

MakePair = Callable[[TableSchema], Pair]


@pytest.fixture(params=FORMATS)
def lake_format(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def make_pair(spark: SparkSession, tmp_path: Path, lake_format: str) -> Iterator[MakePair]:
    made: list[Pair] = []

    def make(schema: TableSchema) -> Pair:
        made.append(Pair(spark, tmp_path, schema, lake_format))
        return made[-1]

    yield make
    for pair in made:
        pair.destination.shutdown()


@pytest.fixture
def pair(make_pair: MakePair) -> Pair:
    """Some rows, copied: ids 1, 2, and so on."""
    pair = make_pair(KEYED)
    with pair.source.transaction():
        for number in range(1, 20):
            pair.source.insert(id=number, a=f"a{number}", b=f"b{number}", n=number)
    pair.copy()
    return pair


# Batches of one kind each, because other plans serve them; cases of a batch have rows of their own.


def whole_rows(source: Source) -> None:
    with source.transaction():
        source.insert(id=20, a=None, b="b20", n=20)
        source.update(source.find(id=1), a=None, n=11)
        source.delete(source.find(id=2))
    with source.transaction():
        # All on one key.
        source.insert(id=21, a="x", b="x", n=0)
        source.update(source.find(id=21), n=1)
        source.delete(source.find(id=21))
        source.delete(source.find(id=3))
        source.insert(id=3, a="again", b=None, n=None)
    with source.transaction():
        source.update(source.find(id=4), n=1)
        source.update(source.find(id=4), n=2)


def inserts_alone(source: Source) -> None:
    with source.transaction():
        source.insert(id=22, a=None, b="b", n=1)


def nothing(source: Source) -> None:
    """It is heard of all the same."""
    with source.transaction():
        source.insert(id=23, a="x", b="x", n=0)
        source.delete(source.find(id=23))


def unsent_columns(source: Source) -> None:
    with source.transaction():
        # They stay.
        source.update(source.find(id=1), unsent=["a", "b"], n=111)
        source.update(source.find(id=4), unsent=["b"], a=None)
        source.update(source.find(id=4), unsent=["a"], n=None)
        source.insert(id=24, a="a24", b=None, n=4)
        source.update(source.find(id=24), unsent=["a", "b"], n=44)
        # But those of a deleted row do not come back.
        source.update(source.find(id=5), unsent=["b"], a="late")
        source.delete(source.find(id=5))
        source.insert(id=5, a=None, b=None, n=None)
        source.update(source.find(id=5), unsent=["a"], n=5)


def keys_that_change(source: Source) -> None:
    with source.transaction():
        source.update(source.find(id=6), id=60, n=5)
        # Unsent columns are taken from the old key.
        moved = source.update(source.find(id=7), unsent=["a", "b"], id=70)
        moved = source.update(moved, unsent=["b"], id=71, a="new")
        source.update(moved, unsent=["a", "b"], n=77)
    with source.transaction():
        # Swapped.
        one = source.update(source.find(id=8), unsent=["a", "b"], id=-8)
        source.update(source.find(id=9), unsent=["a", "b"], id=8)
        source.update(one, unsent=["a"], id=9, b="swapped")
        # Round and back.
        row = source.update(source.find(id=10), unsent=["a", "b"], id=100)
        source.update(row, unsent=["a", "b"], id=10, n=100)
    with source.transaction():
        # Taken over after a delete.
        source.delete(source.find(id=11))
        source.update(source.find(id=12), unsent=["a", "b"], id=11)
        source.update(source.find(id=13), unsent=["b"], id=12, a="thirteen")
        source.insert(id=13, a="fresh", b="fresh", n=3)
        # Moved and deleted.
        source.delete(source.update(source.find(id=14), unsent=["a", "b"], id=140))


def a_long_chain(source: Source) -> None:
    row = source.find(id=15)
    for number in range(200, 237):
        with source.transaction():
            row = source.update(row, unsent=["a", "b"], id=number)


def a_truncate(source: Source) -> None:
    with source.transaction():
        source.insert(id=25, a="lost", b=None, n=None)
        source.truncate()
        source.insert(id=1, a="kept", b=None, n=None)
        source.insert(id=9, a="moved", b="b", n=None)
        source.update(source.find(id=9), unsent=["b"], id=10)


def a_truncate_alone(source: Source) -> None:
    with source.transaction():
        source.truncate()


BATCHES = (
    *(whole_rows, inserts_alone, nothing, unsent_columns, keys_that_change, a_long_chain),
    *(a_truncate, a_truncate_alone),
)


def test_batches_of_every_kind(pair: Pair) -> None:
    """Each is one commit that tells its position; a batch that comes again changes nothing, nor
    in a process that knows nothing yet."""
    source, batches, positions = pair.source, [], [pair.source.position]
    assert pair.destination.applied(KEYED) == source.position
    for change in BATCHES:
        change(source)
        batches.append(pair.batch(pieces=5 if change is a_long_chain else 1))
        positions.append(source.position)
    assert pair.positions() == positions
    again = pair.another_destination()
    assert again.applied(KEYED) == source.position
    for events in batches:
        pair.destination.apply(events)
        again.apply(events)
    again.shutdown()
    pair.check()
    assert pair.positions() == positions


def test_only_what_is_after_the_position_is_applied(pair: Pair) -> None:
    """A span may begin before the table's position: say, at the others' when it was copied. After
    a restart the same changes may come in other batches, too; inserts alone are appended."""
    source = pair.source
    with source.transaction():
        source.truncate()
        source.insert(id=1, a="x", b="x", n=1)
    with source.transaction():
        source.insert(id=2, a="x", b="x", n=1)
    early = source.position
    source_copy = source.copy_file()
    with source.transaction():
        source.insert(id=3, a="x", b="x", n=1)
    events = source.events(pair.spark)
    pair.destination.copy(copy_of(KEYED, [source_copy], early, False))
    pair.destination.apply(events)
    pair.check()

    begin = source.position
    batches = []
    for number in range(10, 14):
        with source.transaction():
            source.insert(id=number, a=None, b="b", n=number)
        batches.append(source.events(pair.spark))
    pair.destination.apply(batches[0])
    pair.destination.apply(_together(batches[:3], begin))
    pair.destination.apply(batches[2])
    pair.destination.apply(_together(batches, begin))
    pair.check()
    assert pair.destination.applied(KEYED) == source.position


def _together(batches: Sequence[TableChanges], after: Lsn) -> TableChanges:
    files = tuple(file for part in batches for file in part.files)
    stats = sum((part.stats for part in batches), ChangeStats())
    span = Span(after, batches[-1].span.upto)
    return replace(batches[0], files=files, stats=stats, span=span)


def test_a_partial_row_without_its_base_is_an_error_and_not_null(pair: Pair) -> None:
    source = pair.source
    before = list(source.rows)
    with source.transaction():
        source.insert(id=40, a="x", b="x", n=1)
    source.events(pair.spark)
    with source.transaction():
        source.update(source.find(id=40), unsent=["a"], n=2)
    events = source.events(pair.spark)
    applied = pair.destination.applied(KEYED)
    assert applied is not None
    with pytest.raises(DestinationError) as failed:
        # As if nothing was missing in between.
        pair.destination.apply(replace(events, span=Span(applied, events.span.upto)))
    told = f"{failed.value} {failed.value.__cause__}"
    assert "lacks a row whose unchanged columns" in told
    assert_same(pair.rows(), before)


@iceberg_alone
def test_table_of_its_key_alone(make_pair: MakePair) -> None:
    pair = make_pair(make_schema({"x": "int", "y": "string"}, ["x", "y"]))
    with pair.source.transaction():
        pair.source.insert(x=1, y="a")
        pair.source.insert(x=1, y="b")
    pair.copy()
    with pair.source.transaction():
        pair.source.update(pair.source.find(x=1, y="a"), y="c")
        pair.source.delete(pair.source.find(x=1, y="b"))
        pair.source.insert(x=2, y="a")
    pair.batch()


@iceberg_alone
def test_overflow_texts_follow_their_values(make_pair: MakePair) -> None:
    schema = make_schema(
        {"id": "bigint", "until": "timestamp", "n": "decimal(12,2)", "base": "string"}, ["id"]
    )
    pair = make_pair(schema)
    source = pair.source
    with source.transaction():
        for number in (1, 2, 3):
            source.insert(id=number, until=LAST_DAY, n=Decimal("1.50"), base="b")
    pair.copy()
    with source.transaction():
        source.update(source.find(id=1), until=FOREVER, n=NAN)
        source.insert(id=4, until=FOREVER, n=None, base=None)
    pair.batch()
    with source.transaction():
        # The text of a column that is not sent stays with its value; of one that is, goes.
        source.update(source.find(id=1), unsent=["n", "base"], until=LAST_DAY)
        source.update(source.find(id=4), unsent=["base"], until=None)
        source.update(source.find(id=2), n=NAN)
    pair.batch()
    with source.transaction():
        source.update(source.find(id=1), unsent=["n", "base"], id=9)
        source.update(source.find(id=2), n=Decimal("2.00"))
    pair.batch()


def test_keys_that_their_type_cannot_hold_are_told_apart(
    make_pair: MakePair, lake_format: str
) -> None:
    pair = make_pair(
        make_schema({"at": "timestamp", "n": "decimal(12,2)", "v": "string"}, ["at", "n"])
    )
    source = pair.source
    zero = Decimal("0.00")
    with source.transaction():
        source.insert(at=LAST_DAY, n=zero, v="finite")
    pair.copy()
    # In Delta the column for the texts comes first, in a commit that says no more than was there.
    positions = [source.position] * (2 if lake_format == "delta" else 1)
    with source.transaction():
        source.insert(at=FOREVER, n=zero, v="infinite")
        source.insert(at=LAST_DAY, n=NAN, v="nan")
        source.insert(at=LAST_DAY, n=Inexact(None, "Infinity"), v="inf")
        source.update(source.find(v="finite"), v="finite too")
    pair.batch()
    assert pair.positions() == [*positions, source.position]
    with source.transaction():
        source.delete(source.find(v="nan"))
        source.update(source.find(v="inf"), n=Decimal("1.00"))
        source.update(source.find(v="infinite"), v="infinite too")
    pair.batch()
    with source.transaction():
        source.delete(source.find(v="finite too"))
    pair.batch()


@iceberg_alone
def test_keyless_rows_come_and_go_copy_by_copy(make_pair: MakePair) -> None:
    pair = make_pair(KEYLESS)
    source = pair.source
    nan = float("nan")
    twin = {"a": "x", "f": nan, "l": [1, None], "m": [("k", "v"), ("j", None)]}
    with source.transaction():
        for _ in range(5):
            source.insert(**twin)
        source.insert()
        source.insert()
    pair.copy()
    with source.transaction():
        source.insert(**twin)
    pair.batch()
    with source.transaction():
        for row in [r for r in source.rows if r["a"] == "x"][:3]:
            source.delete(row)
        source.delete(next(r for r in source.rows if r["a"] is None))
        source.update(source.rows[0], a="y")
        source.insert(a="z", f=-1.0)
        source.delete(source.rows[-1])
    events = pair.batch()
    pair.destination.apply(events)
    pair.check()
    with source.transaction():
        source.truncate()
        source.insert(a="only")
        source.insert(a="only")
    pair.batch()


@iceberg_alone
def test_keyless_columns_that_differ_by_case_alone(make_pair: MakePair) -> None:
    pair = make_pair(make_schema({"a": "int", "A": "string"}, []))
    source = pair.source
    with source.transaction():
        source.insert(a=1, A="x")
        source.insert(a=1, A="y")
    pair.copy()
    with source.transaction():
        source.update(source.rows[0], A="y")
        source.delete(source.rows[1])
    pair.batch()


@iceberg_alone
def test_keyless_overflow_texts(make_pair: MakePair) -> None:
    pair = make_pair(make_schema({"at": "timestamp", "v": "string"}, []))
    source = pair.source
    with source.transaction():
        source.insert(at=LAST_DAY, v="a")
        source.insert(at=FOREVER, v="a")
    pair.copy(overflow=True)
    with source.transaction():
        source.update(source.rows[1], v="b")
    pair.batch()
    with source.transaction():
        source.update(source.rows[1], at=LAST_DAY, v="a")
        source.insert(at=FOREVER, v="a")
    pair.batch()
    with source.transaction():
        source.delete(source.rows[0])
    pair.batch()


def test_random_batches(make_pair: MakePair) -> None:
    chance = random.Random(7)
    pair = make_pair(
        make_schema(
            {"k": "int", "j": "string", "a": "string", "b": "string", "n": "int"}, ["k", "j"]
        )
    )
    source = pair.source
    with source.transaction():
        for number in range(30):
            source.insert(k=number, j="j", a=f"a{number}", b=None, n=number)
    pair.copy()
    batches = []
    for number in range(3):
        for _ in range(60):
            with source.transaction():
                for _ in range(chance.randint(1, 6)):
                    _random_change(source, chance, truncates=number == 1)
        batches.append(pair.batch(pieces=chance.randint(1, 4)))
    for events in batches:
        pair.destination.apply(events)
    pair.check()


def _random_change(source: Source, chance: random.Random, truncates: bool) -> None:
    def free_key() -> dict[str, object]:
        taken = {(row["k"], row["j"]) for row in source.rows}
        while True:
            key = (chance.randrange(60), chance.choice("jk"))
            if key not in taken:
                return {"k": key[0], "j": key[1]}

    text = chance.choice([None, "x", "y", f"t{chance.random()}"])
    if truncates and chance.random() < 0.002:
        source.truncate()
    elif not source.rows or (len(source.rows) < 50 and chance.random() < 0.25):
        source.insert(**free_key(), a=text, b=text, n=chance.randrange(9))
    elif chance.random() < 0.2:
        source.delete(chance.choice(source.rows))
    else:
        changed: dict[str, object] = {}
        if chance.random() < 0.4:
            changed |= free_key()
        if chance.random() < 0.4:
            changed[chance.choice(["a", "b"])] = text
        if chance.random() < 0.5:
            changed["n"] = chance.randrange(9)
        unsent = [name for name in ("a", "b") if name not in changed and chance.random() < 0.7]
        source.update(chance.choice(source.rows), unsent, **changed)


def test_many_tables_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """Each in a thread of its own that knows nothing of the others."""
    destination = iceberg_lake(spark, tmp_path / "all", OWNER)

    def follow(number: int) -> Source:
        schema = make_schema({"id": "bigint", "v": "string"}, ["id"], f"t{number}")
        source = Source(schema, tmp_path)
        with source.transaction():
            source.insert(id=1, v=f"{number}")
        source.events(spark)
        destination.copy(copy_of(schema, [source.copy_file()], source.position, overflow=False))
        with source.transaction():
            source.insert(id=2, v=f"more of {number}")
        events = [source.events(spark)]
        with source.transaction():
            source.update(source.find(id=1), v="new")
        events.append(source.events(spark))
        for one in (*events, *events):
            destination.apply(one)
        return source

    with ThreadPoolExecutor(8) as threads:
        sources = list(threads.map(follow, range(10)))
    session = reading_session(spark, tmp_path / "all")
    again = iceberg_lake(spark, tmp_path / "all", OWNER)
    for source in sources:
        assert_same(stored_rows(session, source.schema), source.rows)
        assert again.applied(source.schema) == source.position
    assert len(destination._sessions._idle) <= 8
    destination.shutdown()
    again.shutdown()


@iceberg_alone
def test_many_batches_do_not_pile_up_in_memory(pair: Pair) -> None:
    source = pair.source
    before = _held(pair.spark)
    for number in range(6):
        with source.transaction():
            row = source.update(source.find(n=1), unsent=["a"], b=f"{number}")
            source.update(row, unsent=["a"], id=100 + number)
        pair.destination.apply(source.events(pair.spark))
    pair.check()
    # Three a batch are made. Some of Spark's threads still know the batch they were started in.
    assert _held_after_collection(pair.spark, before, allowed=9) <= 9
    assert pair.session.catalog.listTables() == []


def _held_after_collection(spark: SparkSession, before: set[int], allowed: int) -> int:
    """How many more data sets Spark holds than before, once both garbage collectors have run."""
    jvm: Any = spark.sparkContext._jvm
    deadline = time.monotonic() + 120
    while True:
        gc.collect()
        jvm.System.gc()
        held = len(_held(spark) - before)
        if held <= allowed or time.monotonic() > deadline:
            return held
        time.sleep(0.2)


def _held(spark: SparkSession) -> set[int]:
    """The numbers of the data sets that Spark holds."""
    return set(spark.sparkContext._jsc.getPersistentRDDs())
