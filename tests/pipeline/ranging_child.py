"""A process that reads a table's ranges as an executor does, and says what memory that took.

It prints the most it had before the first range and after the last one, in bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from tests.pipeline.capturing_child import peak_memory
from walflow.config import TypeSettings
from walflow.model import Lsn
from walflow.pipeline.table_sync.copy_task import CopySource, RangeCopyTask, result_of
from walflow.source.catalog.published_tables import published_tables
from walflow.source.connection import connect
from walflow.source.copy.ranges import page_ranges
from walflow.source.copy.snapshot import keep_snapshot
from walflow.source.stream.replication_connection import Replication


def main(uri: str, folder: str, publication: str, range_bytes: str) -> None:
    with Replication(uri, application_name="test") as replication:
        made = replication.create_slot("ranging_child", temporary=True)
        keeper = keep_snapshot(uri, made.snapshot)
    with keeper, connect(uri, application_name="test") as connection:
        (table,) = published_tables(connection, publication, TypeSettings())
        ranges = page_ranges(table, int(range_bytes))
        source = CopySource(
            uri, keeper.name, "test", table, folder, "plan", Lsn(1), lock_seconds=60
        )
        task = RangeCopyTask(source, (tuple(enumerate(ranges)),))
        before = peak_memory()
        rows = 0
        for results in task([pa.RecordBatch.from_pydict({"id": [0]})]):
            for result in results.to_pylist():
                _, file = result_of(result)
                rows += 0 if file is None else file.rows
    size = sum(file.stat().st_size for file in Path(folder).glob("*.parquet"))
    print(len(ranges), rows, size, before, peak_memory())


if __name__ == "__main__":
    main(*sys.argv[1:])
