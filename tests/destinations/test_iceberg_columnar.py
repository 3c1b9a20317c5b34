"""Batches and compactions of Iceberg tables that are written in columns, without Spark."""

from __future__ import annotations

import datetime
import itertools
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from tests.destinations.conftest import OWNER
from tests.destinations.pairs import KEYED, NAN, Pair
from tests.destinations.reference import ALL_TYPES, Row, make_schema, one_of_each
from walflow.config import MaintenanceSettings
from walflow.destinations.iceberg.columnar.arrow_schema import arrow_schema
from walflow.destinations.iceberg.columnar.commits import IcebergTable
from walflow.destinations.iceberg.columnar.compacting import files_to_rewrite
from walflow.destinations.iceberg.columnar.deletion_vectors import DeletionVector
from walflow.destinations.iceberg.columnar.engine import ColumnarTables
from walflow.destinations.iceberg.columnar.file_changes import TableFile
from walflow.destinations.iceberg.columnar.key_index import KeyedFile
from walflow.destinations.iceberg.columnar.reading import read_places
from walflow.destinations.lake.engines import Engines
from walflow.destinations.lake.fallback import FallBackToSpark
from walflow.destinations.lake.format import Compaction
from walflow.destinations.lake.owner import Stamp
from walflow.errors import DestinationError
from walflow.failpoints import set_failpoints
from walflow.model import Column, Lsn, PgType, Span, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TABLE = "lake.public.t"


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each batch that was tried in columns, whether it was written so."""
    taken: list[bool] = []
    merge = ColumnarTables.merge

    def noted(*given: Any) -> None:
        try:
            merge(*given)
        except FallBackToSpark:
            taken.append(False)
            raise
        taken.append(True)

    monkeypatch.setattr(ColumnarTables, "merge", noted)
    return taken


def noon(number: int) -> datetime.datetime:
    return datetime.datetime(2026, 11, 16, 12, 0, 0, number, datetime.UTC)


# What tells rows apart, and the value for a number.
KEYS: dict[str, tuple[dict[str, str], Callable[[int], Row]]] = {
    "bigint": ({"id": "bigint"}, lambda n: {"id": n - 5}),
    "smallint": ({"id": "smallint"}, lambda n: {"id": n}),
    "text": ({"id": "string"}, lambda n: {"id": f"\u2603 {n}" if n else ""}),
    "binary": ({"id": "binary"}, lambda n: {"id": bytes([n, 0, n])}),
    "timestamp": ({"at": "timestamp"}, lambda n: {"at": noon(n)}),
    "numeric": ({"id": "decimal(38,10)"}, lambda n: {"id": Decimal(f"{n / 8:.10f}")}),
    "several": (
        {".a.b": "string", "_kind": "int", "day": "date", "ok": "boolean"},
        lambda n: {
            ".a.b": str(n % 3),
            "_kind": n % 5,
            "day": datetime.date(2026, 1, 1 + n % 7),
            "ok": bool(n % 2),
        },
    ),
}


@pytest.mark.parametrize("kind", KEYS)
def test_batches_at_random(
    spark: SparkSession, tmp_path: Path, kind: str, ways: list[bool]
) -> None:
    columns, key_of = KEYS[kind]
    schema = make_schema(
        {"v": "string", **columns, "moment": "bigint", "large": "array<string>"}, list(columns)
    )
    pair, chance = Pair(spark, tmp_path, schema), random.Random(kind)
    source = pair.source
    with source.transaction():
        for number in range(0, 60, 2):
            source.insert(**key_of(number), v="copied", moment=number, large=[str(number)])
    pair.copy()
    for batch in range(6):
        if batch == 3:
            # What another process has deleted is in files.
            pair.destination.shutdown()
            pair.destination = pair.another_destination()
        for _ in range(chance.randrange(1, 6)):
            with source.transaction():
                for _ in range(chance.randrange(1, 15)):
                    at_random(pair, chance, key_of(chance.randrange(60)), key_of, moves=batch % 2)
        pair.batch(pieces=chance.randrange(1, 4))
    assert ways == [True] * 6
    pair.destination.shutdown()


def at_random(
    pair: Pair, chance: random.Random, key: Row, key_of: Callable[[int], Row], *, moves: int
) -> None:
    """Insert, change, move or delete the row with the key. Where rows do not move, values that stay
    may be left out."""
    source, value = pair.source, str(chance.random())
    there = [row for row in source.rows if all(row[name] == key[name] for name in key)]
    if not there:
        source.insert(**key, v=value, moment=chance.randrange(100), large=[value, None])
    elif chance.random() < 0.3:
        source.delete(there[0])
    elif moves and chance.random() < 0.3:
        new = key_of(chance.randrange(60))
        if not any(all(row[name] == new[name] for name in new) for row in source.rows):
            source.update(there[0], **new, v=value)
    elif moves:
        source.update(there[0], v=value)
    else:
        unsent = chance.choice([(), ("large",), ("v",), ("large", "v")])
        told = {"v": value, "large": [value]}
        changed = {name: new for name, new in told.items() if name not in unsent}
        source.update(there[0], unsent, moment=chance.randrange(100), **changed)


def test_every_type(spark: SparkSession, tmp_path: Path, ways: list[bool]) -> None:
    pair = Pair(spark, tmp_path, ALL_TYPES)
    every = one_of_each(tmp_path)
    pair.copy()
    with pair.source.transaction():
        for row in every.rows:
            pair.source.insert(**row)
    pair.batch()
    with pair.source.transaction():
        pair.source.update(pair.source.find(id=2), **{**every.rows[0], "id": 2})
        nothing: Row = dict.fromkeys(ALL_TYPES.column_names)
        pair.source.update(pair.source.find(id=1), **{**nothing, "id": 9})
    pair.batch()
    assert ways == [True, True]
    pair.destination.shutdown()


def test_a_batch_that_comes_to_nothing(
    spark: SparkSession, tmp_path: Path, ways: list[bool]
) -> None:
    pair = Pair(spark, tmp_path, KEYED)
    pair.copy()
    with pair.source.transaction():
        pair.source.insert(id=1)
        pair.source.delete(pair.source.find(id=1))
    events = pair.batch()
    assert pair.positions()[-1] == pair.source.position
    pair.another_destination().apply(events)
    assert len(pair.positions()) == 2
    assert ways == [True]
    pair.destination.shutdown()


def test_columns_that_changed_since_the_copy(
    spark: SparkSession, tmp_path: Path, ways: list[bool]
) -> None:
    """The copy's files have no ids, and their columns the names of then."""
    pair = Pair(spark, tmp_path, make_schema({"id": "int", "a": "string", "n": "int"}, ["id"]))
    with pair.source.transaction():
        for number in range(20):
            pair.source.insert(id=number, a=str(number), n=number)
    pair.copy()
    columns = (
        Column("a", PgType("bigint", 20, 20), "bigint", nullable=False, attnum=1),
        Column("id", PgType("text", 25, 25), "string", attnum=2),
        Column("more", PgType("text", 25, 25), "string", attnum=4),
    )
    after = TableSchema(1, pair.source.schema.name, columns, ("a",), version=Lsn(5))
    pair.destination.evolve(pair.source.change_schema(after, {"more": "default"}))
    pair.check()
    with pair.source.transaction():
        pair.source.update(pair.source.find(a=3), more="x")
        pair.source.delete(pair.source.find(a=4))
        pair.source.insert(a=1 << 40, id="3")
    pair.batch()
    assert ways == [True]
    compact(pair, small_files=2)
    pair.check()
    pair.destination.shutdown()


