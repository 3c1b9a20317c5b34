"""A pipeline over one large table that is already copied, for benchmarks of its changes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from walflow.bench.source_table import COLUMNS, HARD_COLUMNS, ROW
from walflow.config import Settings, SparkSettings, load_settings
from walflow.destinations.iceberg import EXTENSIONS
from walflow.pipeline.pipeline import Pipeline
from walflow.spark.jars import ICEBERG
from walflow.spark.session import make_session, stop_session
from walflow.testing.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SLOT", "CopiedTable", "copied_table"]

SLOT = "walflow_bench"


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """The table ``bench`` with keys 1 to ``rows``, and an Iceberg table that equals it."""

    server: EmbeddedPostgres
    settings: Settings
    spark: SparkSession
    rows: int

    def pipeline(self) -> Pipeline:
        """A pipeline that resumes where the last one stopped; the JVM is warm."""
        return Pipeline(self.settings, spark=self.spark)

    def change(self, changes: int, turn: int) -> None:
        """60 % inserts, 30 % updates of random rows, 10 % deletes, 1,000 a transaction."""
        first = self.rows + 1 + turn * changes * 6 // 10
        with self.server.connect() as connection:
            connection.execute(
                f"""
                DO $$ DECLARE first bigint; BEGIN
                PERFORM setseed(0.{turn + 1});
                FOR n IN 0..{changes // 1000 - 1} LOOP
                    first := {first} + n * 600;
                    INSERT INTO bench
                        SELECT {ROW.format(id="i")} FROM generate_series(first, first + 599) i;
                    UPDATE bench SET amount = amount + 1, note = note || '.' WHERE id IN (
                        SELECT (random() * {self.rows - 1})::int + 1 FROM generate_series(1, 300));
                    DELETE FROM bench WHERE id BETWEEN first + 500 AND first + 599;
                    COMMIT;
                END LOOP; END $$
                """
            )


@contextmanager
def copied_table(
    rows: int, *, hard: bool = False, debug: bool = False, **more: object
) -> Iterator[CopiedTable]:
    """``hard``: with columns for hard changes (see SingleRows). ``more``: settings of the pipeline,
    with ``__`` for the dot."""
    with ExitStack() as stack:
        server = stack.enter_context(
            EmbeddedPostgres(
                settings={
                    "shared_buffers": "2GB",
                    "max_wal_size": "8GB",
                    "checkpoint_timeout": "1h",
                }
            )
        )
        with server.connect() as connection:
            connection.execute(f"CREATE TABLE bench ({COLUMNS})")
            connection.execute(
                f"INSERT INTO bench SELECT {ROW.format(id='i')} FROM generate_series(1, {rows}) i"
            )
            if hard:
                connection.execute(HARD_COLUMNS)
            connection.execute("VACUUM (ANALYZE) bench")
            connection.execute("CREATE PUBLICATION walflow FOR TABLE bench")
        folder = Path(tempfile.mkdtemp(prefix="walflow-bench-"))
        stack.callback(shutil.rmtree, folder)
        settings = load_settings(
            None,
            {
                "name": "bench",
                "source.uri": server.uri,
                "source.slot": SLOT,
                "destination.uri": f"iceberg://{folder}/lake",
                "log.folder": str(folder / "log"),
                **{name.replace("__", "."): value for name, value in more.items()},
            },
            environment={},
        )
        conf = {"spark.sql.extensions": EXTENSIONS}
        spark = make_session(SparkSettings(), [ICEBERG], conf, debug=debug)
        stack.callback(stop_session, spark)
        copied = CopiedTable(server, settings, spark, rows)
        with copied.pipeline() as pipeline:
            pipeline.wait(until_caught_up=True)
        yield copied
