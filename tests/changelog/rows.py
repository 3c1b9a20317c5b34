"""Tables and batches for the tests of the change log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from walflow.changelog import ChangeLog, LogIdentity, Segment
from walflow.model import ChangeStats, Column, Lsn, PgType, TableName, TableSchema

IDENTITY = LogIdentity("shop", "7301234567890123456", "walflow_shop")
START = Lsn(1000)
SECOND = 1_000_000

_BIGINT = PgType("bigint", 20, 20)
_TEXT = PgType("text", 25, 25)
OLD = pa.struct([("id", pa.int64())])
EXACT = pa.map_(pa.string(), pa.string())


def open_log(
    folder: Path,
    *,
    identity: LogIdentity = IDENTITY,
    start: Lsn = START,
    max_bytes: int = 1 << 30,
    file_bytes: int = 128 << 20,
    buffer_bytes: int = 64 << 20,
) -> ChangeLog:
    return ChangeLog.open(
        folder,
        identity,
        start=start,
        max_bytes=max_bytes,
        file_bytes=file_bytes,
        buffer_bytes=buffer_bytes,
    )


def table(oid: int, version: int = 0, extra: tuple[str, ...] = ()) -> TableSchema:
    columns: tuple[Column, ...] = (
        Column("id", _BIGINT, "bigint", False, 1),
        Column("name", _TEXT, "string", True, 2),
    )
    columns += tuple(Column(name, _TEXT, "string") for name in extra)
    return TableSchema(oid, TableName("public", f"t{oid}"), columns, ("id",), version=Lsn(version))


def inserts(
    schema: TableSchema, lsn: int, count: int, *, first: int = 0, text: str = "row"
) -> pa.RecordBatch:
    """One transaction's inserts, with ids and _seq from ``first`` on."""
    ids = np.arange(first, first + count)
    columns: dict[str, pa.Array[Any]] = {
        "_change_type": pa.array(["insert"] * count),
        "_lsn": pa.array(np.full(count, lsn)),
        "_seq": pa.array(ids),
        "_timestamp": pa.array(np.full(count, lsn * SECOND), pa.timestamp("us", "UTC")),
        "_xid": pa.array(np.full(count, 700)),
    }
    for column in schema.columns:
        columns[column.name] = pa.array(ids) if column.name == "id" else pa.array([text] * count)
    return pa.RecordBatch.from_pydict(columns)


def with_column(batch: pa.RecordBatch, name: str, values: pa.Array[Any]) -> pa.RecordBatch:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    return pa.RecordBatch.from_pydict({name: values, **columns})


def stats_of(batch: pa.RecordBatch) -> ChangeStats:
    return ChangeStats(rows=batch.num_rows, inserts=batch.num_rows)


def seal_rows(log: ChangeLog, upto: int, counts: dict[int, int]) -> Segment:
    """Seal a segment with one transaction that inserts so many rows into each table."""
    writer = log.writer()
    for oid, count in counts.items():
        batch = inserts(table(oid), upto - 10, count)
        writer.append(table(oid), batch, stats_of(batch))
    return writer.seal(Lsn(upto), upto * SECOND, 1)


def read(log: ChangeLog, segments: list[Segment]) -> dict[tuple[int, int], list[dict[str, object]]]:
    """All rows by (table, version), in the order of the files."""
    rows: dict[tuple[int, int], list[dict[str, object]]] = {}
    for segment in segments:
        for file in segment.files:
            content = pq.read_table(log.folder / file.path).to_pylist()
            assert len(content) == file.stats.rows
            rows.setdefault((file.table, int(file.version)), []).extend(content)
    return rows


def files_on_disk(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in (folder / "data").rglob("*") if p.is_file()}


def files_in_log(log: ChangeLog) -> set[str]:
    return {file.path for segment in log.segments(Lsn(0)) for file in segment.files}