@pytest.mark.parametrize(
    "statement",
    [
        f"ALTER TABLE {TABLE} ADD PARTITION FIELD bucket(2, id)",
        f"ALTER TABLE {TABLE} WRITE ORDERED BY id",
        f"ALTER TABLE {TABLE} ADD COLUMN mine string",
    ],
)
def test_tables_that_somebody_wants_otherwise_are_left_to_spark(
    spark: SparkSession, tmp_path: Path, ways: list[bool], statement: str
) -> None:
    pair = copied(spark, tmp_path)
    change(pair, 1)
    pair.batch()
    pair.session.sql(statement)
    change(pair, 2)
    pair.batch()
    assert ways == [True, False]
    pair.destination.shutdown()


def test_hard_batches_of_each_kind(spark: SparkSession, tmp_path: Path, ways: list[bool]) -> None:
    schema = make_schema({"id": "bigint", "t": "string", "n": "decimal(12,2)"}, ["id"])
    pair = Pair(spark, tmp_path, schema)
    source = pair.source
    with source.transaction():
        for number in range(5):
            source.insert(id=number, t="long", n=Decimal("1.00"))
    pair.copy()
    steps: tuple[Callable[[], object], ...] = (
        lambda: source.update(source.find(id=1), unsent=["t"], id=100),
        lambda: source.update(source.find(id=2), n=NAN),
        lambda: source.update(source.find(id=2), unsent=["n"], t="its overflow text stays, too"),
        lambda: source.update(source.find(id=2), unsent=["n", "t"], id=200),
        source.truncate,
        lambda: source.insert(id=1, t="t"),
    )
    for step in steps:
        with pair.source.transaction():
            step()
        pair.batch()
    assert ways == [True] * len(steps)
    pair.destination.shutdown()


