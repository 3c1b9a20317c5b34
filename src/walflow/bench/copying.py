"""Copy: a table's existing rows into an Iceberg table, against psql's COPY to nowhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from walflow.bench.measure import Comparison, Timing, compare, measured, measured_with_jvm
from walflow.changelog import ChangeLog, LogIdentity
from walflow.config import CopySettings, LogSettings, SparkSettings, TypeSettings
from walflow.destinations.base import TableCopy
from walflow.destinations.iceberg import EXTENSIONS, IcebergFormat
from walflow.destinations.lake import LakeDestination, Owner
from walflow.observe.metrics import Metrics
from walflow.pipeline.table_sync.copy_connections import Connections
from walflow.pipeline.table_sync.table_copy import CopyReader
from walflow.source.catalog.published_tables import published_tables
from walflow.source.connection import connect
from walflow.source.copy.snapshot import OpenSnapshot, keep_snapshot
from walflow.source.stream.replication_connection import Replication
from walflow.spark.jars import ICEBERG
from walflow.spark.session import make_session, stop_session
from walflow.testing.postgres import EmbeddedPostgres

__all__ = ["bench_copy"]

_TABLE = """
    CREATE TABLE bench (
        id bigint PRIMARY KEY, customer int, product bigint, price float8, amount numeric(12,2),
        paid boolean, note text, address text, at timestamptz, extra jsonb)
"""
_ROWS = """
    INSERT INTO bench SELECT
        i, (i % 100003)::int, i * 31, i * 1.5, (i % 1000000) / 100.0, i % 3 = 0,
        'note number ' || i, repeat(md5(i::text), 2),
        timestamptz '2024-01-01' + i * interval '1 second', jsonb_build_object('n', i, 'k', 'v')
    FROM generate_series(1, {rows}) i
"""


def bench_copy(rows: int, repeats: int, *, debug: bool = False) -> Iterator[Comparison]:
    """Compare the copy of one table; the JVM is warm and the server's cache holds the table."""
    with ExitStack() as stack:
        server = stack.enter_context(
            EmbeddedPostgres(settings={"shared_buffers": "2GB", "max_wal_size": "8GB"})
        )
        with server.connect() as connection:
            connection.execute(_TABLE)
            connection.execute(_ROWS.format(rows=rows))
            connection.execute("VACUUM (ANALYZE) bench")
            connection.execute("CREATE PUBLICATION walflow FOR TABLE bench")
        folder = Path(tempfile.mkdtemp(prefix="walflow-bench-"))
        stack.callback(shutil.rmtree, folder)
        copy = _copier(server, folder, stack, debug)
        copy()  # warms up the JVM, its Python workers and the server's cache
        yield compare(
            "copy-to-iceberg",
            rows,
            lambda: measured_with_jvm(copy),
            "psql COPY",
            lambda: _reference(server),
            repeats,
        )


def _copier(
    server: EmbeddedPostgres, folder: Path, stack: ExitStack, debug: bool
) -> Callable[[], None]:
    """A function that copies the table, each time into a new lake."""
    spark = make_session(
        SparkSettings(), [ICEBERG], {"spark.sql.extensions": EXTENSIONS}, debug=debug
    )
    stack.callback(stop_session, spark)
    turn = iter(range(1_000_000))
    defaults = LogSettings()

    def copy() -> None:
        name = f"bench_{next(turn)}"
        metrics = Metrics().pipeline("bench")
        owner = Owner("bench", "bench")
        destination = LakeDestination(spark, IcebergFormat(str(folder / name / "lake")), owner)
        with (
            Replication(server.uri, application_name=name) as replication,
            connect(server.uri, application_name=name) as connection,
        ):
            created = replication.create_slot(name, temporary=True)
            published = published_tables(connection, "walflow", TypeSettings())
            log = ChangeLog.open(
                folder / name / "log",
                LogIdentity("bench", "bench", name),
                start=created.consistent_point,
                max_bytes=defaults.max_bytes,
                file_bytes=defaults.file_bytes,
            )
            reader = CopyReader(
                server.uri,
                name,
                spark,
                log,
                Connections(4),
                metrics,
                CopySettings().range_bytes,
            )
            with keep_snapshot(server.uri, created.snapshot) as keeper:
                snapshot = OpenSnapshot(keeper, created.consistent_point)
                for table in published:
                    copied = reader.read(
                        table, snapshot, progress=lambda _: None, stop=threading.Event()
                    )
                    files = log.copy(table.schema.oid).paths(copied)
                    destination.copy(
                        TableCopy(copied.schema, files, copied.position, copied.overflow, spark)
                    )
            log.close()
        destination.shutdown()

    return copy


def _reference(server: EmbeddedPostgres) -> Timing:
    command = [str(server.psql), server.uri, "-qc", "COPY bench TO STDOUT"]
    with Path(os.devnull).open("wb") as nowhere:
        return measured(lambda: subprocess.run(command, check=True, stdout=nowhere))
