"""Every type on real servers: text and binary agree, and the values are what they should be."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

import pytest

from tests.conftest import Database
from tests.source.raw_values import (
    binary_columns,
    cells_of,
    columns_of,
    comparable,
    plain,
    seen_both_ways,
    text_columns,
)
from walflow.config import TypeSettings
from walflow.model import Column, PgType
from walflow.source.codec.values import copy_expression, from_binary, from_text, spark_type
from walflow.source.connection import Session, connect

UTC = datetime.UTC
NAN, INFINITY = float("nan"), float("inf")


class Unheld:
    """An expected value that is not the whole truth: the exact text must be there as well."""

    def __init__(self, value: object) -> None:
        self.value = value


@dataclass(frozen=True, slots=True)
class Case:
    """A type, what it becomes, and literals with the value expected of each."""

    type: str
    spark: str
    values: dict[str, object]
    since: int = 14


FIRST_DAY, LAST_DAY = datetime.date(1, 1, 1), datetime.date(9999, 12, 31)
FIRST = datetime.datetime(1, 1, 1)
LAST = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999)
NULL = Unheld(None)

HELD = [
    Case("bool", "boolean", {"t": True, "f": False}),
    Case("int2", "int", {"-32768": -32768, "32767": 32767, "0": 0}),
    Case("int4", "int", {"-2147483648": -(1 << 31), "2147483647": (1 << 31) - 1}),
    Case("int8", "bigint", {str(-(1 << 63)): -(1 << 63), str((1 << 63) - 1): (1 << 63) - 1}),
    Case("oid", "bigint", {"4294967295": (1 << 32) - 1, "1": 1}),
    Case("xid", "bigint", {"4294967295": (1 << 32) - 1}),
    Case("cid", "bigint", {"4294967295": (1 << 32) - 1}),
    Case("xid8", "decimal(20,0)", {str((1 << 64) - 1): Decimal((1 << 64) - 1), "0": Decimal(0)}),
    Case(
        "float4",
        "float",
        {"1.5": 1.5, "NaN": NAN, "Infinity": INFINITY, "-Infinity": -INFINITY, "-0": -0.0},
    ),
    Case("float4", "float", {"1e-45": 1.401298464324817e-45, "0.1": 0.10000000149011612}),
    Case(
        "float8",
        "double",
        {
            "0.1": 0.1,
            "1e308": 1e308,
            "5e-324": 5e-324,
            "NaN": NAN,
            "Infinity": INFINITY,
            "-Infinity": -INFINITY,
            "-0": -0.0,
        },
    ),
    Case(
        "numeric(12,2)",
        "decimal(12,2)",
        {
            "0": Decimal(0),
            "0.01": Decimal("0.01"),
            "-0.10": Decimal("-0.10"),
            "100": Decimal(100),
            "10000.5": Decimal("10000.50"),
            "-9999999999.99": Decimal("-9999999999.99"),
            "123456789.01": Decimal("123456789.01"),
            "NaN": NULL,
        },
    ),
    Case(
        "numeric(18,7)",
        "decimal(18,7)",
        {
            "99999999999.9999999": Decimal("99999999999.9999999"),
            "-10000000000.0000001": Decimal("-10000000000.0000001"),
            "0.0000001": Decimal("0.0000001"),
        },
    ),
    Case(
        "numeric(18,0)",
        "decimal(18,0)",
        {"9" * 18: Decimal("9" * 18), "-" + "9" * 18: Decimal("-" + "9" * 18), "1": Decimal(1)},
    ),
    Case("numeric(18,18)", "decimal(18,18)", {"-0." + "9" * 18: Decimal("-0." + "9" * 18)}),
    Case("numeric(19,1)", "decimal(19,1)", {"9" * 18 + ".9": Decimal("9" * 18 + ".9")}),
    Case("numeric(38,10)", "decimal(38,10)", {"-" + "9" * 28: Decimal("-" + "9" * 28)}),
    Case("numeric(5,-2)", "decimal(7,0)", {"1234567": Decimal(1234600), "49": Decimal(0)}, 15),
    Case("numeric(3,5)", "decimal(5,5)", {"0.00999": Decimal("0.00999")}, 15),
    Case("numeric(3,12)", "decimal(12,12)", {"-1.23e-10": Decimal("-1.23e-10")}, 15),
    Case(
        "numeric",
        "decimal(38,18)",
        {
            "1.50": Decimal("1.5"),
            "1." + "0" * 30: Decimal(1),
            "0." + "0" * 17 + "1": Decimal("1e-18"),
            "0." + "0" * 18 + "1": NULL,
            "9" * 20: Decimal("9" * 20),
            "1" + "0" * 20: NULL,
            "9" * 60: NULL,
            "NaN": NULL,
            "Infinity": NULL,
            "-Infinity": NULL,
        },
    ),
    Case("numeric(50,2)", "decimal(38,18)", {"9" * 48: NULL, "3.14": Decimal("3.14")}),
    Case("bytea", "binary", {"\\x": b"", "\\x00ff5c78": b"\x00\xff\\x", "abc": b"abc"}),
    Case(
        "date",
        "date",
        {
            "2024-02-29": datetime.date(2024, 2, 29),
            "0001-01-01": FIRST_DAY,
            "9999-12-31": LAST_DAY,
            "0001-12-31 BC": Unheld(FIRST_DAY),
            "0044-03-15 BC": Unheld(FIRST_DAY),
            "4713-11-24 BC": Unheld(FIRST_DAY),
            "10000-01-01": Unheld(LAST_DAY),
            "5874897-12-31": Unheld(LAST_DAY),
            "infinity": Unheld(LAST_DAY),
            "-infinity": Unheld(FIRST_DAY),
        },
    ),
    Case(
        "timestamp",
        "timestamp_ntz",
        {
            "2024-02-29 12:34:56.7": datetime.datetime(2024, 2, 29, 12, 34, 56, 700_000),
            "0001-01-01": FIRST,
            "9999-12-31 23:59:59.999999": LAST,
            "9999-12-31 24:00:00": Unheld(LAST),
            "0001-12-31 23:59:59.999999 BC": Unheld(FIRST),
            "4714-11-24 00:00:00 BC": Unheld(FIRST),
            "294276-12-31 23:59:59.999999": Unheld(LAST),
            "12024-01-01 00:00:00.12": Unheld(LAST),
            "infinity": Unheld(LAST),
            "-infinity": Unheld(FIRST),
        },
    ),
    Case(
        "timestamptz",
        "timestamp",
        {
            "2024-02-29 12:34:56.000001+05:30": datetime.datetime(
                2024, 2, 29, 7, 4, 56, 1, tzinfo=UTC
            ),
            "1900-01-01 00:00:00+00": datetime.datetime(1900, 1, 1, tzinfo=UTC),
            "0001-01-01 00:00:00+00": FIRST.replace(tzinfo=UTC),
            "9999-12-31 23:59:59.999999+00": LAST.replace(tzinfo=UTC),
            "0044-03-15 12:00:00.5+00 BC": Unheld(FIRST.replace(tzinfo=UTC)),
            "12024-01-01 00:00:00+00": Unheld(LAST.replace(tzinfo=UTC)),
            "infinity": Unheld(LAST.replace(tzinfo=UTC)),
            "-infinity": Unheld(FIRST.replace(tzinfo=UTC)),
        },
    ),
    Case("timestamptz(0)", "timestamp", {"2024-01-01 00:00:00.4+00": None}),
    Case("d_cents", "decimal(9,2)", {"12.34": Decimal("12.34"), "NaN": NULL}),
    Case("d_d_cents", "decimal(9,2)", {"12.34": Decimal("12.34")}),
    Case("d_ints", "array<int>", {"{1,2}": [1, 2], "[0:0]={7}": Unheld([7])}),
    Case(
        "int4[]",
        "array<int>",
        {
            "{}": [],
            "{1,NULL,-3}": [1, None, -3],
            "{{1,2},{3,4}}": Unheld([1, 2, 3, 4]),
            "{{{1,NULL}}}": Unheld([1, None]),
            "[0:2]={1,2,3}": Unheld([1, 2, 3]),
            "[-2:-1][5:6]={{1,2},{3,4}}": Unheld([1, 2, 3, 4]),
            "[1:2]={1,2}": [1, 2],
        },
    ),
    Case(
        "text[]",
        "array<string>",
        {
            '{a,"b c",NULL,"NULL","null","",","}': ["a", "b c", None, "NULL", "null", "", ","],
            r'{"{}","\"","\\","\\\"\\\\","a\\"}': ["{}", '"', "\\", '\\"\\\\', "a\\"],
            '{" lead","tail ","tab\t","new\nline"}': [" lead", "tail ", "tab\t", "new\nline"],
            '{"[0:1]={x}",é,日本}': ["[0:1]={x}", "é", "日本"],
            '{{a,"b,c"},{NULL,"}"}}': Unheld(["a", "b,c", None, "}"]),
            "{}": [],
            "{NULL}": [None],
            "{NULLS,NULLIFY,NUL}": ["NULLS", "NULLIFY", "NUL"],
        },
    ),
    Case("bool[]", "array<boolean>", {"{t,f,NULL}": [True, False, None]}),
    Case("bytea[]", "array<binary>", {r'{"\\x00ff",NULL,"\\x"}': [b"\x00\xff", None, b""]}),
    Case("float8[]", "array<double>", {"{NaN,-Infinity,0.1,NULL}": [NAN, -INFINITY, 0.1, None]}),
    Case(
        "numeric(6,2)[]",
        "array<decimal(6,2)>",
        {"{1.5,NULL}": [Decimal("1.5"), None], "{NaN,2}": Unheld([None, Decimal(2)]), "{}": []},
    ),
    Case("numeric[]", "array<decimal(38,18)>", {"{1e-19,1}": Unheld([None, Decimal(1)])}),
    Case(
        "date[]",
        "array<date>",
        {"{2024-01-01,NULL}": [datetime.date(2024, 1, 1), None], "{infinity}": Unheld([LAST_DAY])},
    ),
    Case("timestamptz[]", "array<timestamp>", {'{"2024-01-01 00:00:00+00"}': None}),
    Case("timestamp[]", "array<timestamp_ntz>", {'{"0044-03-15 00:00:00 BC"}': Unheld([FIRST])}),
    Case("box[]", "array<string>", {"{(2,2),(1,1);NULL}": ["(2,2),(1,1)", None]}),
    Case("int4range[]", "array<string>", {'{"[1,3)",empty,NULL}': ["[1,3)", "empty", None]}),
    Case(
        "pair[]",
        "array<string>",
        {r'{"(1,\"a b\")","(,)",NULL}': ['(1,"a b")', "(,)", None]},
    ),
    Case("mood[]", "array<string>", {'{happy,"so so"}': ["happy", "so so"]}),
    Case("bpchar(3)[]", "array<string>", {"{a,bcd}": ["a  ", "bcd"]}),
]

AS_PRINTED: dict[str, list[str]] = {
    "text": ["", "plain", "tab\tnew\nline\\", "NULL", "日本 é"],
    "varchar(10)": ["", "abc  "],
    "bpchar(5)": ["ab", ""],
    '"char"': ["a", ""],
    "name": ["some name"],
    "json": ['{"b": 1,   "a": [1, 2]}', "null"],
    "jsonb": ['{"b": 1,   "a": [1, 2]}', "null", '"é"', "{}"],
    "jsonpath": ["$.a[*]"],
    "xml": ["<a>é</a>", '<?xml version="1.0" encoding="UTF-8"?><a/>'],
    "uuid": ["00000000-0000-0000-0000-000000000000", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"],
    "time": ["24:00:00", "12:34:56.7", "00:00:00"],
    "timetz": ["24:00:00+14", "12:34:56.78-05:30"],
    "interval": ["1 year 2 mons -3 days 04:05:06.7", "00:00:00", "-178000000 years"],
    "money": ["12.5", "-1234567.89"],
    "bit(3)": ["101"],
    "varbit": ["1", "10101"],
    "inet": ["1.2.3.4", "1.2.3.4/24", "::1", "fe80::/10"],
    "cidr": ["10.0.0.0/8", "1.2.3.4/32"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "point": ["(1,2.5)", "(NaN,Infinity)"],
    "line": ["{1,2,3}"],
    "lseg": ["[(0,0),(1,1)]"],
    "box": ["(1,1),(0,0)"],
    "path": ["((0,0),(1,1))", "[(0,0),(1,1)]"],
    "polygon": ["((0,0),(1,1),(1,0))"],
    "circle": ["<(0,0),1>"],
    "int4range": ["[1,5)", "empty", "(,)"],
    "numrange": ["[1.5,2.50]"],
    "tstzrange": ["[2024-01-01 00:00:00+00,infinity)"],
    "int8multirange": ["{[1,3),[5,8)}", "{}"],
    "tsvector": ["'a':1A 'b c':2", ""],
    "tsquery": ["'a' & !'b'"],
    "pg_lsn": ["16/B374D848"],
    "tid": ["(1,2)"],
    "regclass": ["pg_class"],
    "regtype": ["integer"],
    "int2vector": ["1 2 3", ""],
    "oidvector": ["1 2 3"],
    "mood": ["happy", "so so"],
    "d_mood": ["happy"],
    "pair": ["(1,x)", "(,)", '(,"a ""quoted"" one")'],
    "float_range": ["[1.5,2.5)"],
}

MAKE_TYPES = (
    "CREATE TYPE mood AS ENUM ('happy', 'so so')",
    "CREATE DOMAIN d_mood AS mood",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE DOMAIN d_cents AS numeric(9,2)",
    "CREATE DOMAIN d_d_cents AS d_cents CHECK (VALUE >= 0 OR VALUE <> VALUE)",
    "CREATE DOMAIN d_ints AS int[]",
    "CREATE TYPE float_range AS RANGE (subtype = float8)",
)


@pytest.fixture
def session(any_database: Database) -> Iterator[Session]:
    any_database.execute(*MAKE_TYPES)
    with connect(any_database.uri, application_name="test") as session:
        session.autocommit = True
        yield session


def filled(session: Session, table: str, kind: str, literals: list[str]) -> None:
    session.execute(f"CREATE TABLE {table} (v {kind})")
    for literal in [*literals, None]:
        session.execute(f"INSERT INTO {table} VALUES (%s::text::{kind})", [literal])


def test_values_that_have_a_type_of_their_own(session: Session) -> None:
    version = session.info.server_version // 10_000
    for number, case in enumerate(case for case in HELD if version >= case.since):
        filled(session, f"t{number}", case.type, list(case.values))
        seen = seen_both_ways(session, f"t{number}")["v"]
        assert seen.column.spark_type == case.spark, case
        assert (seen.values[-1], seen.overflow[-1]) == (None, None), case
        for row, (literal, expected) in enumerate(case.values.items()):
            told = (case.type, literal)
            if isinstance(expected, Unheld):
                assert seen.values[row] == comparable(expected.value), told
                assert seen.overflow[row] == seen.texts[row], told
            else:
                assert seen.overflow[row] is None, told
                # None: that both ways agree is all that is asked.
                assert expected is None or seen.values[row] == comparable(expected), told


def test_arrays_of_a_domain_over_arrays(session: Session) -> None:
    filled(session, "inner_ones", "d_ints", [])
    filled(session, "t", "d_ints[]", ['{"{1,NULL}",NULL,"{}"}', '{"{{1},{2}}"}', "{}"])
    (inner,) = columns_of(session, "inner_ones")
    nested = Column("v", PgType("d_ints[]", 0, 0, element=inner.type), "array<array<int>>")
    assert spark_type(nested.type, TypeSettings()) == nested.spark_type
    (texts,) = text_columns(session, "SELECT v FROM t ORDER BY ctid")
    (copied,) = binary_columns(session, f"SELECT {copy_expression(nested)} FROM t ORDER BY ctid", 1)
    expected = (
        [[[1, None], None, []], [[1, 2]], [], None],
        [None, '{"{{1},{2}}"}', None, None],
    )
    assert plain(from_text(nested, cells_of(texts))) == expected
    assert plain(from_binary(nested, cells_of(copied))) == expected


def test_all_other_types_are_text_as_postgres_prints_it(session: Session) -> None:
    for number, (kind, literals) in enumerate(AS_PRINTED.items()):
        try:
            filled(session, f"t{number}", kind, literals)
        except Exception as error:
            # The only type whose support is a choice when Postgres is built.
            if kind == "xml" and "unsupported XML feature" in str(error):
                continue
            raise
        seen = seen_both_ways(session, f"t{number}")["v"]
        assert seen.column.spark_type == "string", kind
        assert seen.values == seen.texts, kind
        assert seen.overflow == [None] * len(seen.texts), kind
        assert [value is None for value in seen.values] == [False] * len(literals) + [True], kind


def test_a_char_that_is_no_ascii(session: Session) -> None:
    filled(session, "t", '"char"', ["a", "é", "ÿ", ""])
    # Postgres 14 prints the bare byte, which is no UTF-8; newer servers an escape.
    columns = columns_of(session, "t")
    (texts,) = text_columns(session, "SELECT v FROM t ORDER BY ctid")
    (copied,) = binary_columns(
        session, f"SELECT {copy_expression(columns[0])} FROM t ORDER BY ctid", 1
    )
    expected = ["a", r"\303", r"\303", "", None]
    for converted in (
        from_text(columns[0], cells_of(texts)),
        from_binary(columns[0], cells_of(copied)),
    ):
        converted.values.validate(full=True)
        assert plain(converted) == (expected, [None] * 5)


def test_system_types_that_no_column_of_a_user_should_have(session: Session) -> None:
    session.execute("CREATE TABLE odd AS SELECT relacl AS v FROM pg_class WHERE relacl IS NOT NULL")
    seen = seen_both_ways(session, "odd")["v"]
    assert seen.column.spark_type == "array<string>"
    assert seen.values


EXTENSION_TYPES = {
    "citext": ("citext", ["MiXed", ""]),
    "hstore": ("hstore", ['"a"=>"1", "b"=>NULL', ""]),
    "ltree": ("ltree", ["top.science", ""]),
    "cube": ("cube", ["(1, 2),(3, 4)"]),
    "isn": ("isbn", ["978-0-393-04002-9"]),
}


def test_types_of_extensions(session: Session) -> None:
    available = session.execute(
        "SELECT name FROM pg_available_extensions WHERE name = ANY(%s)", [list(EXTENSION_TYPES)]
    ).fetchall()
    if not available:
        pytest.skip(
            f"this Postgres {session.info.server_version // 10_000} has no contrib extensions: "
            "install its contrib package to run this test"
        )
    for (extension,) in available:
        kind, literals = EXTENSION_TYPES[extension]
        session.execute(f"CREATE EXTENSION {extension}")
        filled(session, f"one_{kind}", kind, literals)
        seen = seen_both_ways(session, f"one_{kind}")["v"]
        assert seen.column.spark_type == "string", kind
        assert seen.values == seen.texts, kind
        session.execute(f"CREATE TABLE many_{kind} AS SELECT array_agg(v) AS v FROM one_{kind}")
        many = seen_both_ways(session, f"many_{kind}")["v"]
        assert many.column.spark_type == "array<string>", kind
        assert many.values == [seen.texts], kind


@pytest.mark.parametrize("setting", ["double", "string", "decimal(10,2)"])
def test_settings_of_numeric(database: Database, setting: str) -> None:
    literals = ["1.50", "NaN", "-Infinity", "0.1", "123456789.01", "1e-30", "9" * 40, "0"]
    with connect(database.uri, application_name="test") as session:
        filled(session, "n", "numeric", literals)
        filled(session, "many", "numeric[]", ["{" + ",".join(literals) + "}"])
        settings = TypeSettings(numeric=setting)
        seen = seen_both_ways(session, "n", settings)["v"]
        many = seen_both_ways(session, "many", settings)["v"]
    assert many.values == [seen.values[:-1], None]
    assert (many.overflow[0] is None) == (seen.overflow == [None] * len(seen.overflow))
    if setting == "string":
        assert seen.values == seen.texts
    elif setting == "double":
        expected = [repr(float(literal)) for literal in literals]
        assert seen.values == [*expected, None]
        assert seen.overflow == [None] * 6 + ["9" * 40, None, None]
    else:
        unheld = [
            literals.index(text) for text in ("NaN", "-Infinity", "123456789.01", "1e-30", "9" * 40)
        ]
        held = [None if row in unheld else Decimal(text) for row, text in enumerate(literals)]
        assert seen.values == [*held, None]
        assert [row for row, text in enumerate(seen.overflow) if text] == unheld
