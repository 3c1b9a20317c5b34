"""A program that works on executors outside its process, and prints what it saw as JSON.

A program, because a process has one Spark session, of one kind. Arguments: the Spark settings as
JSON, and a folder. It stands in ``__main__``, so its functions travel to executors as they are.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from walflow.config import SparkSettings
from walflow.observe import logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WAIT_SECONDS = 120


def wait_until(true: Callable[[], object]) -> bool:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def meet(folder: Path, batches: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Wait for the other task: two run at once or neither ends. Says where it ran."""
    from walflow.model import Lsn

    for batch in batches:
        (folder / f"met-{batch['id'][0]}").touch()
        assert wait_until(lambda: len(list(folder.glob("met-*"))) == 2), "the other did not come"
        yield pa.record_batch(
            {"place": [str(Path.cwd())], "lsn": [str(Lsn(int(batch["id"][0].as_py())))]}
        )


def wait_long(folder: Path, name: str, batches: Iterable[Any]) -> Iterator[Any]:
    """Say who runs, and run until told to end."""
    for batch in batches:
        (folder / f"{name}-{batch['id'][0]}").write_text(str(os.getpid()))
        if not wait_until((folder / "end").exists):
            raise TimeoutError("nobody told it to end")
        yield batch


def run_walflow(spark: SparkSession, folder: Path) -> list[dict[str, str]]:
    rows = spark.range(2, numPartitions=2).mapInArrow(
        lambda batches: meet(folder, batches), "place string, lsn string"
    )
    return [row.asDict() for row in rows.collect()]


def cancel_one_of_two(spark: SparkSession, folder: Path) -> dict[str, Any]:
    from walflow.spark.jobs import cancel_jobs, tagged

    ends: dict[str, str] = {}

    def job(name: str) -> None:
        try:
            with tagged(spark, f"test-{name}"):
                frame = spark.range(1, numPartitions=1)
                frame.mapInArrow(
                    lambda batches: wait_long(folder, name, batches), "id long"
                ).collect()
            ends[name] = "finished"
        except Exception as error:
            ends[name] = f"failed: {error}"

    jobs = {name: threading.Thread(target=job, args=(name,)) for name in ("one", "other")}
    for thread in jobs.values():
        thread.start()
    pids = {}
    for name in jobs:
        told = folder / f"{name}-0"
        assert wait_until(lambda: told.exists() and told.read_text()), name  # noqa: B023
        pids[name] = int(told.read_text())
    cancel_jobs(spark, "test-one")
    jobs["one"].join(_WAIT_SECONDS)
    found = {
        "worker ended": wait_until(lambda: not Path(f"/proc/{pids['one']}").exists()),
        "still running": jobs["other"].is_alive(),
    }
    (folder / "end").touch()
    jobs["other"].join(_WAIT_SECONDS)
    return found | ends


def keep_tables(spark: SparkSession, folder: Path) -> str:
    """Copy, append and merge, with a key and without, by the reference that destinations have."""
    from tests.destinations.reference import Source, assert_same, copy_of, make_schema, stored_rows
    from walflow.destinations.iceberg import IcebergFormat
    from walflow.destinations.lake import LakeDestination, Owner

    # The session itself sees this one as its catalog.
    warehouse = spark.conf.get("spark.sql.catalog.lake.warehouse")
    destination = LakeDestination(spark, IcebergFormat(str(warehouse)), Owner("shop", "1"))
    try:
        for name, key in (("keyed", ["id"]), ("keyless", [])):
            schema = make_schema({"id": "bigint", "a": "string", "b": "string"}, key, name)
            source = Source(schema, folder)
            with source.transaction():
                for number in range(1, 6):
                    source.insert(id=number, a=f"a{number}", b="b")
            source.events(spark)
            destination.copy(copy_of(schema, [source.copy_file()], source.position, False))
            assert_same(stored_rows(spark, schema), source.rows)
            with source.transaction():
                source.insert(id=6, a=None, b="b6")
            destination.apply(source.events(spark))
            assert_same(stored_rows(spark, schema), source.rows)
            with source.transaction():
                unsent = ["b"] if key else []
                source.update(source.find(id=1), unsent, a="changed")
                source.update(source.find(id=2), unsent, id=20)
                source.delete(source.find(id=3))
                source.insert(id=7, a="a7", b="b7")
            events = source.events(spark)
            for _ in range(2):
                destination.apply(events)
                assert_same(stored_rows(spark, schema), source.rows)
            assert destination.applied(schema) == source.position
    finally:
        destination.shutdown()
    return "equal"


def lack_executors(spark: SparkSession, folder: Path) -> dict[str, str]:
    """All cores are taken, so that nobody can take up the check."""
    from walflow.errors import SparkError
    from walflow.spark.executors import check_executors

    rows = spark.range(2, numPartitions=2)
    busy = threading.Thread(
        target=rows.mapInArrow(
            lambda batches: wait_long(folder, "busy", batches), "id long"
        ).collect
    )
    busy.start()
    try:
        # Else the check may come first.
        assert wait_until(lambda: len(list(folder.glob("busy-*"))) == 2), "not all are busy"
        check_executors(spark, 1)
        return {}
    except SparkError as error:
        return {"message": error.message, "hint": error.hint}
    finally:
        (folder / "end").touch()
        busy.join(_WAIT_SECONDS)


def main() -> None:
    from walflow.destinations.iceberg import EXTENSIONS, catalog_conf
    from walflow.spark.jars import ICEBERG
    from walflow.spark.session import (
        child_session,
        cores,
        end_child_session,
        make_session,
        stop_session,
    )

    # Only the result goes to stdout.
    logs.configure(level="warning")
    settings = SparkSettings.model_validate_json(sys.argv[1])
    folder = Path(sys.argv[2])
    spark = make_session(
        settings,
        [ICEBERG],
        {"spark.sql.extensions": EXTENSIONS, **catalog_conf(str(folder / "lake"), {})},
    )
    found: dict[str, Any] = {"case": spark.conf.get("spark.sql.caseSensitive")}
    child = child_session(spark)
    child.conf.set("spark.sql.shuffle.partitions", "3")
    found["child"] = [
        session.conf.get(name)
        for session in (child, spark)
        for name in ("spark.sql.caseSensitive", "spark.sql.shuffle.partitions")
    ]
    end_child_session(child)
    scenarios: list[Callable[[SparkSession, Path], object]]
    scenarios = [run_walflow, cancel_one_of_two, lack_executors]
    if settings.remote is not None:
        # Without a bridge to the JVM, other code does it; with one, other tests cover it.
        scenarios.append(keep_tables)
    for scenario in scenarios:
        own = folder / scenario.__name__
        own.mkdir()
        try:
            found[scenario.__name__] = scenario(spark, own)
        except Exception:
            found[scenario.__name__] = traceback.format_exc()
    found["cores"] = cores(spark)
    stop_session(spark)
    stop_session(spark)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