def test_what_fails_in_columns_is_told_with_its_cause(spark: SparkSession, tmp_path: Path) -> None:
    pair = Pair(spark, tmp_path, KEYED)
    with pair.source.transaction():
        pair.source.insert(id=1, v="v")
    pair.copy()
    pair.destination.shutdown()
    pair.destination = pair.another_destination()
    [manifests] = pair.warehouse.rglob("snap-*.avro")
    manifests.unlink()
    with pair.source.transaction():
        pair.source.insert(id=2, v="v")
    with capture_logs() as logs, pytest.raises(DestinationError, match="snap-"):
        pair.destination.apply(pair.source.events(spark))
    told = [line["error"] for line in logs if line["log_level"] == "warning"]
    assert len(told) == 1
    assert manifests.name in told[0]
    assert "Py4J" not in told[0]
    assert "An error occurred" not in told[0]
    pair.destination.shutdown()


def test_what_others_do_to_the_files_is_noticed(
    spark: SparkSession, tmp_path: Path, ways: list[bool]
) -> None:
    pair = copied(spark, tmp_path)
    change(pair, 1)
    pair.batch()
    pair.session.sql(f"CALL lake.system.rewrite_data_files('public.t', options => {ALL_FILES})")
    change(pair, 2)
    pair.batch()
    assert ways == [True, True]
    pair.destination.shutdown()


ALL_FILES = "map('rewrite-all', 'true')"


def test_who_compacts_in_between_makes_the_batch_try_again(
    spark: SparkSession, tmp_path: Path, ways: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = copied(spark, tmp_path)
    change(pair, 1)
    events, commit = pair.source.events(spark), IcebergTable.commit

    def too_late(self: IcebergTable, *given: Any) -> Any:
        pair.session.sql(f"CALL lake.system.rewrite_data_files('public.t', options => {ALL_FILES})")
        return commit(self, *given)

    before = files(pair)
    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "commit", too_late)
        with pytest.raises(DestinationError, match="data files"):
            pair.destination.apply(events)
    written = files(pair) - before
    assert len(written) == 1, "that of the compaction: what was written in vain is removed"
    pair.destination.apply(events)
    pair.check()
    assert ways == [True]
    pair.destination.shutdown()


