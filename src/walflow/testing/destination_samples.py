"""Tables, rows and stories with everything that a destination must get right."""

from __future__ import annotations

import datetime
import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from walflow.model import Column, PgType, TableSchema
from walflow.testing.sources import Inexact, Source, make_schema

__all__ = [
    "ALL_TYPES",
    "keyed_source",
    "keyless_source",
    "other_schema",
    "source_of",
    "tell_keyed_story",
    "tell_keyless_story",
    "tell_truncate_story",
    "tell_types",
]

ALL_TYPES = {
    "id": "bigint",
    "ok": "boolean",
    "i": "int",
    "r": "float",
    "f": "double",
    "n": "decimal(12,2)",
    "wide": "decimal(38,18)",
    "t": "string",
    "bin": "binary",
    "d": "date",
    "tz": "timestamp",
    "ntz": "timestamp_ntz",
    "ints": "array<int>",
    "texts": "array<string>",
}
"""Every type that a column of Postgres can become."""

_NOON = datetime.datetime(2026, 11, 15, 12, 0, 0, 123456)

_numbers = itertools.count(1)


def source_of(columns: Mapping[str, str], key: Sequence[str], folder: Path) -> Source:
    """A table with a new name."""
    name = f"t{next(_numbers)}_{uuid.uuid4().hex[:8]}"
    return Source(make_schema(columns, key, name, "contract"), folder)


def keyed_source(folder: Path) -> Source:
    """Rows 1 to 6 of a table with a key. ``big`` is the column that Postgres may leave out."""
    source = source_of({"id": "bigint", "v": "string", "big": "string"}, ["id"], folder)
    with source.transaction():
        for number in range(1, 7):
            source.insert(id=number, v=f"v{number}", big=f"large {number}")
    return source


def keyless_source(folder: Path) -> Source:
    """Rows of a table without a key, some of them twice or three times."""
    source = source_of({"a": "int", "b": "string"}, [], folder)
    with source.transaction():
        for a in (1, 1, 1, 2, 2, 3):
            source.insert(a=a, b=None if a == 3 else "b")
    return source


def tell_keyed_story(source: Source) -> None:
    """Changes of rows with a key, in an order that matters."""
    with source.transaction():
        source.insert(id=7, v="new", big="large 7")
        for text in ("one", "two", "three"):
            source.update(source.find(id=1), v=text)
        source.delete(source.find(id=2))
        source.insert(id=2, v="again", big=None)
    with source.transaction():
        # Two rows exchange their keys, and one moves twice; what is large is not sent.
        moved = source.update(source.find(id=3), unsent=["big"], id=30)
        source.update(source.find(id=4), unsent=["big"], id=3)
        source.update(moved, unsent=["big"], id=4)
        moved = source.update(source.find(id=5), id=50, v="moved")
        source.update(moved, unsent=["big"], id=51)
    with source.transaction():
        source.update(source.find(id=6), unsent=["big"], v="kept what is large")
        source.update(source.find(id=7), unsent=["big"], v=None)
        source.insert(id=8, v="short life", big=None)
        source.delete(source.find(id=8))


def tell_truncate_story(source: Source) -> None:
    """A truncate in the middle of a batch, and afterwards a row whose key changes."""
    with source.transaction():
        source.insert(id=100, v="goes", big=None)
        source.truncate()
        source.insert(id=101, v="stays", big="large")
    with source.transaction():
        source.update(source.find(id=101), unsent=["big"], id=102)


def tell_keyless_story(source: Source) -> None:
    """Of equal rows, one at a time is changed or deleted."""
    with source.transaction():
        source.delete(source.find(a=1))
        source.update(source.find(a=2), b="other")
        source.update(source.find(a=3), a=1, b="b")
        source.insert(a=4, b=None)
        source.insert(a=4, b=None)


def tell_types(source: Source, first: int) -> None:
    """Three rows: with a value in every column, with nulls, and with the largest value of each
    type."""
    forever = datetime.date(9999, 12, 31)
    with source.transaction():
        source.insert(
            id=first,
            ok=True,
            i=-(2**31),
            r=0.5,
            f=float("-inf"),
            n=Decimal("-1234567890.12"),
            wide=Decimal("12345678901234567890.123456789012345678"),
            t='snow\u2603\U0001f600 "quoted" \\ \n\'',
            bin=b"\x00\xff",
            d=datetime.date(1, 1, 1),
            tz=datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
            ntz=_NOON,
            ints=[1, None, 3],
            texts=["a", "", None, 'b"'],
        )
        source.insert(id=first + 1)
        source.insert(
            id=-(2**63) + first,
            ok=False,
            i=2**31 - 1,
            f=float("nan"),
            # What no number of this type is: Postgres's text of it comes beside the rows.
            n=Inexact(None, "NaN"),
            wide=Decimal("0.000000000000000001"),
            t="",
            bin=b"",
            d=Inexact(forever, "infinity"),
            tz=_NOON.replace(tzinfo=datetime.UTC),
            ints=[],
            texts=[],
        )


def other_schema(schema: TableSchema) -> TableSchema:
    """The keyed table with ``v`` renamed, ``big`` dropped, and a column added."""
    key, value, _ = schema.columns
    added = Column("n", PgType("integer", 23, 23), "int", attnum=9, missing="7")
    return replace(schema, columns=(key, replace(value, name="w"), added))
