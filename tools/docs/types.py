"""The table of types, and of values that a type cannot hold: both by asking the code."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from psycopg.postgres import types as postgres_types

from tools.docs.markdown import code, table
from walflow.arrow_types import arrow_type
from walflow.config import TypeSettings
from walflow.model import Column, PgType
from walflow.source.codec.cells import Cells, pad
from walflow.source.codec.values import from_text, spark_type

__all__ = ["types_page"]

_INTRODUCTION = """\
# Types

Every Postgres type becomes one Spark type, and so one type of Iceberg or Delta. No type and no
value causes an error. If a type cannot hold a value, the map column `_EXACT` has Postgres's exact
text. [Decision 0002](../decisions/0002-types.md) says why.
"""

_STRINGS = """\
All other types become `string`, as Postgres prints them: enums, composites, types of extensions
(PostGIS, pgvector, hstore, citext and so on), and these built-in ones:
"""

_HELD = """\
## Values that do not fit

The build converts each of these values. `_EXACT` has the text of the first column.
"""

_NUMERIC = 1700
_NUMERICS = ((5, 2), (18, 4), (38, 10), (39, 2), (5, -2), (3, 5))

_SAMPLES = (
    ("date", "infinity"),
    ("date", "0044-03-15 BC"),
    ("date", "12000-01-01"),
    ("timestamp", "-infinity"),
    ("timestamptz", "12000-01-01 00:00:00+00"),
    ("numeric(12,2)", "NaN"),
    ("numeric", "NaN"),
    ("numeric", "1" + "0" * 40),
    ("numeric", "0.1234567890123456789"),
    ("int4[]", "{{1,2},{3,4}}"),
    ("int4[]", "[5:6]={1,2}"),
    ("date[]", "{2026-11-15,infinity}"),
)


def types_page() -> str:
    settings = TypeSettings()
    by_spark: dict[str, list[str]] = {}
    for info in postgres_types:
        found = spark_type(_builtin(info.name), settings)
        by_spark.setdefault(found, []).append(info.name)
    strings = by_spark.pop("string")
    lines = [_INTRODUCTION, "## What each type becomes", ""]
    rows = [
        [", ".join(map(code, names)), code(spark), code(arrow_type(spark))]
        for spark, names in sorted(by_spark.items(), key=lambda one: one[1])
        if names != ["numeric"]
    ]
    rows += [_numeric_row(settings, *digits) for digits in _NUMERICS]
    rows += _undeclared_rows(settings)
    rows.append([code("t[]"), code("array<…>") + " of the type of t", code("list<element: …>")])
    rows.append(["a domain", "as the type under it", ""])
    lines += table(["Postgres", "Spark", "Arrow"], rows)
    lines += [_STRINGS, ", ".join(map(code, strings)) + ".", "", _HELD]
    lines += table(["Value", "Type", "becomes", "kept in `_EXACT`"], _samples(settings))
    return "\n".join(lines)


def _builtin(name: str, typmod: int = -1) -> PgType:
    info = postgres_types[name]
    return PgType(name=name, oid=info.oid, base=info.oid, typmod=typmod)


def _parsed(name: str) -> PgType:
    if name.endswith("[]"):
        element = _parsed(name[:-2])
        info = postgres_types[element.name]
        return PgType(name=name, oid=info.array_oid, base=info.array_oid, element=element)
    if name.startswith("numeric("):
        precision, scale = map(int, name[len("numeric(") : -1].split(","))
        return _numeric(precision, scale)
    return _builtin(name)


def _numeric(precision: int, scale: int) -> PgType:
    # As Postgres packs them: the scale has eleven bits, and may be negative.
    return PgType(
        name=f"numeric({precision},{scale})",
        oid=_NUMERIC,
        base=_NUMERIC,
        typmod=(precision << 16 | scale & 0x7FF) + 4,
    )


def _numeric_row(settings: TypeSettings, precision: int, scale: int) -> list[str]:
    pg = _numeric(precision, scale)
    spark = spark_type(pg, settings)
    more = "" if precision <= 38 else " (`types.numeric`)"
    return [code(pg.name), code(spark) + more, code(arrow_type(spark))]


def _undeclared_rows(settings: TypeSettings) -> Iterator[list[str]]:
    for numeric in (settings.numeric, "double", "string"):
        chosen = TypeSettings.model_validate({"numeric": numeric})
        spark = spark_type(_builtin("numeric"), chosen)
        default = ", the default" if numeric == settings.numeric else ""
        yield [
            f"`numeric` without digits, with `types.numeric: {numeric}`{default}",
            code(spark),
            code(arrow_type(spark)),
        ]


def _samples(settings: TypeSettings) -> Iterator[list[str]]:
    for name, text in _SAMPLES:
        pg = _parsed(name)
        column = Column(name="c", type=pg, spark_type=spark_type(pg, settings), nullable=True)
        converted = from_text(column, _cell(text))
        (value,) = converted.values.to_pylist()
        overflow = None if converted.overflow is None else converted.overflow.to_pylist()[0]
        shown = "NULL" if value is None else code(_shown(value))
        yield [code(text), code(name), shown, "yes" if overflow == text else "no"]


def _cell(text: str) -> Cells:
    data = text.encode()
    return Cells(pad(data), np.zeros(1, np.int64), np.array([len(data)], np.int64))


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return str(value)
