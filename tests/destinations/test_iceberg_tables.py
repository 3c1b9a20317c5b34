"""Iceberg tables: names, positions, and whose they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog

from tests.destinations.conftest import OWNER
from tests.destinations.reference import (
    ALL_TYPES,
    Source,
    assert_same,
    copy_of,
    iceberg_lake,
    make_schema,
    reading_session,
    stored_rows,
)
from walflow.destinations.iceberg import IcebergFormat, table_identifier
from walflow.destinations.lake import LakeDestination, Owner
from walflow.destinations.lake.sessions import lake_session
from walflow.errors import DestinationForeign
from walflow.model import Lsn, TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


WEIRD = {"id": "int", "Id": "string", "a.b": "string", "q`\"'\\": "string", "ü é": "string"}


@pytest.mark.parametrize(
    ("schema_name", "name", "way"),
    [
        ("a/b", "t", "bridge"),
        ("public", "x y.z'`\"%7e~", "sql"),
        (".", "..", "bridge"),
        ("Σχήμα", "_t:*?{a}", "bridge"),
        ("Σχήμα.x", "_t:*?{a}", "sql"),
        ("s", "files", "bridge"),
    ],
    indirect=["way"],
)
@pytest.mark.usefixtures("way")
def test_weird_names(
    spark: SparkSession, tmp_path: Path, warehouse: Path, schema_name: str, name: str
) -> None:
    schema = make_schema(WEIRD, ["id", "Id"], name, schema_name)
    source = Source(schema, tmp_path)
    with source.transaction():
        source.insert(id=1, Id="a", **{"a.b": "dot", "q`\"'\\": "quote", "ü é": "x"})
    destination = iceberg_lake(spark, warehouse, OWNER)
    source.events(spark)
    destination.copy(copy_of(schema, [source.copy_file()], source.position, overflow=False))
    with source.transaction():
        source.update(source.rows[0], unsent=["a.b", "q`\"'\\"], **{"ü é": None})
        source.insert(id=1, Id="b", **{"a.b": "dot"})
        source.update(source.rows[0], unsent=["a.b", "q`\"'\\"], Id="c")
    destination.apply(source.events(spark))
    assert_same(stored_rows(reading_session(spark, warehouse), schema), source.rows)
    assert iceberg_lake(spark, warehouse, OWNER).applied(schema) == source.position
    destination.drop(schema)
    assert destination.applied(schema) is None
    destination.shutdown()


def test_names_that_differ_stay_apart() -> None:
    names = ["a", "A", "a/b", "a~2Fb", "a.b", "a b", "_a", "~5Fa", ".a", "ä"]
    identifiers = {table_identifier(TableName("s", name)) for name in names}
    assert len(identifiers) == len(names)


def other_tables() -> list[tuple[str, Owner | None]]:
    return [
        ("was not created by walflow", None),
        ("belongs to the pipeline 'other'", Owner("other", OWNER.system)),
        ("another source", Owner(OWNER.pipeline, "1")),
    ]


def test_it_lists_its_own_tables(
    spark: SparkSession, destination: LakeDestination, warehouse: Path
) -> None:
    assert destination.own_tables() == []
    names = [("public", "t"), ("public", "x y.z'`\"%7e~"), ("Σχήμα.x", "_t"), (".", "..")]
    for schema_name, name in names:
        schema = make_schema({"id": "int"}, ["id"], name, schema_name)
        destination.copy(copy_of(schema, [], Lsn(1)))
    for owner in (Owner("other", OWNER.system), Owner(OWNER.pipeline, "1")):
        other = iceberg_lake(spark, warehouse, owner)
        schema = make_schema({"id": "int"}, ["id"], f"of_{owner.pipeline}")
        other.copy(copy_of(schema, [], Lsn(1)))
        other.shutdown()
    session = reading_session(spark, warehouse)
    # By hand, and damaged; by hand, with names that are never ours.
    for name in ("public.damaged", "public.`~`", "public.`~FF`", "`a b`.t"):
        session.sql(f"CREATE TABLE lake.{name} (id int) USING iceberg")
    for file in (warehouse / "public" / "damaged" / "metadata").glob("*.metadata.json"):
        file.write_text("{")
    with structlog.testing.capture_logs() as logs:
        found = destination.own_tables()
    assert sorted(found) == sorted(TableName(*name) for name in names)
    assert [log["table"] for log in logs] == ["lake.`public`.`damaged`"]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("said", "owner"), other_tables())
def test_tables_of_others_are_left_alone(
    spark: SparkSession, warehouse: Path, source: Source, said: str, owner: Owner | None
) -> None:
    session = reading_session(spark, warehouse)
    identifier = table_identifier(ALL_TYPES.name)
    if owner is None:
        session.sql(f"CREATE TABLE {identifier} (id bigint) USING iceberg")
        session.sql(f"INSERT INTO {identifier} VALUES (7)")
    else:
        theirs = iceberg_lake(spark, warehouse, owner)
        theirs.copy(copy_of(ALL_TYPES, [source.copy_file()], Lsn(1), overflow=False))
    before = session.table(identifier).toArrow()
    files = {file for file in warehouse.rglob("*") if file.is_file()}
    ours = iceberg_lake(spark, warehouse, OWNER)
    with pytest.raises(DestinationForeign, match=said) as refused:
        ours.copy(copy_of(ALL_TYPES, [source.copy_file()], Lsn(1), overflow=False))
    assert "DROP TABLE" in refused.value.hint
    if owner is not None and owner.system == OWNER.system:
        # The likely reason: the pipeline was given another name.
        assert f"--name {owner.pipeline}" in refused.value.hint
    for call in (ours.applied, ours.drop):
        with pytest.raises(DestinationForeign):
            call(ALL_TYPES)
    assert session.table(identifier).toArrow().equals(before)
    assert {file for file in warehouse.rglob("*") if file.is_file()} == files


@pytest.mark.usefixtures("way")
def test_position_survives_maintenance(
    spark: SparkSession, destination: LakeDestination, warehouse: Path, source: Source
) -> None:
    destination.copy(copy_of(ALL_TYPES, [source.copy_file()], Lsn(42), overflow=False))
    session = reading_session(spark, warehouse)
    session.sql(
        "CALL lake.system.rewrite_data_files(table => 'public.t',"
        " options => map('rewrite-all', 'true'))"
    )
    assert iceberg_lake(spark, warehouse, OWNER).applied(ALL_TYPES) == Lsn(42)


@pytest.mark.usefixtures("way")
def test_drops_a_table_with_its_files(
    spark: SparkSession, destination: LakeDestination, warehouse: Path, source: Source
) -> None:
    destination.drop(ALL_TYPES)
    destination.copy(copy_of(ALL_TYPES, [source.copy_file()], Lsn(42), overflow=False))
    destination.drop(ALL_TYPES)
    destination.drop(ALL_TYPES)
    assert destination.applied(ALL_TYPES) is None
    assert not [file for file in warehouse.rglob("*") if file.is_file()]
    destination.copy(copy_of(ALL_TYPES, [source.copy_file()], Lsn(43), overflow=False))
    assert destination.applied(ALL_TYPES) == Lsn(43)
    assert_same(stored_rows(reading_session(spark, warehouse), ALL_TYPES), source.rows)


def test_a_dropped_table_is_forgotten(
    spark: SparkSession, destination: LakeDestination, source: Source
) -> None:
    """All of its metadata would stay in memory."""
    destination.copy(copy_of(ALL_TYPES, [source.copy_file()], Lsn(42), overflow=False))
    assert isinstance(destination._format, IcebergFormat)
    bridge = destination._format._bridge(spark)
    assert bridge is not None
    destination.applied(ALL_TYPES)
    assert list(bridge._seen) == [ALL_TYPES.name]
    destination.drop(ALL_TYPES)
    assert not bridge._seen


def test_startup_warms_up_outside_the_warehouse(
    destination: LakeDestination, warehouse: Path
) -> None:
    destination.startup()
    assert not warehouse.exists()


def test_what_reads_a_table_for_weeks_leaves_nothing_in_the_jvm(
    spark: SparkSession, tmp_path: Path, warehouse: Path
) -> None:
    schema = make_schema({"id": "int", "a": "string"}, ["id"], "read", "s")
    source = Source(schema, tmp_path)
    with source.transaction():
        source.insert(id=1, a="x")
    destination = iceberg_lake(spark, warehouse, OWNER)
    source.events(spark)
    destination.copy(copy_of(schema, [source.copy_file()], source.position, overflow=False))
    session = lake_session(spark, IcebergFormat(str(warehouse)).session_conf)
    allocators = spark._jvm.org.apache.iceberg.arrow.ArrowAllocation.rootAllocator()  # type: ignore[union-attr]
    before = allocators.getChildAllocators().size()
    assert len(session.table(table_identifier(schema.name)).collect()) == 1
    assert allocators.getChildAllocators().size() == before
    destination.shutdown()