def test_who_writes_the_same_batch_is_noticed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it has only rows that are new."""
    pair = copied(spark, tmp_path)
    with pair.source.transaction():
        pair.source.insert(id=1000)
        pair.source.update(pair.source.find(id=1000), a="new")
    events, commit = pair.source.events(spark), IcebergTable.commit

    def too_late(self: IcebergTable, *given: Any) -> Any:
        monkeypatch.setattr(IcebergTable, "commit", commit)
        pair.another_destination().apply(events)
        return commit(self, *given)

    monkeypatch.setattr(IcebergTable, "commit", too_late)
    with pytest.raises(DestinationError, match="conflicting"):
        pair.destination.apply(events)
    pair.check()
    pair.destination.apply(events)
    pair.check()
    assert len(pair.positions()) == 2
    pair.destination.shutdown()


def test_who_writes_a_part_of_the_batch_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    """As a commit may land of a process that was killed."""
    pair = copied(spark, tmp_path)
    change(pair, 1)
    pair.batch()
    parts = []
    for key in (1000, 1001):
        with pair.source.transaction():
            pair.source.insert(id=key)
        parts.append(pair.source.events(spark))
    pair.another_destination().apply(parts[0])
    first, second = parts
    span = Span(first.span.after, second.span.upto)
    files, stats = first.files + second.files, first.stats + second.stats
    events = replace(first, files=files, stats=stats, span=span)
    # Only what the table lacks is written: it is asked where it is before each batch.
    pair.destination.apply(events)
    pair.check()
    pair.destination.shutdown()


def test_files_lie_where_the_table_wants_them(
    spark: SparkSession, tmp_path: Path, ways: list[bool]
) -> None:
    pair = copied(spark, tmp_path)
    pair.session.sql(
        f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('write.object-storage.enabled' = 'true')"
    )
    with pair.source.transaction():
        pair.source.delete(pair.source.find(id=1))
    pair.batch()
    change(pair, 2)
    pair.batch()
    assert ways == [True, True]
    pair.destination.shutdown()


def test_a_batch_that_is_written_and_not_committed_comes_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both if nothing was committed and if that was only not heard of."""
    pair = copied(spark, tmp_path)
    commit = IcebergTable.commit

    def lost(self: IcebergTable, *given: Any) -> Any:
        raise RuntimeError("lost before")

    def unheard(self: IcebergTable, *given: Any) -> Any:
        commit(self, *given)
        raise RuntimeError("lost after")

    for number, breaks in enumerate((lost, unheard), 1):
        change(pair, number)
        events = pair.source.events(spark)
        with monkeypatch.context() as patched:
            patched.setattr(IcebergTable, "commit", breaks)
            with pytest.raises(DestinationError, match="lost"):
                pair.destination.apply(events)
        for _ in range(2):
            pair.destination.apply(events)
            pair.check()
            assert len(pair.positions()) == number + 1
    pair.destination.shutdown()


def test_many_rows_go_at_once(spark: SparkSession, tmp_path: Path, ways: list[bool]) -> None:
    """So that a vector has each kind of container, and reaches beyond the first."""
    pair = Pair(spark, tmp_path, make_schema({"id": "bigint"}, ["id"]))
    with pair.source.transaction():
        for number in range(150_000):
            pair.source.insert(id=number)
    pair.copy()
    stays = {*range(0, 60_000, 3), *range(140_000, 150_000)}
    with pair.source.transaction():
        log = pair.source
        gone = [row for row in log.rows if row["id"] not in stays]
        log.rows = [row for row in log.rows if row["id"] in stays]
        for row in gone:
            log._note("delete", row)
    pair.batch()
    # And what was deleted is read again, by who has not written it.
    pair.destination.shutdown()
    pair.destination = pair.another_destination()
    with pair.source.transaction():
        pair.source.rows = [row for row in pair.source.rows if row["id"] != 3]
        pair.source._note("delete", {"id": 3})
    pair.batch()
    assert ways == [True, True]
    pair.destination.shutdown()


def test_a_value_that_was_not_sent_and_is_not_there(
    spark: SparkSession, tmp_path: Path, ways: list[bool]
) -> None:
    pair = copied(spark, tmp_path)
    lost = pair.source.find(id=3)
    pair.session.sql(f"DELETE FROM {TABLE} WHERE id = 3")
    with pair.source.transaction():
        pair.source.update(lost, unsent=["a"], n=7)
    with pytest.raises(DestinationError, match="lacks a row whose unchanged columns"):
        pair.destination.apply(pair.source.events(spark))
    assert ways == [False], "Spark has said it"
    pair.destination.shutdown()


def test_rows_are_found_in_whichever_group(tmp_path: Path) -> None:
    fields = [{"id": 1, "name": "n", "type": "long"}, {"id": 2, "name": "more", "type": "string"}]
    numbers = pa.table({"n": pa.array(range(50))}, schema=arrow_schema(fields[:1]))
    pq.write_table(numbers, tmp_path / "rows.parquet", row_group_size=7, store_schema=False)
    places = np.array([49, 0, 7, 8, 8, 13, 14, 30])
    read = read_places(tmp_path / "rows.parquet", fields, {}, places)
    assert read["n"].to_pylist() == places.tolist()
    assert read["more"].to_pylist() == [None] * 8
    none = read_places(tmp_path / "rows.parquet", fields, {}, places[:0])
    assert none.num_rows == 0


