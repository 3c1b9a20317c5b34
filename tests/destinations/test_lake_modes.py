"""What each mode makes of changes, against a model of it that goes row by row."""

from __future__ import annotations

import datetime
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.destinations.modes import KEYED, KEYLESS, MODELS, Lake, Note, NotedSource, Told, begun
from tests.destinations.reference import Inexact, Row, assert_same, copy_of, make_schema
from walflow.config.lake import Mode
from walflow.destinations.base import TableChanges
from walflow.destinations.iceberg import table_identifier
from walflow.destinations.lake import Metadata, TablePlan
from walflow.errors import DestinationError
from walflow.model import Lsn, Span, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(params=["iceberg"])
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    lake = Lake(spark, tmp_path)
    yield lake
    for destination in lake.open:
        destination.shutdown()


Story = Callable[[NotedSource], Iterator[None]]


def keyed_story(source: NotedSource) -> Iterator[None]:
    """After each transaction it may be time for a batch."""
    find = source.find
    with source.transaction():
        source.insert(id=5, a="a5", b="b5", n=5)
        source.update(find(id=1), unsent=["a", "b"], n=11)
        source.delete(find(id=2))
    yield
    with source.transaction():
        source.update(find(id=3), unsent=["a", "b"], id=30)
        source.insert(id=2, a="again", b=None, n=None)
        source.update(find(id=2), unsent=["a"], n=0)
    yield
    with source.transaction():
        source.update(find(id=30), unsent=["a", "b"], id=31)
        source.update(find(id=31), unsent=["b"], id=32, a="moved")
        source.update(find(id=32), unsent=["a", "b"], n=32)
        source.update(find(id=1), n=12, unsent=["a"])
        source.update(find(id=1), n=13, unsent=["b"])
    yield
    with source.transaction():
        source.insert(id=6, a="a6", b="b6", n=6)
        source.delete(find(id=6))
        source.insert(id=7, a="a7", b="b7", n=7)
        source.delete(find(id=4))
        source.insert(id=4, a=None, b=None, n=4)
    yield
    with source.transaction():
        source.update(find(id=7), unsent=["a", "b"], n=77)
        source.delete(find(id=7))
        source.update(find(id=5), unsent=["a"], b="new")
        source.update(find(id=5), unsent=["a", "b"], id=3)
    yield
    with source.transaction():
        source.update(find(id=1), unsent=["a", "b"], id=100)
        source.update(find(id=2), unsent=["a", "b"], id=1)
        source.update(find(id=100), unsent=["a", "b"], id=2)
    yield


def truncating_story(source: NotedSource) -> Iterator[None]:
    find = source.find
    with source.transaction():
        source.update(find(id=1), unsent=["b"], a="late")
        source.insert(id=9, a="a9", b="b9", n=9)
        source.delete(find(id=2))
    yield
    with source.transaction():
        source.insert(id=10, a="a10", b="b10", n=10)
        source.truncate()
        source.insert(id=1, a="new", b="new", n=1)
        source.insert(id=11, a="a11", b="b11", n=11)
    yield
    with source.transaction():
        source.update(find(id=1), unsent=["a", "b"], id=12)
        source.delete(find(id=11))
    with source.transaction():
        source.insert(id=13, a=None, b="b13", n=None)
    with source.transaction():
        source.truncate()
    with source.transaction():
        source.insert(id=13, a="anew", b=None, n=None)
        source.insert(id=14, a=None, b=None, n=None)
    yield


def copies_story(source: NotedSource) -> Iterator[None]:
    """Of a table without a key."""

    def one(**row: Any) -> Row:
        return source.find(**row)

    with source.transaction():
        source.insert(a="x", n=1)
        source.delete(one(a="x", n=1))
        source.update(one(a="y", n=None), n=1)
    yield
    with source.transaction():
        source.insert(a="x", n=1)
        source.insert(a="x", n=1)
        source.update(one(a="y", n=1), a="x")
    with source.transaction():
        source.delete(one(a="x", n=1))
        source.delete(one(a="x", n=1))
        source.insert(a="z", n=0)
        source.delete(one(a="z", n=0))
    yield
    with source.transaction():
        source.update(one(a="x", n=1), a="x")
        source.insert(a="w", n=0)
    yield
    with source.transaction():
        source.delete(one(a="w", n=0))
        source.insert(a="w", n=0)
        source.truncate()
        source.insert(a="w", n=0)
        source.insert(a="w", n=0)
        source.delete(one(a="w", n=0))
    with source.transaction():
        source.insert(a="x", n=1)
    yield


def _tell(told: Told, story: Story, every: int) -> list[TableChanges]:
    """In batches of so many parts of the story."""
    batches = []
    for number, _ in enumerate(story(told.source), 1):
        if number % every == 0:
            batches.append(told.batch())
    batches.append(told.batch())
    return batches


