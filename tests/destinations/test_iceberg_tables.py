"""Iceberg tables: names, adopted files, positions, and whose they are."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.destinations.reference import (
    Inexact,
    Source,
    assert_same,
    make_schema,
    reading_session,
    stored_rows,
)
from walflow.destinations.base import AdoptsFiles, Shutdown, Startup
from walflow.destinations.iceberg import IcebergDestination, Owner, table_identifier
from walflow.errors import DestinationError, DestinationForeign
from walflow.model import Lsn, TableName, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

OWNER = Owner("shop", "7300000000000000001", 1)
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


DESTINATION = "walflow.destinations.iceberg.destination"


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"


@pytest.fixture
def destination(spark: SparkSession, warehouse: Path) -> Iterator[IcebergDestination]:
    destination = IcebergDestination(spark, str(warehouse), OWNER)
    yield destination
    destination.shutdown()


@pytest.fixture
def source(tmp_path: Path) -> Source:
    source = Source(ALL_TYPES, tmp_path)
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


@pytest.fixture(params=["bridge", "sql"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of adopting files: by the JVM's API, and by SQL where there is no bridge to it."""
    way: str = request.param
    if way == "sql":
        monkeypatch.setattr(f"{DESTINATION}.append_files", lambda *_: False)
    return way


def test_its_abilities(destination: IcebergDestination) -> None:
    assert isinstance(destination, AdoptsFiles)
    assert isinstance(destination, Startup)
    assert isinstance(destination, Shutdown)


@pytest.mark.usefixtures("way")
def test_adopts_files_as_they_are(
    spark: SparkSession, destination: IcebergDestination, warehouse: Path, source: Source
) -> None:
    files = [source.copy_file()]
    inode = files[0].stat().st_ino
    destination.adopt_files(ALL_TYPES, files, Lsn(77), exact=False)
    assert not files[0].exists()
    assert [f.stat().st_ino for f in warehouse.rglob("*.parquet")] == [inode]
    assert destination.applied(ALL_TYPES) == Lsn(77)
    assert_same(stored_rows(reading_session(spark, warehouse), ALL_TYPES), source.rows)


@pytest.mark.usefixtures("way")
def test_adopts_files_with_and_without_exact_texts(
    spark: SparkSession, destination: IcebergDestination, warehouse: Path, source: Source
) -> None:
    plain = source.copy_file()
    rows = list(source.rows)
    source.rows = [{**rows[1], "id": 9, "tz": Inexact(None, "infinity")}]
    destination.adopt_files(ALL_TYPES, [plain, source.copy_file(exact=True)], Lsn(1), exact=True)
    assert_same(stored_rows(reading_session(spark, warehouse), ALL_TYPES), [*rows, *source.rows])


def test_adopts_no_files_for_an_empty_table(
    spark: SparkSession, destination: IcebergDestination, warehouse: Path
) -> None:
    destination.adopt_files(ALL_TYPES, [], Lsn(5), exact=False)
    assert destination.applied(ALL_TYPES) == Lsn(5)
    assert stored_rows(reading_session(spark, warehouse), ALL_TYPES) == []


