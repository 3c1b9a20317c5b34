"""A table as Postgres would have it, row by row, that writes the change log of what is done to it.

The slow and obvious way, to hold the fast ones against.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from walflow.destinations.base import Events, TableChanges
from walflow.destinations.iceberg import IcebergFormat, catalog_conf, table_identifier
from walflow.destinations.lake import EXACT, LakeDestination, Owner
from walflow.destinations.lake.sessions import lake_session
from walflow.model import ChangeStats, Column, Lsn, PgType, Span, TableName, TableSchema
from walflow.spark.net import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ARROW: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal(12,2)": pa.decimal128(12, 2),
    "array<int>": pa.list_(pa.int32()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
EXACT_ARROW = pa.map_(pa.string(), pa.string())

Row = dict[str, Any]

_files = itertools.count()


@dataclass(frozen=True, slots=True)
class Inexact:
    """A Postgres value that the column holds only nearly."""

    near: Any
    text: str


def make_schema(
    columns: Mapping[str, str], key: Sequence[str], name: str = "t", schema: str = "public"
) -> TableSchema:
    return TableSchema(
        oid=1,
        name=TableName(schema, name),
        columns=tuple(
            Column(column, PgType("any", 0, 0), spark_type, column not in key, number)
            for number, (column, spark_type) in enumerate(columns.items(), 1)
        ),
        key=tuple(key),
    )


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


class Source:
    """A table and its log. Rows are dictionaries; the log is cut where ``events`` is called."""

    def __init__(self, schema: TableSchema, folder: Path) -> None:
        self.schema = schema
        self.rows: list[Row] = []
        self._folder = folder
        self._lsn = 1000
        self._seq = 0
        self._cut = Lsn(1000)
        self._log: list[Row] = []

    @property
    def position(self) -> Lsn:
        """The end of the last transaction."""
        return Lsn(self._lsn)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._seq = 0
        yield
        self._lsn += 10

    def insert(self, **row: Any) -> None:
        full = {name: row.get(name) for name in self.schema.column_names}
        self.rows.append(full)
        self._note("insert", full)

    def update(self, old: Row, unsent: Sequence[str] = (), **changed: Any) -> Row:
        """Change the row; ``unsent`` columns, which must not change, are left out of the log."""
        assert not set(unsent) & set(changed)
        new = {**old, **changed}
        index = next(number for number, row in enumerate(self.rows) if row is old)
        self.rows[index] = new
        identity = self.schema.key or self.schema.column_names
        moved = not self.schema.key or any(old[name] != new[name] for name in identity)
        self._note("update", new, unsent, {n: old[n] for n in identity} if moved else None)
        return new

    def delete(self, row: Row) -> None:
        self.rows = [other for other in self.rows if other is not row]
        identity = self.schema.key or self.schema.column_names
        self._note("delete", {name: row[name] for name in identity})

    def truncate(self) -> None:
        self.rows = []
        self._note("truncate", {})

    def find(self, **key: Any) -> Row:
        return next(r for r in self.rows if all(r[name] == value for name, value in key.items()))

    def _note(
        self, kind: str, row: Row, unsent: Sequence[str] = (), old: Row | None = None
    ) -> None:
        exact = {n: v.text for n, v in row.items() if isinstance(v, Inexact) and n not in unsent}
        if old is not None:
            exact |= {f"_old.{n}": v.text for n, v in old.items() if isinstance(v, Inexact)}
        held = {name: _near(value) for name, value in row.items() if name not in unsent}
        self._log.append(
            {
                "_change_type": kind,
                "_lsn": self._lsn + 5,
                "_seq": self._seq,
                "_timestamp": 0,
                "_xid": self._lsn,
                "_unchanged": list(unsent) or None,
                "_old": None if old is None else {n: _near(v) for n, v in old.items()},
                "_exact": list(exact.items()) or None,
                **{name: held.get(name) for name in self.schema.column_names},
            }
        )
        self._seq += 1

    def events(self, spark: SparkSession, pieces: int = 1) -> Events:
        """What was done since the last call, in this many files."""
        log, self._log = self._log, []
        span, self._cut = Span(self._cut, self.position), self.position
        bounds = [len(log) * n // pieces for n in range(pieces + 1)]
        files = [
            str(self._write(log[start:end]))
            for start, end in itertools.pairwise(bounds)
            if end > start
        ]
        return Events(span, (TableChanges(self.schema, tuple(files), _stats(log), spark),))

    def _write(self, rows: Sequence[Row]) -> Path:
        identity = [(c.name, ARROW[c.spark_type]) for c in self.schema.identity_columns]
        optional = {
            "_unchanged": pa.list_(pa.string()),
            "_old": pa.struct(identity),
            "_exact": EXACT_ARROW,
        }
        types = {
            "_change_type": pa.string(),
            "_lsn": pa.int64(),
            "_seq": pa.int64(),
            "_timestamp": pa.timestamp("us", "UTC"),
            "_xid": pa.int64(),
            **{n: t for n, t in optional.items() if any(row[n] is not None for row in rows)},
            **{column.name: ARROW[column.spark_type] for column in self.schema.columns},
        }
        file = self._folder / f"changes-{next(_files)}.parquet"
        arrays = [pa.array([row[name] for row in rows], kind) for name, kind in types.items()]
        pq.write_table(pa.table(arrays, list(types)), file)
        return file

    def copy_file(self, exact: bool = False) -> Path:
        """All rows as they are now, as a file of the copy."""
        arrays = [
            pa.array([_near(row[c.name]) for row in self.rows], ARROW[c.spark_type])
            for c in self.schema.columns
        ]
        names = list(self.schema.column_names)
        if exact:
            texts = [
                [(n, v.text) for n, v in row.items() if isinstance(v, Inexact)] or None
                for row in self.rows
            ]
            arrays.append(pa.array(texts, EXACT_ARROW))
            names.append("_exact")
        file = self._folder / f"copy-{next(_files)}.parquet"
        pq.write_table(pa.table(arrays, names), file)
        return file


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


def _near(value: Any) -> Any:
    return value.near if isinstance(value, Inexact) else value


def _stats(log: Sequence[Row]) -> ChangeStats:
    kinds = [row["_change_type"] for row in log]
    truncates = [(r["_lsn"], r["_seq"]) for r in log if r["_change_type"] == "truncate"]
    return ChangeStats(
        rows=len(log),
        inserts=kinds.count("insert"),
        updates=kinds.count("update"),
        deletes=kinds.count("delete"),
        key_changes=sum(row["_old"] is not None for row in log),
        truncates=len(truncates),
        unchanged=any(row["_unchanged"] is not None for row in log),
        exact=any(row["_exact"] is not None for row in log),
        last_truncate=max(truncates, default=None),
    )


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


def same(left: Sequence[Row], right: Sequence[Row]) -> bool:
    """Whether both are the same multiset of rows."""
    return sorted(map(_sortable, left)) == sorted(map(_sortable, right))


def _sortable(row: Row) -> str:
    return repr({name: row[name] for name in sorted(row)})


def assert_same(stored: Sequence[Row], expected: Sequence[Row]) -> None:
    if not same(stored, expected):
        stored_set, expected_set = {_sortable(r) for r in stored}, {_sortable(r) for r in expected}
        raise AssertionError(
            f"{len(stored)} rows stored, {len(expected)} expected;\n"
            f"too many: {sorted(stored_set - expected_set)[:5]}\n"
            f"missing: {sorted(expected_set - stored_set)[:5]}"
        )


def iceberg_lake(
    spark: SparkSession, warehouse: Path, owner: Owner, options: Mapping[str, str] | None = None
) -> LakeDestination:
    return LakeDestination(spark, IcebergFormat(str(warehouse), options), owner)
