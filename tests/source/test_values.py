"""The mapping of types, and converters at their edges, without a server."""

from __future__ import annotations

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tests.source.raw_values import Raw, cells_of, plain
from walflow.arrow_types import arrow_type
from walflow.config import TypeSettings
from walflow.errors import ProtocolError
from walflow.model import Column, PgType
from walflow.source.codec.cells import Cells
from walflow.source.codec.decimals import declared_decimal
from walflow.source.codec.values import (
    copy_expression,
    from_binary,
    from_text,
    spark_type,
)

INT4 = PgType("integer", 23, 23)
TEXT = PgType("text", 25, 25)


def column(oid: int, spark: str, typmod: int = -1, element: PgType | None = None) -> Column:
    return Column("c", PgType("some type", oid, oid, typmod, element), spark)


def numeric_typmod(precision: int, scale: int) -> int:
    return ((precision << 16) | (scale & 0x7FF)) + 4


@pytest.mark.parametrize(
    ("precision", "scale", "expected"),
    [
        (12, 2, (12, 2)),
        (38, 38, (38, 38)),
        (38, 0, (38, 0)),
        (39, 0, None),
        (5, -2, (7, 0)),
        (37, -2, None),
        (3, 5, (5, 5)),
        (3, 39, None),
        (1000, 1000, None),
        (1000, -1000, None),
    ],
)
def test_declared_decimal(precision: int, scale: int, expected: tuple[int, int] | None) -> None:
    assert declared_decimal(numeric_typmod(precision, scale)) == expected


def test_numeric_without_a_fitting_precision_follows_the_setting() -> None:
    free = PgType("numeric", 1700, 1700)
    wide = PgType("numeric(50,2)", 1700, 1700, numeric_typmod(50, 2))
    for setting in ("decimal(38,18)", "decimal(20,4)", "double", "string"):
        assert spark_type(free, TypeSettings(numeric=setting)) == setting
        assert spark_type(wide, TypeSettings(numeric=setting)) == setting


@pytest.mark.parametrize(
    ("spark", "arrow"),
    [
        ("decimal(7,3)", pa.decimal128(7, 3)),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("array<array<int>>", pa.list_(pa.list_(pa.int32()))),
        ("array<decimal(38,18)>", pa.list_(pa.decimal128(38, 18))),
    ],
)
def test_arrow_type_reads_what_spark_type_writes(spark: str, arrow: pa.DataType) -> None:
    assert arrow_type(spark) == arrow


def test_unknown_types_are_text_and_vectors_are_no_arrays() -> None:
    assert spark_type(PgType("some.thing", 99_999, 99_999), TypeSettings()) == "string"
    vector = PgType("int2vector", 22, 22, element=PgType("smallint", 21, 21))
    assert spark_type(vector, TypeSettings()) == "string"


def test_copy_expression_quotes_names() -> None:
    assert copy_expression(Column('a"b', INT4, "int")) == '"a""b"'
    assert '.concat("a""b")' in copy_expression(Column('a"b', PgType("inet", 869, 869), "string"))


