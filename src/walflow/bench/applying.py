"""Apply: batches of changes into an Iceberg table, against a bare MERGE of the same changes.

The reference is the fastest known way to do what is needed at least: the changes have one row a key
already, and are cached; one MERGE writes them into a table of the same schema and files.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from walflow.bench.bare_merge import BareMerge
from walflow.bench.made_up import MadeUpTable
from walflow.bench.measure import Comparison, Timing, compare, measured_with_jvm
from walflow.config import SparkSettings
from walflow.destinations.base import TableChanges, TableCopy
from walflow.destinations.iceberg import EXTENSIONS, IcebergFormat
from walflow.destinations.lake import LakeDestination, Owner
from walflow.destinations.lake.sessions import lake_session
from walflow.model import Lsn
from walflow.spark.jars import ICEBERG
from walflow.spark.session import make_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["bench_apply"]

BATCHES_OF = (100, 10_000, 100_000)
_TABLES = 50
_WARM_UP_BATCHES = 3


def bench_apply(sizes: Sequence[int], repeats: int, *, debug: bool = False) -> Iterator[Comparison]:
    """Compare batches of several sizes on tables of several sizes, and many tables at once."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="walflow-bench-"))
        stack.callback(shutil.rmtree, folder)
        conf = {"spark.sql.extensions": EXTENSIONS}
        spark = make_session(SparkSettings(), [ICEBERG], conf, debug=debug)
        stack.callback(stop_session, spark)
        for rows in sizes:
            yield from _one_table(spark, folder / f"{rows}", rows, repeats)
        yield _many_tables(spark, folder / "many", repeats)


def _one_table(spark: SparkSession, folder: Path, rows: int, repeats: int) -> Iterator[Comparison]:
    destination = _destination(spark, folder / "lake")
    ours = MadeUpTable("ours", rows, folder / "ours")
    theirs = MadeUpTable("theirs", rows, folder / "theirs")
    bare = _bare_merge(spark, folder / "bare", theirs)
    _adopt(spark, destination, ours)
    for recent in (False, True):
        for changes in BATCHES_OF:
            if changes > rows:
                continue
            name = f"{rows / 1e6:g}M rows, {changes:,} {_keys(recent)}"

            def apply(changes: int = changes, recent: bool = recent) -> Timing:
                return _timed(destination, ours.batch(spark, changes, recent=recent))

            def reference(changes: int = changes, recent: bool = recent) -> Timing:
                return bare.timed(theirs.batch(bare.spark, changes, recent=recent))

            for _ in range(_WARM_UP_BATCHES):
                reference()
                apply()
            yield compare(name, changes, apply, "a bare MERGE", reference, repeats)
    destination.shutdown()


def _keys(recent: bool) -> str:
    return "recent keys" if recent else "random keys"


def _destination(spark: SparkSession, lake: Path) -> LakeDestination:
    format = IcebergFormat(str(lake))
    return LakeDestination(spark, format, Owner("bench", "bench"))


def _adopt(spark: SparkSession, destination: LakeDestination, table: MadeUpTable) -> None:
    files = tuple(table.copy_files())
    destination.copy(TableCopy(table.schema, files, Lsn(table.position), False, spark))


def _timed(destination: LakeDestination, changes: TableChanges) -> Timing:
    return measured_with_jvm(lambda: destination.apply(changes))


def _bare_merge(spark: SparkSession, lake: Path, table: MadeUpTable) -> BareMerge:
    destination = _destination(spark, lake)
    _adopt(spark, destination, table)
    destination.shutdown()
    format = IcebergFormat(str(lake))
    session = lake_session(spark, format.session_conf)
    return BareMerge(session, format.identifier(table.schema.name))


def _many_tables(spark: SparkSession, folder: Path, repeats: int) -> Comparison:
    """100,000 changes over 50 tables: at once, as the pipeline does, against one by one."""
    destination = _destination(spark, folder / "lake")
    tables = [
        MadeUpTable(f"t{number}", 20_000, folder / f"t{number}", seed=number)
        for number in range(_TABLES)
    ]
    for table in tables:
        _adopt(spark, destination, table)
    changes = BATCHES_OF[-1] // _TABLES

    def events() -> list[TableChanges]:
        return [table.batch(spark, changes, recent=False) for table in tables]

    def at_once() -> Timing:
        made = events()
        with ThreadPoolExecutor(16) as pool:
            return measured_with_jvm(lambda: list(pool.map(destination.apply, made)))

    def one_by_one() -> Timing:
        made = events()
        with ThreadPoolExecutor(1) as pool:
            return measured_with_jvm(lambda: list(pool.map(destination.apply, made)))

    at_once()
    name = f"merge, {_TABLES} tables, {BATCHES_OF[-1]:,} changes"
    result = compare(name, BATCHES_OF[-1], at_once, "one by one", one_by_one, repeats)
    destination.shutdown()
    return result
