"""A table as Postgres would have it, row by row. It writes the change log of its own changes.

It is slow and simple, so that fast code can be compared with it: after the same changes a
destination must equal ``Source.rows``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from walflow.arrow_types import arrow_type
from walflow.destinations.base import TableChanges, TableCopy
from walflow.evolution import Evolution
from walflow.model import ChangeStats, Column, Lsn, PgType, Span, TableName, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Inexact", "Row", "Source", "assert_same", "make_schema", "same", "way_to"]

_EXACT = pa.map_(pa.string(), pa.string())

Row = dict[str, Any]

_files = itertools.count()


@dataclass(frozen=True, slots=True)
class Inexact:
    """A Postgres value that the column can hold only approximately."""

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


class Source:
    """A table and its log. Rows are dictionaries. The log is cut where ``events`` is called."""

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
        """Change the row. ``unsent`` columns, which must not change, are left out of the log."""
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
        overflow = {n: v.text for n, v in row.items() if isinstance(v, Inexact) and n not in unsent}
        if old is not None:
            overflow |= {f"_old.{n}": v.text for n, v in old.items() if isinstance(v, Inexact)}
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
                "_exact": list(overflow.items()) or None,
                **{name: held.get(name) for name in self.schema.column_names},
            }
        )
        self._seq += 1

    def events(self, spark: SparkSession, pieces: int = 1) -> TableChanges:
        """The changes since the last call, in this many files."""
        log, self._log = self._log, []
        span, self._cut = Span(self._cut, self.position), self.position
        bounds = [len(log) * n // pieces for n in range(pieces + 1)]
        files = [
            str(self._write(log[start:end]))
            for start, end in itertools.pairwise(bounds)
            if end > start
        ]
        return TableChanges(self.schema, tuple(files), _stats(log), spark, span)

    def _write(self, rows: Sequence[Row]) -> Path:
        identity = [(c.name, arrow_type(c.spark_type)) for c in self.schema.identity_columns]
        optional = {
            "_unchanged": pa.list_(pa.string()),
            "_old": pa.struct(identity),
            "_exact": _EXACT,
        }
        types = {
            "_change_type": pa.string(),
            "_lsn": pa.int64(),
            "_seq": pa.int64(),
            "_timestamp": pa.timestamp("us", "UTC"),
            "_xid": pa.int64(),
            **{n: t for n, t in optional.items() if any(row[n] is not None for row in rows)},
            **{column.name: arrow_type(column.spark_type) for column in self.schema.columns},
        }
        file = self._folder / f"changes-{next(_files)}.parquet"
        arrays = [pa.array([row[name] for row in rows], kind) for name, kind in types.items()]
        pq.write_table(pa.table(arrays, list(types)), file)
        return file

    def change_schema(self, after: TableSchema, missing: Mapping[str, Any]) -> Evolution:
        """Give the table another schema. ``missing``: the values of its rows in new columns.
        Earlier changes must be taken first (``events``)."""
        assert not self._log, "there are changes of the former schema"
        before = self.schema
        was = {column.attnum: column.name for column in before.columns}
        self.rows = [
            {
                column.name: row[was[column.attnum]]
                if column.attnum in was
                else missing.get(column.name)
                for column in after.columns
            }
            for row in self.rows
        ]
        self.schema = after
        return way_to(before, after, missing)

    def copy(self, spark: SparkSession) -> TableCopy:
        """All current rows, as a destination gets them. The log continues from here."""
        self.events(spark)
        overflow = any(isinstance(value, Inexact) for row in self.rows for value in row.values())
        files = (self.copy_file(overflow),) if self.rows else ()
        return TableCopy(self.schema, files, self.position, overflow, spark)

    def copy_file(self, overflow: bool = False) -> Path:
        """All current rows, as a file of the copy."""
        arrays = [
            pa.array([_near(row[c.name]) for row in self.rows], arrow_type(c.spark_type))
            for c in self.schema.columns
        ]
        names = list(self.schema.column_names)
        if overflow:
            texts = [
                [(n, v.text) for n, v in row.items() if isinstance(v, Inexact)] or None
                for row in self.rows
            ]
            arrays.append(pa.array(texts, _EXACT))
            names.append("_exact")
        file = self._folder / f"copy-{next(_files)}.parquet"
        pq.write_table(pa.table(arrays, names), file)
        return file


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
        overflow=any(row["_exact"] is not None for row in log),
        last_truncate=max(truncates, default=None),
    )


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


def way_to(before: TableSchema, after: TableSchema, missing: Mapping[str, Any]) -> Evolution:
    """The evolution from one schema to the other, by the columns' numbers."""
    was = {column.attnum: column for column in before.columns}
    now = {column.attnum: column for column in after.columns}
    stayed = [(was[number], now[number]) for number in was.keys() & now.keys()]
    return Evolution(
        before,
        after,
        added=tuple(column for column in after.columns if column.attnum not in was),
        dropped=tuple(column for column in before.columns if column.attnum not in now),
        renamed=tuple((old, new) for old, new in stayed if old.name != new.name),
        widened=tuple((old, new) for old, new in stayed if old.spark_type != new.spark_type),
        missing=missing,
    )