@pytest.mark.parametrize(
    "kind",
    [
        column(16, "boolean"),
        column(23, "int"),
        column(701, "double"),
        column(1700, "decimal(12,2)", numeric_typmod(12, 2)),
        column(1700, "decimal(38,18)"),
        column(1700, "double"),
        column(25, "string"),
        column(17, "binary"),
        column(1082, "date"),
        column(1184, "timestamp"),
        column(2950, "string"),
        column(3802, "string"),
        column(1007, "array<int>", element=INT4),
    ],
    ids=lambda kind: f"{kind.type.base}-{kind.spark_type}",
)
@pytest.mark.parametrize("convert", [from_text, from_binary])
def test_columns_without_rows_or_without_values(kind: Column, convert: object) -> None:
    assert callable(convert)
    nothing = Cells(np.zeros(8, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert convert(kind, nothing).values == pa.array([], arrow_type(kind.spark_type))
    nulls = Cells(
        np.zeros(8, np.uint8),
        np.zeros(3, np.int64),
        np.zeros(3, np.int64),
        np.zeros(3, np.bool_),
    )
    converted = convert(kind, nulls)
    converted.values.validate(full=True)
    assert converted.values.type == arrow_type(kind.spark_type)
    assert (converted.values.null_count, converted.overflow) == (3, None)


@pytest.mark.parametrize("digits", range(36, 64))
@pytest.mark.parametrize("scale", [0, 18])
def test_arrow_never_overflows_into_a_wrong_decimal(digits: int, scale: int) -> None:
    for first in "123456789":
        text = first + "9" * (digits - 1)
        values, overflow = plain(
            from_text(column(1700, f"decimal(38,{scale})"), cells_of([text.encode(), b"1"]))
        )
        held = digits + scale <= 38
        assert values == [Decimal(text) if held else None, Decimal(1)]
        assert overflow == [None if held else text, None]


def test_zeros_behind_the_scale_do_not_make_a_value_unheld() -> None:
    texts: list[Raw] = [b"1." + b"0" * 60, b"-0.50" + b"0" * 40, b"0." + b"0" * 18 + b"1", b"0.00"]
    values, overflow = plain(from_text(column(1700, "decimal(38,18)"), cells_of(texts)))
    assert values == [Decimal(1), Decimal("-0.5"), None, Decimal(0)]
    assert overflow == [None, None, "0." + "0" * 18 + "1", None]


def test_doubles_keep_the_text_only_of_numbers_they_do_not_hold() -> None:
    cases: dict[str, tuple[float | None, bool]] = {
        "0.1": (0.1, True),
        "NaN": (float("nan"), True),
        "-Infinity": (float("-inf"), True),
        "0.30000000000000004": (0.30000000000000004, True),
        "0.300000000000000041": (0.30000000000000004, False),
        "1.500000000000000000000000": (1.5, True),
        "100000000000000000000000": (1e23, True),
        "100000000000000000000001": (1.0000000000000001e23, False),
        "12345678901234567": (12345678901234568.0, False),
        "12345678901234568": (12345678901234568.0, True),
        "1" + "0" * 308: (1e308, True),
        "1" + "0" * 400: (None, False),
        "-1" + "0" * 400: (None, False),
        "0." + "0" * 400 + "1": (0.0, False),
    }
    # With and without the texts that are past the range, which take another way.
    for texts in ([text for text in cases if len(text) < 100], list(cases)):
        values, overflow = plain(
            from_text(column(1700, "double"), cells_of([*(text.encode() for text in texts), None]))
        )
        for text, value, kept in zip(texts, values, overflow, strict=False):
            nearest, held = cases[text]
            assert value == (None if nearest is None else repr(nearest)), text
            assert kept == (None if held else text), text
        assert (values[-1], overflow[-1]) == (None, None)


def test_a_text_in_another_date_style_is_an_error_not_a_clamp() -> None:
    with pytest.raises(ProtocolError, match="timestamp") as caught:
        from_text(
            Column("at", PgType("timestamp", 1114, 1114), "timestamp_ntz"),
            cells_of([b"2024-01-01 00:00:00", b"01/02/2024 00:00:00"]),
        )
    assert "session options" in caught.value.hint


def test_some_rows_of_a_column() -> None:
    cells = cells_of([b"10", None, b"30", b"-4"]).take(np.array([1, 3]))
    assert plain(from_text(column(23, "int"), cells))[0] == [None, -4]
    texts = cells_of([b"infinity", b"2024-02-29", None]).take(np.array([True, True, False]))
    values, overflow = plain(from_text(column(1082, "date"), texts))
    assert values == [datetime.date(9999, 12, 31), datetime.date(2024, 2, 29)]
    assert overflow == ["infinity", None]


def test_a_delimiter_that_also_stands_in_bounds() -> None:
    odd = Column("c", PgType("odd[]", 90_000, 90_000, element=TEXT, delimiter=":"), "array<string>")
    values, overflow = plain(
        from_text(odd, cells_of([b"{a:b}", b'[2:3]={"x:y":NULL}', b"{}", b"[-1:-1]={z}"]))
    )
    assert values == [["a", "b"], ["x:y", None], [], ["z"]]
    assert overflow == [None, '[2:3]={"x:y":NULL}', None, "[-1:-1]={z}"]


def test_large_values() -> None:
    big = b"x" * (1 << 20)
    text = column(1009, "array<string>", element=TEXT)
    values, overflow = plain(from_text(text, cells_of([b'{"' + big + b'\\\\",b}', None, b"{}"])))
    assert values == [[(big + b"\\").decode(), "b"], None, []]
    assert overflow == [None, None, None]
    assert plain(from_text(column(17, "binary"), cells_of([b"\\x" + big.hex().encode()])))[0] == [
        big
    ]
