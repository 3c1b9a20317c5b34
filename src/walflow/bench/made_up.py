"""Made-up tables and batches of changes, as files of the change log, without a source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from walflow.destinations.base import TableChanges
from walflow.model import ChangeStats, Column, Lsn, PgType, Span, TableName, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MadeUpTable", "made_up_schema", "made_up_values"]

_FILES = 16
_COLUMNS = {
    "id": "bigint",
    "customer": "int",
    "amount": "decimal(12,2)",
    "price": "double",
    "paid": "boolean",
    "note": "string",
    "at": "timestamp",
    "extra": "string",
}


def made_up_schema(name: str) -> TableSchema:
    return TableSchema(
        oid=1,
        name=TableName("bench", name),
        columns=tuple(
            Column(column, PgType(kind, 25, 25), kind, column != "id", position)
            for position, (column, kind) in enumerate(_COLUMNS.items(), 1)
        ),
        key=("id",),
    )


@dataclass(slots=True)
class MadeUpTable:
    """A table of so many rows with keys 0, 1, …; each batch begins where the last one ended."""

    name: str
    rows: int
    folder: Path
    seed: int = 7
    position: int = 1
    _random: np.random.Generator = field(init=False)
    _next_key: int = field(init=False)
    _files: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._next_key = self.rows
        self._files = iter(range(1_000_000))
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def schema(self) -> TableSchema:
        return made_up_schema(self.name)

    def copy_files(self) -> list[Path]:
        """The table as a copy leaves it: files in the order of the keys."""
        paths: list[Path] = []
        for part in np.array_split(np.arange(self.rows, dtype=np.int64), _FILES):
            path = self.folder / f"copy-{len(paths)}.parquet"
            pq.write_table(
                pa.table(made_up_values(part)), path, compression="zstd", use_dictionary=False
            )
            paths.append(path)
        return paths

    def batch(self, spark: SparkSession, changes: int, *, recent: bool) -> TableChanges:
        """80 % updates, 15 % inserts, 5 % deletes, each of another key: random ones, or some of
        the last ones."""
        inserts, deletes = changes * 15 // 100, changes * 5 // 100
        pool = min(self.rows, max(4 * changes, 1000)) if recent else self.rows
        touched = self._next_key - 1 - self._random.choice(pool, changes - inserts, replace=False)
        new = np.arange(self._next_key, self._next_key + inserts, dtype=np.int64)
        self._next_key += inserts
        kinds = np.repeat(
            ["delete", "update", "insert"], [deletes, changes - inserts - deletes, inserts]
        )
        keys = np.concatenate([touched.astype(np.int64), new])
        after, self.position = self.position, self.position + 1000
        table = pa.table(
            {
                "_change_type": pa.array(kinds.tolist()),
                "_lsn": np.full(changes, self.position - 8, dtype=np.int64),
                "_seq": np.arange(changes, dtype=np.int64),
                "_timestamp": pa.array(np.full(changes, 1_700_000_000_000_000), pa.int64()).cast(
                    pa.timestamp("us", "UTC")
                ),
                "_xid": np.full(changes, 700, dtype=np.int64),
                **made_up_values(keys, self.position),
            }
        )
        path = self.folder / f"batch-{next(self._files)}.parquet"
        pq.write_table(table, path, compression="lz4", use_dictionary=["_change_type"])
        stats = ChangeStats(
            rows=changes, inserts=inserts, updates=changes - inserts - deletes, deletes=deletes
        )
        span = Span(Lsn(after), Lsn(self.position))
        return TableChanges(self.schema, (str(path),), stats, spark, span)


def made_up_values(
    keys: npt.NDArray[np.int64], salt: int | npt.NDArray[np.int64] = 0
) -> dict[str, pa.Array]:
    """The columns of rows with these keys. ``salt``: of all rows, or of each; others give other
    values."""
    numbers = pa.array(keys)
    text = numbers.cast(pa.string())
    cents = (keys * 31 + salt) % 1_000_000
    return {
        "id": numbers,
        "customer": pa.array((keys % 100_003).astype(np.int32)),
        "amount": pa.array(cents).cast(pa.decimal128(19, 0)).cast(pa.decimal128(12, 2)),
        "price": pa.array((keys + salt) * 1.5),
        "paid": pa.array(keys % 3 == 0),
        "note": pa.compute.binary_join_element_wise(pa.scalar("note number "), text, ""),
        "at": pa.array(1_700_000_000_000_000 + keys * 1_000_000).cast(pa.timestamp("us", "UTC")),
        "extra": pa.compute.binary_join_element_wise(pa.scalar('{"n":'), text, pa.scalar("}"), ""),
    }
