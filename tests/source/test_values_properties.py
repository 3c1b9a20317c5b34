"""Random values, compared with Postgres's own view of them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.source.raw_values import Seen, seen_both_ways
from walflow.config import TypeSettings
from walflow.source.connection import Session, connect
from walflow.testing.postgres import EmbeddedPostgres

few = settings(max_examples=40, deadline=None)


@pytest.fixture(scope="module")
def session(postgres: EmbeddedPostgres) -> Iterator[Session]:
    with connect(postgres.uri, application_name="test") as session:
        session.autocommit = True
        yield session


def table_of(session: Session, kind: str, expression: str, rows: Sequence[Sequence[Any]]) -> None:
    """A temporary table ``t`` with one value of this type a row."""
    session.execute("DROP TABLE IF EXISTS t")
    session.execute(f"CREATE TEMP TABLE t (v {kind})")
    session.cursor().executemany(f"INSERT INTO t VALUES ({expression})", rows)


def seen(session: Session, settings: TypeSettings | None = None) -> Seen:
    return seen_both_ways(session, "t", settings)["v"]


letters = st.text(
    st.one_of(st.sampled_from('{}",\\ \tNULnul[]=:;é'), st.characters(codec="utf-8")), max_size=8
).map(lambda text: text.replace("\0", "0"))


def arrays(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Arrays of one to three dimensions, as nested lists."""
    items = st.one_of(st.none(), elements)

    def shaped(shape: tuple[int, ...]) -> st.SearchStrategy[list[Any]]:
        inner = items if len(shape) == 1 else shaped(shape[1:])
        return st.lists(inner, min_size=shape[0], max_size=shape[0])

    shapes = st.lists(st.integers(1, 3), min_size=2, max_size=3).map(tuple)
    return st.one_of(st.lists(items, max_size=5), shapes.flatmap(shaped))


def bounded(array: list[Any], bounds: list[int]) -> str:
    """A prefix that gives the array these lower bounds."""
    sizes = []
    level: Any = array
    while isinstance(level, list):
        if not level:
            return ""
        sizes.append(len(level))
        level = level[0]
    spans = zip(bounds, sizes, strict=False)
    return "".join(f"[{low}:{low + size - 1}]" for low, size in spans) + "="


columns_of_arrays = {
    "text[]": letters,
    "numeric(10,2)[]": st.one_of(
        st.just("NaN"), st.decimals(-(10**7), 10**7, places=2, allow_nan=False).map(str)
    ),
    "timestamptz[]": st.one_of(
        st.sampled_from(["infinity", "-infinity", "0044-03-15 BC", "12024-01-01"]),
        st.datetimes().map(lambda at: at.isoformat() + "+00"),
    ),
}

ELEMENT_HELD = {
    "text[]": "true",
    "numeric(10,2)[]": "e <> 'NaN'",
    "timestamptz[]": "e >= '0001-01-01' AND e < '10000-01-01'",
}


@pytest.mark.parametrize("kind", columns_of_arrays)
@few
@given(data=st.data())
def test_arrays(session: Session, kind: str, data: st.DataObject) -> None:
    bounds = st.one_of(st.just([1, 1, 1]), st.lists(st.integers(-3, 3), min_size=3, max_size=3))
    row = st.one_of(st.none(), st.tuples(arrays(columns_of_arrays[kind]), bounds))
    rows = data.draw(st.lists(row, min_size=1, max_size=12))
    told = [(None, None) if row is None else (bounded(*row), row[0]) for row in rows]
    table_of(session, kind, f"(%s::text || %s::text[]::text)::{kind}", told)
    theirs = session.execute(
        "SELECT (SELECT array_agg(e::text ORDER BY n) FROM unnest(v) WITH ORDINALITY u(e, n)),"
        " coalesce(array_ndims(v), 1) = 1 AND coalesce(array_lower(v, 1), 1) = 1 AND"
        f" (SELECT coalesce(bool_and(e IS NULL OR {ELEMENT_HELD[kind]}), true)"
        " FROM unnest(v) e) FROM t ORDER BY ctid"
    ).fetchall()
    ours = seen(session)
    elements: list[str | None] = []
    values: list[object] = []
    for value, overflow, text, (flat, held) in zip(
        ours.values, ours.overflow, ours.texts, theirs, strict=True
    ):
        assert overflow == (None if held or text is None else text)
        assert (value is None) == (text is None)
        if isinstance(value, list):
            assert len(value) == len(flat or [])
            values += value
            elements += flat or []
    # Each element is worth what it is worth in a column of its own.
    table_of(session, kind[:-2], f"%s::{kind[:-2]}", [(element,) for element in elements])
    assert values == seen(session).values


def unscaled(digits: int) -> st.SearchStrategy[int]:
    """Integers of at most so many digits, often with zeros at their end."""
    most = 10**digits - 1
    return st.builds(
        lambda number, zeros: number // 10**zeros * 10**zeros,
        st.one_of(st.integers(0, most), st.integers(0, min(most, 100_000))),
        st.one_of(st.just(0), st.integers(0, digits - 1)),
    )


def numbers(digits: int, scale: int) -> st.SearchStrategy[str]:
    return st.builds(
        lambda number, minus: f"{Decimal((minus, Decimal(number).as_tuple().digits, -scale)):f}",
        unscaled(digits),
        st.integers(0, 1),
    )