# Compaction.


def test_small_files_become_one(spark: SparkSession, tmp_path: Path) -> None:
    pair = copied(spark, tmp_path)
    for number in range(6):
        change(pair, number)
        pair.batch()
    before, followed = data_files(pair), row_ids(pair)
    assert before > 4
    assert not compact(pair, small_files=100)
    assert compact(pair, small_files=4)
    pair.check()
    assert data_files(pair) < before
    assert row_ids(pair) == followed, "rows are the same, wherever they are"
    assert pair.positions()[-1] == pair.source.position
    for number in range(3):
        change(pair, number)
        pair.batch()
    pair.destination.shutdown()
    pair.destination = pair.another_destination()
    change(pair, 3)
    pair.batch()
    followed = row_ids(pair)
    while compact(pair, small_files=2):
        pair.check()
    assert data_files(pair) == 1
    assert row_ids(pair) == followed
    pair.destination.shutdown()


def test_which_files_become_one() -> None:
    policy = Compaction(small_files=4, target_bytes=8 * 1000)
    sizes = [100, 107, 103, 950, 20, 900, 5000]
    assert taken(policy, sizes) == [100, 103, 107], "those of a size"
    assert taken(policy, [10, 100, 101, 500, 5000]) == [100, 101]
    assert taken(policy, [10, 100, 300, 950]) == [], "each is much larger than those before it"
    assert taken(policy, [10, 100, 300, 950], gone=40) == [10], "worn"
    assert taken(policy, [100, 999, 5000], gone=40) == [100], "though there are few"
    assert taken(policy, [100, 999, 5000], gone=20) == []


def taken(policy: Compaction, sizes: list[int], gone: int = 0) -> list[int]:
    """How long those of files of 100 rows are that are to become one."""
    every = [
        TableFile(
            KeyedFile(str(size), Path(str(size))), size, 100, DeletionVector("", 0, 0, 0, gone)
        )
        for size in sizes
    ]
    return [file.bytes for file in files_to_rewrite(every, policy)]


def test_worn_files_are_written_anew_one_at_a_time(spark: SparkSession, tmp_path: Path) -> None:
    pair = copied(spark, tmp_path)
    with pair.source.transaction():
        for number in range(0, 100, 2):
            pair.source.delete(pair.source.find(id=number))
    pair.batch()
    assert compact(pair, small_files=100)
    pair.check()
    assert deletes(pair) == 0
    with pair.source.transaction():
        for row in list(pair.source.rows):
            pair.source.delete(row)
    pair.batch()
    assert compact(pair, small_files=100)
    pair.check()
    assert data_files(pair) == 0
    pair.destination.shutdown()


def test_batches_go_on_while_small_files_become_one(spark: SparkSession, tmp_path: Path) -> None:
    """What they delete of the files that are read is deleted of the new one."""
    pair = copied(spark, tmp_path)
    for number in range(6):
        change(pair, number)
        pair.batch()
    inserted = [row["id"] for row in pair.source.rows if row["id"] >= 1000]

    def meanwhile() -> None:
        with pair.source.transaction():
            pair.source.delete(pair.source.find(id=inserted[1]))
            pair.source.update(pair.source.find(id=inserted[3]), a="meanwhile")
            pair.source.update(pair.source.find(id=0), unsent=["b"], a="meanwhile")
        pair.batch()

    before = data_files(pair)
    assert compact(pair, small_files=4, meanwhile=meanwhile)
    assert data_files(pair) < before
    pair.check()
    assert pair.positions()[-1] == pair.source.position
    # Whether by who has written it, or by who reads it.
    for destination in (pair.destination, pair.another_destination()):
        with pair.source.transaction():
            pair.source.update(pair.source.find(id=inserted[2]), a=f"{destination}")
            pair.source.update(pair.source.find(id=inserted[3]), unsent=["a"], n=8)
        destination.apply(pair.source.events(spark))
        pair.check()
        destination.shutdown()