def test_appends_where_files_cannot_be_linked(
    spark: SparkSession,
    destination: IcebergDestination,
    warehouse: Path,
    source: Source,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another file system")

    monkeypatch.setattr("os.link", refuse)
    source.rows[1]["tz"] = Inexact(None, "infinity")
    files = [source.copy_file(exact=True)]
    destination.adopt_files(ALL_TYPES, files, Lsn(5), exact=True)
    assert not files[0].exists()
    assert_same(stored_rows(reading_session(spark, warehouse), ALL_TYPES), source.rows)


@pytest.mark.parametrize("step", ["_link", "_add_files", "mark_applied"])
def test_a_crash_while_adopting_leaves_no_position_and_can_be_repeated(
    spark: SparkSession,
    destination: IcebergDestination,
    warehouse: Path,
    source: Source,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    class Crash(Exception):
        pass

    def crash(*_: object) -> None:
        raise Crash

    files = [source.copy_file(exact=True)]
    with monkeypatch.context() as patch:
        patch.setattr(f"{DESTINATION}.append_files", lambda *_: False)
        name = step if step == "_add_files" else f"IcebergDestination.{step}"
        patch.setattr(f"{DESTINATION}.{name}", crash)
        with pytest.raises((Crash, DestinationError)):
            destination.adopt_files(ALL_TYPES, files, Lsn(5), exact=True)
    after = IcebergDestination(spark, str(warehouse), OWNER)
    assert after.applied(ALL_TYPES) is None
    after.adopt_files(ALL_TYPES, files, Lsn(6), exact=True)
    assert after.applied(ALL_TYPES) == Lsn(6)
    assert_same(stored_rows(reading_session(spark, warehouse), ALL_TYPES), source.rows)


def test_copy_by_rows(
    spark: SparkSession, destination: IcebergDestination, warehouse: Path, source: Source
) -> None:
    session = reading_session(spark, warehouse)
    destination.truncate_table(ALL_TYPES)
    rows = spark.read.parquet(str(source.copy_file()))
    destination.write_table_rows(ALL_TYPES, rows.limit(0))
    assert stored_rows(session, ALL_TYPES) == []
    destination.write_table_rows(ALL_TYPES, rows)
    assert destination.applied(ALL_TYPES) is None
    destination.mark_applied(ALL_TYPES, Lsn(9))
    assert destination.applied(ALL_TYPES) == Lsn(9)
    assert_same(stored_rows(session, ALL_TYPES), source.rows)
    destination.truncate_table(ALL_TYPES)
    assert destination.applied(ALL_TYPES) is None
    assert stored_rows(session, ALL_TYPES) == []


WEIRD = {"id": "int", "Id": "string", "a.b": "string", "q`\"'\\": "string", "ü é": "string"}


@pytest.mark.parametrize(
    ("schema_name", "name"),
    [("a/b", "t"), ("public", "x y.z'`\"%7e~"), (".", ".."), ("Σχήμα", "_t:*?{a}"), ("s", "files")],
)
def test_weird_names(
    spark: SparkSession, tmp_path: Path, warehouse: Path, schema_name: str, name: str
) -> None:
    schema = make_schema(WEIRD, ["id", "Id"], name, schema_name)
    source = Source(schema, tmp_path)
    with source.transaction():
        source.insert(id=1, Id="a", **{"a.b": "dot", "q`\"'\\": "quote", "ü é": "x"})
    destination = IcebergDestination(spark, str(warehouse), OWNER)
    source.events(spark)
    destination.adopt_files(schema, [source.copy_file()], source.position, exact=False)
    with source.transaction():
        source.update(source.rows[0], unsent=["a.b", "q`\"'\\"], **{"ü é": None})
        source.insert(id=1, Id="b", **{"a.b": "dot"})
        source.update(source.rows[0], unsent=["a.b", "q`\"'\\"], Id="c")
    destination.write_events(source.events(spark))
    assert_same(stored_rows(reading_session(spark, warehouse), schema), source.rows)
    destination.shutdown()


def test_names_that_differ_stay_apart() -> None:
    names = ["a", "A", "a/b", "a~2Fb", "a.b", "a b", "_a", "~5Fa", ".a", "ä"]
    identifiers = {table_identifier(TableName("s", name)) for name in names}
    assert len(identifiers) == len(names)


def other_tables() -> list[tuple[str, Owner | None]]:
    return [
        ("was not made by walflow", None),
        ("belongs to the pipeline 'other'", Owner("other", OWNER.system)),
        ("another source", Owner(OWNER.pipeline, "1")),
    ]


@pytest.mark.parametrize(("said", "owner"), other_tables())
def test_tables_of_others_are_left_alone(
    spark: SparkSession, warehouse: Path, source: Source, said: str, owner: Owner | None
) -> None:
    session = reading_session(spark, warehouse)
    table: TableSchema = ALL_TYPES
    if owner is None:
        identifier = table_identifier(table.name)
        session.sql(f"CREATE TABLE {identifier} (id bigint) USING iceberg")
    else:
        IcebergDestination(spark, str(warehouse), owner).truncate_table(table)
    ours = IcebergDestination(spark, str(warehouse), OWNER)
    file = source.copy_file()
    with pytest.raises(DestinationForeign, match=said) as refused:
        ours.adopt_files(table, [file], Lsn(1), exact=False)
    assert "DROP TABLE" in refused.value.hint
    assert file.exists()
    with pytest.raises(DestinationForeign):
        ours.applied(table)
    assert session.catalog.tableExists(table_identifier(table.name))


def test_position_survives_maintenance(
    spark: SparkSession, destination: IcebergDestination, warehouse: Path, source: Source
) -> None:
    destination.adopt_files(ALL_TYPES, [source.copy_file()], Lsn(42), exact=False)
    session = reading_session(spark, warehouse)
    session.sql(
        "CALL lake.system.rewrite_data_files(table => 'public.t',"
        " options => map('rewrite-all', 'true'))"
    )
    assert IcebergDestination(spark, str(warehouse), OWNER).applied(ALL_TYPES) == Lsn(42)


def test_startup_warms_up_outside_the_warehouse(
    destination: IcebergDestination, warehouse: Path
) -> None:
    destination.startup()
    assert not warehouse.exists()