@pytest.mark.parametrize(
    ("precision", "scale", "spark"),
    [
        (12, 2, "decimal(12,2)"),
        (18, 0, "decimal(18,0)"),
        (18, 1, "decimal(18,1)"),
        (18, 3, "decimal(18,3)"),
        (17, 5, "decimal(17,5)"),
        (18, 18, "decimal(18,18)"),
        (19, 4, "decimal(19,4)"),
        (38, 7, "decimal(38,7)"),
        (38, 38, "decimal(38,38)"),
        (5, -3, "decimal(8,0)"),
        (4, 9, "decimal(9,9)"),
    ],
)
@few
@given(data=st.data())
def test_numerics_with_a_precision(
    session: Session, precision: int, scale: int, spark: str, data: st.DataObject
) -> None:
    number = st.one_of(numbers(precision, scale), st.none(), st.just("NaN"))
    texts = data.draw(st.lists(number, min_size=1, max_size=40))
    kind = f"numeric({precision},{scale})"
    table_of(session, kind, f"%s::{kind}", [(text,) for text in texts])
    ours = seen(session)
    assert ours.column.spark_type == spark
    for value, overflow, text in zip(ours.values, ours.overflow, ours.texts, strict=True):
        if text is None or text == "NaN":
            assert (value, overflow) == (None, text)
        else:
            assert (value, overflow) == (Decimal(text), None)


@few
@given(
    texts=st.lists(
        st.one_of(
            st.integers(0, 30).flatmap(lambda scale: numbers(45, scale)),
            st.integers(0, 18).flatmap(lambda scale: numbers(38, scale)),
            st.sampled_from(["NaN", "Infinity", "-Infinity"]),
            st.none(),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_numerics_without_a_precision(session: Session, texts: list[str | None]) -> None:
    table_of(session, "numeric", "%s::numeric", [(text,) for text in texts])
    theirs = session.execute(
        "SELECT scale(trim_scale(v)) <= 18 AND abs(v) < 1e20 FROM t ORDER BY ctid"
    ).fetchall()
    ours = seen(session)
    for value, overflow, text, (held,) in zip(
        ours.values, ours.overflow, ours.texts, theirs, strict=True
    ):
        if text is not None and held:
            assert (value, overflow) == (Decimal(text), None)
        else:
            assert (value, overflow) == (None, text)


@few
@given(
    texts=st.lists(
        st.one_of(
            st.integers(0, 25).flatmap(lambda scale: numbers(30, scale)),
            st.floats(-1e20, 1e20).map(lambda number: f"{Decimal(repr(number)):f}"),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_numerics_as_doubles(session: Session, texts: list[str]) -> None:
    table_of(session, "numeric", "%s::numeric", [(text,) for text in texts])
    ours = seen(session, TypeSettings(numeric="double"))
    for value, overflow, text in zip(ours.values, ours.overflow, ours.texts, strict=True):
        assert text is not None
        assert value == repr(float(text))
        held = Decimal(repr(float(text))) == Decimal(text)
        assert overflow == (None if held else text)


_TIME = "'2000-01-01 00:00:00+00'::timestamptz + %s * interval '1 day' + %s * interval '1 us'"
MOMENTS = {
    "date": "'2000-01-01'::date + %s::int + (0 * %s::bigint)::int",
    "timestamp": f"({_TIME})::timestamp",
    "timestamptz": _TIME,
}
# The last ones that Postgres has, of timestamps with any time of the day.
DAYS = {"date": 2_145_031_948, "timestamp": 106_751_982, "timestamptz": 106_751_982}


@pytest.mark.parametrize("kind", DAYS)
@few
@given(data=st.data())
def test_moments(session: Session, kind: str, data: st.DataObject) -> None:
    days = st.one_of(st.integers(-2_451_507, DAYS[kind]), st.integers(-740_000, 2_940_000))
    moment = st.one_of(
        st.none(),
        st.tuples(st.none(), st.sampled_from(["infinity", "-infinity"])),
        st.tuples(days, st.sampled_from([0, 1, 999_999, 86_399_999_999, 1_500_000])),
    )
    rows = [
        (None, None, None) if drawn is None else (drawn[0], *_micros_or_text(drawn[1]))
        for drawn in data.draw(st.lists(moment, min_size=1, max_size=30))
    ]
    told = [(text, day, micros) for day, micros, text in rows]
    table_of(session, kind, f"coalesce(%s::text::{kind}, {MOMENTS[kind]})", told)
    theirs = session.execute(
        "SELECT v >= '0001-01-01' AND v < '10000-01-01', v > '2000-01-01',"
        " CASE WHEN isfinite(v) THEN (extract(epoch FROM v) * 1000000)::numeric(30,0) END"
        " FROM t ORDER BY ctid"
    ).fetchall()
    ours = seen(session)
    for value, overflow, text, (held, late, micros) in zip(
        ours.values, ours.overflow, ours.texts, theirs, strict=True
    ):
        if text is None:
            assert (value, overflow) == (None, None)
            continue
        assert isinstance(value, datetime.date)
        assert overflow == (None if held else text)
        at = value if isinstance(value, datetime.datetime) else _midnight(value)
        if held:
            since = at.replace(tzinfo=datetime.UTC) - datetime.datetime(
                1970, 1, 1, tzinfo=datetime.UTC
            )
            assert since // datetime.timedelta(microseconds=1) == micros
        else:
            assert at.year == (9999 if late else 1)


def _micros_or_text(drawn: int | str) -> tuple[int | None, str | None]:
    return (drawn, None) if isinstance(drawn, int) else (None, drawn)


def _midnight(day: datetime.date) -> datetime.datetime:
    return datetime.datetime.combine(day, datetime.time())