AS_OF = {"history": "WITH until AS", "scd2": "-- as of a time"}
"""What the queries for the state at a time begin with, in docs/reference/modes.md."""


def _as_of(told: Told, time: datetime.datetime) -> list[Row]:
    """What the documented query shows."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "modes.md").read_text()
    first = page.index(AS_OF[told.mode])
    start = max(page.rfind(f"\n{word} ", 0, first + 10) for word in ("WITH", "SELECT")) + 1
    query = page[start : page.index("```", start)].strip().removesuffix(";")
    query = query.replace("lake.public.orders", table_identifier(told.schema.name))
    query = query.replace("2026-11-15 12:00:00", f"{time:%Y-%m-%d %H:%M:%S}")
    found = told.lake.session(told.name).sql(query).select(*told.schema.column_names).toArrow()
    rows: list[Row] = found.to_pylist()
    return rows


def long_story(source: NotedSource) -> Iterator[None]:
    yield from keyed_story(source)
    yield from truncating_story(source)


@pytest.mark.parametrize(
    ("mode", "schema", "story"),
    [
        pytest.param("mirror", KEYED, keyed_story, id="mirror"),
        # Of what was before a truncate nothing is left to be seen.
        pytest.param("mirror", KEYED, truncating_story, id="mirror-truncates"),
        pytest.param("mirror", KEYLESS, copies_story, id="mirror-keyless"),
        pytest.param("soft_delete", KEYED, long_story, id="soft_delete"),
        pytest.param("soft_delete", KEYLESS, copies_story, id="soft_delete-keyless"),
        pytest.param("history", KEYED, long_story, id="history"),
        pytest.param("history", KEYLESS, copies_story, id="history-keyless"),
        pytest.param("scd2", KEYED, long_story, id="scd2"),
    ],
)
def test_a_story_in_one_batch_and_in_several(
    lake: Lake, schema: TableSchema, story: Story, mode: Mode
) -> None:
    whole = begun(lake, schema, mode, "whole")
    batches = _tell(whole, story, every=1000)
    whole.check()
    commits = lake.commits(schema, "whole")
    if mode in AS_OF and schema.key:
        for time, rows in whole.source.states[::2]:
            assert_same(_as_of(whole, time), rows)

    parts = begun(lake, schema, mode, "parts")
    several = _tell(parts, story, every=3)
    parts.check()

    # What was applied comes again, alone and as the first part of a batch.
    whole.destination.apply(batches[0])
    parts.destination.apply(several[0])
    overlapping = replace(batches[0], span=Span(batches[0].span.after, several[-1].span.upto))
    parts.destination.apply(overlapping)
    parts.check()
    whole.check()
    assert lake.commits(schema, "whole") == commits


def test_versions_need_a_key(lake: Lake) -> None:
    with pytest.raises(DestinationError, match="has no key") as caught:
        begun(lake, KEYLESS, "scd2", "refused")
    assert not caught.value.retry
    assert "history" in caught.value.hint


PAST: tuple[Mode, ...] = ("soft_delete", "history", "scd2")
_TIMES = ("_TIMESTAMP", "_VALID_FROM", "_VALID_TO")


def _without_times(rows: Sequence[Row]) -> list[Row]:
    return [{n: v for n, v in row.items() if n not in _TIMES} for row in rows]


def _noted(told: Told, kind: str, new: Row | None = None, old: Row | None = None) -> None:
    """What a new copy finds is a change at its position, before all others."""
    time = datetime.datetime.now(datetime.UTC)
    told.source.notes.append(Note(kind, int(told.source.position), -1, time, new, old))


def _copied_again(told: Told, schema: TableSchema | None = None) -> None:
    told.source.events(told.lake.spark)
    files, position = [told.source.copy_file()], told.source.position
    told.destination.copy(copy_of(schema or told.schema, files, position, False))


@pytest.mark.parametrize("mode", PAST)
def test_a_new_copy_keeps_the_past(lake: Lake, mode: Mode) -> None:
    told = begun(lake, KEYED, mode, "again")
    source = told.source
    with source.transaction():
        source.truncate()
        for row in told.copied[0]:
            source.insert(**row)
    with source.transaction():
        source.update(source.find(id=1), n=11)
        source.insert(id=5, a="a5", b="b5", n=5)
        source.delete(source.find(id=2))
    told.batch()
    seen = list(source.notes)
    # The log of this is lost.
    with source.transaction():
        source.delete(source.find(id=3))
        source.update(source.find(id=4), a=None)
        source.insert(id=6, a="a6", b="b6", n=6)
        source.insert(id=2, a="again", b=None, n=None)
    source.notes[:] = seen
    for name, old in (("delete", 3), ("update", 4)):
        before = next(row for row in told.copied[0] if row["id"] == old)
        _noted(told, name, source.find(id=4) if name == "update" else None, before)
    _noted(told, "insert", source.find(id=6))
    _noted(told, "insert", source.find(id=2))
    commits = lake.commits(KEYED, "again")
    _copied_again(told)
    assert lake.commits(KEYED, "again") == commits + 1
    assert told.destination.applied(KEYED) == source.position
    assert_same(_without_times(told.rows()), _without_times(told.expected()))
    # Nothing has changed since, and the position is told again.
    _copied_again(told)
    assert_same(_without_times(told.rows()), _without_times(told.expected()))
    with source.transaction():
        source.update(source.find(id=4), unsent=["a", "b"], id=40)
        source.update(source.find(id=6), unsent=["a"], b="new")
        source.delete(source.find(id=2))
    told.batch()
    assert_same(_without_times(told.rows()), _without_times(told.expected()))
    for row in told.rows() if mode == "scd2" else ():
        assert row["_CURRENT"] == (row["_VALID_TO"] is None)
        assert (
            row["_CURRENT"] or row["_VALID_FROM"] is None or row["_VALID_TO"] >= row["_VALID_FROM"]
        )


@pytest.mark.parametrize("mode", ["soft_delete", "history"])
def test_a_new_copy_without_a_key_counts(lake: Lake, mode: Mode) -> None:
    told = begun(lake, KEYLESS, mode, "again")
    source = told.source
    with source.transaction():
        source.delete(source.find(a="x"))
        source.update(source.find(a="y"), a="z")
    told.batch()
    with source.transaction():
        source.insert(a="x", n=1)
        source.insert(a="x", n=1)
        source.delete(source.find(a="y"))
    source.notes[-3:] = []
    _noted(told, "insert", {"a": "x", "n": 1})
    _noted(told, "insert", {"a": "x", "n": 1})
    _noted(told, "delete", old={"a": "y", "n": None})
    _copied_again(told)
    with source.transaction():
        source.delete(source.find(a="x"))
    told.batch()
    assert_same(_without_times(told.rows()), _without_times(told.expected()))


def test_a_new_copy_of_another_form(lake: Lake) -> None:
    told = begun(lake, KEYED, "history", "form")
    added = make_schema(
        {"id": "bigint", "a": "string", "bb": "string", "n": "bigint", "c": "int"}, ["id"]
    )
    source = NotedSource(added, lake.folder / "form-log")
    source._lsn = 2000
    with source.transaction():
        for number in (1, 2, 3):
            source.insert(
                id=number, a=f"a{number}", bb=f"b{number}", n=number, c=number % 2 or None
            )
    told.destination.copy(copy_of(added, [source.copy_file()], source.position, False))
    newest = {row["id"]: row for row in sorted(told.rows(), key=lambda row: row["_LSN"])}
    told_of = {n: (row["_CHANGE_TYPE"], row["bb"], row["c"]) for n, row in newest.items()}
    assert told_of == {
        1: ("update", "b1", 1),
        2: ("copy", "b2", None),
        3: ("update", "b3", 1),
        4: ("delete", "b4", None),
    }
    rows = told.rows()
    other = make_schema(
        {"id": "bigint", "a": "int", "bb": "string", "n": "bigint", "c": "int"}, ["id"]
    )
    source = NotedSource(other, lake.folder / "form-log")
    source._lsn = 3000
    with pytest.raises(DestinationError, match="column a was string, and is int") as caught:
        told.destination.copy(copy_of(other, [source.copy_file()], source.position, False))
    assert not caught.value.retry
    assert "DROP TABLE" in caught.value.hint
    # Nor is it taken for the table's future what was before it.
    with pytest.raises(DestinationError, match="restored to an earlier state"):
        told.destination.copy(copy_of(added, [source.copy_file()], Lsn(1500), False))
    assert_same(told.rows(), rows)


def test_switching(lake: Lake) -> None:
    told = begun(lake, KEYED, "mirror", "switched")
    destination = lake.destination(TablePlan(mode="history"), "switched")
    assert destination.applied(KEYED) is None
    told.mode, told.destination = "history", destination
    told.copy()
    told.check()
    for plan in (TablePlan(mode="mirror"), TablePlan(mode="history", metadata=Metadata(lsn="_AT"))):
        destination = lake.destination(plan, "switched")
        assert destination.applied(KEYED) is None
        told.destination = destination
        with pytest.raises(DestinationError, match="keeps rows that its source no longer has") as e:
            told.copy()
        assert not e.value.retry
    told.check()


def test_metadata_as_it_is_wanted(lake: Lake) -> None:
    own = Metadata("op", "lsn", "at")
    told = Told(lake, KEYED, "mirror", "wanted", TablePlan(metadata=None))
    with told.source.transaction():
        told.source.insert(id=1, a="a1", b="b1", n=1)
    told.copy()
    assert_same(told.rows(), told.source.rows)
    with told.source.transaction():
        told.source.insert(id=2, a="a2", b="b2", n=2)
        told.source.update(told.source.find(id=1), unsent=["a"], b=None)
    told.batch()
    assert_same(told.rows(), told.source.rows)
    told.destination = lake.destination(TablePlan(metadata=own), "wanted")
    assert told.destination.applied(KEYED) is None
    told.copy()
    with told.source.transaction():
        told.source.delete(told.source.find(id=1))
    told.batch()
    (row,) = told.rows()
    assert (row["op"], row["lsn"], set(row) - set(KEYED.column_names)) == (
        "copy",
        told.copied[1],
        {"op", "lsn", "at"},
    )
    clash = make_schema({"id": "bigint", "op": "string"}, ["id"], name="clash")
    with pytest.raises(DestinationError, match="has a column op") as caught:
        told.destination.copy(copy_of(clash, [], Lsn(1), False))
    assert not caught.value.retry

    bare = Told(lake, KEYED, "history", "bare", TablePlan(mode="history", metadata=None))
    bare.copy()
    assert {"_CHANGE_TYPE", "_LSN", "_TIMESTAMP", "_SEQ"} <= set(bare.columns())


@pytest.mark.parametrize("mode", MODELS)
def test_keys_that_their_type_cannot_hold(lake: Lake, mode: Mode) -> None:
    far = datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC)
    forever, never = Inexact(far, "infinity"), Inexact(far, "294276-01-01")
    schema = make_schema({"at": "timestamp", "big": "string", "n": "decimal(12,2)"}, ["at"])
    told = Told(lake, schema, mode, "inexact")
    source = told.source
    with source.transaction():
        for key in (far, forever, never):
            source.insert(at=key, big=f"big {key}", n=None)
    told.copy(overflow=True)
    with source.transaction():
        source.update(source.find(at=far), unsent=["big"], n=Inexact(None, "NaN"))
        source.update(source.find(at=never), unsent=["big"], at=far.replace(year=2000))
        source.insert(at=never, big="new", n=None)
    told.batch()
    with source.transaction():
        source.update(source.find(at=forever), unsent=["big", "n"], at=far.replace(year=2001))
        source.delete(source.find(at=never))
        source.update(source.find(at=far), unsent=["n"], big=None)
    told.batch()
    told.check()


@dataclass(frozen=True, slots=True)
class Step:
    kind: str
    which: int
    key: int
    unsent: bool


steps = st.builds(
    Step,
    st.sampled_from(["insert", "update", "update", "move", "move", "delete", "truncate"]),
    st.integers(0, 5),
    st.integers(1, 6),
    st.booleans(),
)
transactions = st.lists(st.lists(steps, min_size=3, max_size=8), min_size=3, max_size=4)

_numbers = itertools.count()


def _take(source: NotedSource, step: Step) -> None:
    taken = {row["id"] for row in source.rows}
    value = f"{step.kind}{next(_numbers)}"
    if step.kind == "truncate" and step.which == 0:
        source.truncate()
    elif step.kind == "insert" and step.key not in taken:
        source.insert(id=step.key, a=value, b=value, n=step.which)
    elif source.rows:
        row = source.rows[step.which % len(source.rows)]
        unsent = ["a", "b"] if step.unsent else ["b"]
        changed: Row = {"n": step.which} if step.unsent else {"a": value}
        if step.kind == "delete":
            source.delete(row)
        elif step.kind == "move" and step.key not in taken:
            source.update(row, unsent, id=step.key, **changed)
        else:
            source.update(row, unsent, **changed)


@pytest.mark.parametrize("mode", MODELS)
@given(done=transactions, every=st.integers(1, 3))
@settings(
    max_examples=int(os.environ.get("WALFLOW_TEST_EXAMPLES", "3")),
    deadline=None,
    database=None,
    print_blob=True,
    # To make an example smaller takes longer than to read a large one.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@pytest.mark.long
def test_whatever_happens(lake: Lake, mode: Mode, done: list[list[Step]], every: int) -> None:
    told = begun(lake, KEYED, mode, f"any{next(_numbers)}")
    for number, transaction in enumerate(done, 1):
        with told.source.transaction():
            for step in transaction:
                _take(told.source, step)
        if number % every == 0:
            told.batch()
    told.batch()
    told.check()