def test_files_that_went_while_they_became_one(spark: SparkSession, tmp_path: Path) -> None:
    pair = copied(spark, tmp_path)
    for number in range(6):
        change(pair, number)
        pair.batch()

    def meanwhile() -> None:
        with pair.source.transaction():
            pair.source.truncate()
            pair.source.insert(id=1)
        pair.batch()

    before = files(pair)
    assert not compact(pair, small_files=4, meanwhile=meanwhile)
    pair.check()
    assert len(files(pair) - before) == 1, "that of the batch: what was rewritten is removed"
    pair.destination.shutdown()


def test_maintenance_holds_up_no_batch(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    plan = MaintenanceSettings(small_files=4)
    pair = Pair(spark, tmp_path, KEYED, maintenance=plan)
    with pair.source.transaction():
        for number in range(100):
            pair.source.insert(id=number, a="a", n=number)
    pair.copy()
    for number in range(8):
        change(pair, number)
        pair.batch()
    before = data_files(pair)
    set_failpoints("compact.rewritten=hold")
    request.addfinalizer(lambda: set_failpoints(""))
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(pair.destination.maintain, KEYED)
        change(pair, 1)
        pair.batch()
        assert not done.done()
        set_failpoints("")
        done.result()
    assert data_files(pair) < before
    pair.check()
    change(pair, 2)
    pair.batch()
    assert pair.positions()[-1] == pair.source.position
    pair.destination.shutdown()


def copied(spark: SparkSession, folder: Path) -> Pair:
    pair = Pair(spark, folder, KEYED)
    with pair.source.transaction():
        for number in range(100):
            pair.source.insert(id=number, a="a", n=number)
    pair.copy()
    return pair


def change(pair: Pair, number: int) -> None:
    with pair.source.transaction():
        pair.source.update(pair.source.find(id=number), b=f"since {number}")
        pair.source.insert(id=int(pair.source.position), n=number)


def compact(pair: Pair, small_files: int, meanwhile: Callable[[], object] = lambda: None) -> bool:
    """``meanwhile``: what happens before the commit."""
    turns = itertools.count(1)

    @contextmanager
    def turn() -> Iterator[Stamp]:
        if next(turns) == 2:
            meanwhile()
        yield Stamp(OWNER, pair.source.position)

    policy = Compaction(small_files, 64 << 20)
    name = pair.source.schema.name
    return Engines(pair.format, "columnar").compact(pair.session, name, policy, turn)


def files(pair: Pair) -> set[Path]:
    data = pair.warehouse / "public/t/data"
    return {file for file in data.rglob("*") if file.suffix in (".parquet", ".puffin")}


def data_files(pair: Pair) -> int:
    return pair.session.table(f"{TABLE}.data_files").count()


def deletes(pair: Pair) -> int:
    return pair.session.table(f"{TABLE}.delete_files").count()


def row_ids(pair: Pair) -> list[tuple[int, int, int]]:
    rows = pair.session.sql(
        f"SELECT id, _row_id, _last_updated_sequence_number FROM {TABLE} ORDER BY id"
    ).collect()
    return [tuple(row) for row in rows]


def test_what_a_file_tells_of_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    """The same as if Spark had written it."""
    pair = Pair(spark, tmp_path, ALL_TYPES)
    every = one_of_each(tmp_path)
    pair.copy()
    long = "\U0010ffff" * 20
    rows = [*every.rows, {**every.rows[0], "id": 4, "t": long, "bin": b"\xff" * 20}]
    with pair.source.transaction():
        for row in rows:
            pair.source.insert(**row)
    pair.batch()
    for text in ("snow\u2603\U0001f600", long):
        found = pair.session.sql(f"SELECT id FROM {TABLE} WHERE t = '{text}'").collect()
        assert found
    columns = ", ".join(
        f"CAST(readable_metrics.{name}.{part} AS string)"
        for name in ("id", "ok", "s", "i", "n", "d", "tz", "ntz")
        for part in ("lower_bound", "upper_bound", "null_value_count", "value_count")
    )
    # (The copy's file has no rows.)
    told = f"SELECT {columns} FROM {TABLE}.files WHERE record_count > 0"
    ours = pair.session.sql(told).collect()
    whole = pair.session.table(TABLE).coalesce(1)
    whole.writeTo(TABLE).overwritePartitions()
    sparks = pair.session.sql(told).collect()
    assert len(ours) == len(sparks) == 1
    assert ours == sparks
    pair.destination.shutdown()
