"""What destinations are held against, and lakes to hold."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from walflow.destinations.base import TableCopy
from walflow.destinations.iceberg import IcebergFormat, catalog_conf, table_identifier
from walflow.destinations.lake import EXACT, LakeDestination, Owner
from walflow.destinations.lake.sessions import lake_session
from walflow.model import Lsn, TableSchema
from walflow.spark.names import quoted
from walflow.testing.sources import Inexact, Row, Source, assert_same, make_schema, same

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "ALL_TYPES",
    "Inexact",
    "Row",
    "Source",
    "assert_same",
    "copy_of",
    "iceberg_lake",
    "make_schema",
    "one_of_each",
    "reading_session",
    "rows_of",
    "same",
    "stored_rows",
]

ALL_TYPES = make_schema(
    {
        "id": "bigint",
        "ok": "boolean",
        "s": "smallint",
        "i": "int",
        "f": "double",
        "n": "decimal(12,2)",
        "t": "string",
        "bin": "binary",
        "d": "date",
        "tz": "timestamp",
        "ntz": "timestamp_ntz",
        "l": "array<int>",
        "m": "map<string,string>",
    },
    ["id"],
)
NOON = datetime.datetime(2026, 11, 15, 12, 0, 0, 123456)


def one_of_each(folder: Path) -> Source:
    """Three rows with something in every column, with nothing, and with edges."""
    source = Source(ALL_TYPES, folder)
    with source.transaction():
        source.insert(
            id=1,
            ok=True,
            s=-7,
            i=2**31 - 1,
            f=float("inf"),
            n=Decimal("-1234567890.12"),
            t="snow\u2603\U0001f600",
            bin=b"\x00\xff",
            d=datetime.date(1, 1, 1),
            tz=datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
            ntz=NOON,
            l=[1, None, 3],
            m=[("k", "v"), ("j", None)],
        )
        source.insert(id=2)
        source.insert(
            id=3, d=datetime.date(9999, 12, 31), tz=NOON.replace(tzinfo=datetime.UTC), l=[], m=[]
        )
    return source


def copy_of(
    schema: TableSchema, files: Sequence[Path], position: Lsn, overflow: bool = False
) -> TableCopy:
    """For a lake, which reads it with a session of its own."""
    from pyspark.sql import SparkSession

    return TableCopy(schema, tuple(files), position, overflow, SparkSession.active())


def reading_session(
    spark: SparkSession, warehouse: Path, options: Mapping[str, str] | None = None
) -> SparkSession:
    """A session that sees the warehouse as its catalog."""
    return lake_session(spark, catalog_conf(str(warehouse), options or {}))


def stored_rows(session: SparkSession, schema: TableSchema) -> list[Row]:
    """The table's rows in the reference's form, without what only the lake has."""
    return rows_of(session.table(table_identifier(schema.name)), schema)


def rows_of(table: DataFrame, schema: TableSchema) -> list[Row]:
    """So too, of whatever shows the table."""
    names = [*schema.column_names, *({EXACT} & set(table.columns))]
    rows = table.select(*map(quoted, names)).toArrow().to_pylist(maps_as_pydicts=None)
    return [_as_reference(row) for row in rows]


def _as_reference(row: Row) -> Row:
    row = {
        # Arrow gives a zone of its own kind.
        name: v.astimezone(datetime.UTC) if isinstance(v, datetime.datetime) and v.tzinfo else v
        for name, v in row.items()
    }
    texts = dict(row.pop(EXACT, None) or [])
    unknown = set(texts) - set(row)
    assert not unknown, f"exact texts of columns that do not exist: {unknown}"
    return {n: Inexact(v, texts[n]) if n in texts else v for n, v in row.items()}


def iceberg_lake(
    spark: SparkSession, warehouse: Path, owner: Owner, options: Mapping[str, str] | None = None
) -> LakeDestination:
    return LakeDestination(spark, IcebergFormat(str(warehouse), options), owner)
