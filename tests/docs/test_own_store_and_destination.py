"""The tutorial's files, taken from its page, do what the page says."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from psycopg.postgres import types as postgres_types

from tests.docs.blocks import TUTORIAL, titled_blocks, write_files
from tests.stores.settings import settings as store_settings
from walflow.config import Settings, TypeSettings
from walflow.destinations import open_destination
from walflow.destinations.own import OwnDestination
from walflow.destinations.rowwise import RowwiseDestination
from walflow.model import Column, PgType, TableSchema
from walflow.source.codec.cells import Cells, pad
from walflow.source.codec.values import from_text, spark_type
from walflow.stores import open_store
from walflow.stores.cached import CachedStore
from walflow.testing.destinations import DestinationContract, ReadRows, Reopen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODULES = ("logging_store", "service", "tables_in_memory", "tables_in_sqlite", "webhook")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The reader's folder, which Python imports from."""
    write_files(TUTORIAL, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for module in MODULES:
        sys.modules.pop(module, None)


@pytest.mark.spark
class TestTablesInMemory(DestinationContract):
    persistent = False

    @pytest.fixture
    def destination(self, folder: Path) -> RowwiseDestination:
        found = importlib.import_module("tables_in_memory").TablesInMemory()
        assert isinstance(found, RowwiseDestination)
        return found

    @pytest.fixture
    def read_rows(self, destination: Any) -> ReadRows:
        return lambda table: destination.tables[table.name]


@pytest.mark.spark
class TestTablesInSqlite(DestinationContract):
    @pytest.fixture
    def reopen(self, folder: Path) -> Iterator[Reopen]:
        with contextlib.ExitStack() as opened:

            def another() -> Any:
                found = importlib.import_module("tables_in_sqlite").TablesInSqlite("tables.db")
                opened.callback(found.shutdown)
                return found

            yield another

    @pytest.fixture
    def destination(self, reopen: Reopen) -> Any:
        return reopen()

    @pytest.fixture
    def read_rows(self, folder: Path) -> ReadRows:
        rows_of = importlib.import_module("tables_in_sqlite").rows_of
        return lambda table: rows_of("tables.db", table)


def test_the_first_destination_is_short() -> None:
    code = titled_blocks(TUTORIAL)["tables_in_memory.py"]
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 36


def rows_under(heading: str) -> list[list[str]]:
    """Of the page's table with this heading."""
    page = TUTORIAL.read_text(encoding="utf-8")
    table = page.partition(f"\n| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


def test_the_attributes_are_those_of_tables_and_columns() -> None:
    named = {row[0].strip("`").partition("(")[0] for row in rows_under("Attribute | What it is")}
    for name in named:
        kind, _, attribute = name.partition(".")
        assert hasattr({"table": TableSchema, "column": Column}[kind], attribute), name
    columns = {f"column.{field.name}" for field in dataclasses.fields(Column)}
    assert columns <= named


SAMPLES = {
    "bool": "t",
    "int4": "1",
    "int8": "1",
    "float4": "0.5",
    "float8": "0.5",
    "numeric": "1.5",
    "text": "a",
    "bytea": "\\x00",
    "date": "2026-11-15",
    "int4[]": "{1}",
    "timestamptz": "2026-11-15 12:00:00+00",
    "timestamp": "2026-11-15 12:00:00",
}
"""Of each Spark type one Postgres type, and a value."""


def test_the_types_are_all_that_there_are() -> None:
    rows = rows_under("`column.spark_type` | Values | Python")
    told = {row[0].strip("`"): row[2].strip("`") for row in rows}
    options = TypeSettings()
    found = {}
    for name, text in SAMPLES.items():
        info = postgres_types[name.removesuffix("[]")]
        pg = PgType(name=info.name, oid=info.oid, base=info.oid)
        if name.endswith("[]"):
            pg = PgType(name=name, oid=info.array_oid, base=info.array_oid, element=pg)
        spark, data = spark_type(pg, options), text.encode()
        cell = Cells(pad(data), np.zeros(1, np.int64), np.array([len(data)], np.int64))
        (value,) = from_text(Column("c", pg, spark), cell).values.to_pylist()
        kind = type(value)
        found[generic(spark)] = f"{kind.__module__}.{kind.__name__}".removeprefix("builtins.")
    assert told == found
    every = {
        generic(spark_type(PgType(info.name, info.oid, info.oid), options))
        for info in postgres_types
    }
    assert every <= set(told)


def generic(spark: str) -> str:
    head, bracket, _ = spark.replace("<", "(").partition("(")
    return {"decimal": "decimal(p,s)", "array": "array<t>"}.get(head, head) if bracket else head


def test_the_methods_are_those_that_a_cached_store_leaves_open() -> None:
    named = {row[0].strip("`").partition("(")[0] for row in rows_under("Method | What it does")}
    assert named == CachedStore.__abstractmethods__


@pytest.mark.spark
def test_contracts_find_what_is_wrong(folder: Path, spark: SparkSession) -> None:
    """Without the line that the page speaks of, several tests fail, and they say what differs."""
    file = folder / "tables_in_memory.py"
    file.write_text(file.read_text().replace("continue  #", "pass  #"))
    broken = importlib.import_module("tables_in_memory").TablesInMemory()
    contract = TestTablesInMemory()

    def check(source: Any) -> None:
        from walflow.testing.destinations import assert_equal

        assert_equal(broken.tables[source.schema.name], source)

    for test in (
        contract.test_tables_without_a_key,
        contract.test_a_batch_whose_answer_got_lost,
        contract.test_a_batch_that_comes_again_with_more,
    ):
        with pytest.raises((AssertionError, StopIteration)):
            test(broken, spark, check, folder)
    contract.test_changes_are_applied_in_their_order(broken, spark, check, folder)


def test_the_page_s_tests_run(folder: Path) -> None:
    # What needs a Spark session of its own is run above.
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"),
            *("-k", "TestLoggingStore or test_it_is_a_destination"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "passed" in ran.stdout


@pytest.mark.spark
def test_a_pipeline_with_both(
    folder: Path,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert type(spark).getActiveSession() is not None
    caplog.set_level("INFO", logger="shop")
    runpy.run_path(str(folder / "run.py"), run_name="__main__")
    page = TUTORIAL.read_text(encoding="utf-8")
    told = page.partition("```text\n")[2].partition("```")[0]
    printed = capsys.readouterr().out.splitlines()
    # Among the lines that walflow logs.
    assert [line for line in printed if line in told.splitlines()] == told.splitlines()
    way = [record.message for record in caplog.records if record.name == "shop"]
    assert way[0] == "public.orders is Init"
    assert "public.orders is SyncDone" in way
    # The page says that the service is out of order now and then.
    assert next(importlib.import_module("service").requests) > 3


def test_both_by_name(folder: Path) -> None:
    config = yaml.safe_load(titled_blocks(TUTORIAL)["pipeline.yaml"])
    settings = Settings.model_validate(config)
    anything: Any = object()
    opened = open_destination(settings, "", spark=anything)
    assert isinstance(opened.destination, OwnDestination)
    assert type(opened.destination.given).__name__ == "Webhook"
    assert opened.destination.given.url == "https://example.com/in"
    opened.close()
    store = open_store(store_settings(config["store"]["uri"]))
    assert type(store).__name__ == "LoggingStore"
    store.close()
