"""Delta tables: names, positions, whose they are, their schemas, versions and maintenance."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog

from tests.destinations.conftest import OWNER
from tests.destinations.pairs import delta_lake, delta_rows
from tests.destinations.reference import ALL_TYPES, Source, assert_same, copy_of, make_schema
from walflow.destinations.delta import DeltaFormat, table_folder, table_identifier
from walflow.destinations.delta.tables import SESSION_CONF
from walflow.destinations.lake import LakeDestination, Owner
from walflow.destinations.lake.engines import SparkEngine
from walflow.destinations.lake.format import Compaction
from walflow.destinations.lake.owner import Stamp
from walflow.destinations.lake.sessions import lake_session
from walflow.errors import DestinationError, DestinationForeign
from walflow.evolution import Evolution, NotFollowed
from walflow.model import Column, Lsn, PgType, TableName, TableSchema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def destination(spark: SparkSession, warehouse: Path) -> Iterator[LakeDestination]:
    destination = delta_lake(spark, warehouse)
    yield destination
    destination.shutdown()


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    return lake_session(spark, SESSION_CONF)


def test_copies_of_all_types(
    spark: SparkSession,
    session: SparkSession,
    destination: LakeDestination,
    warehouse: Path,
    source: Source,
) -> None:
    assert destination.applied(ALL_TYPES) is None
    destination.copy(copy_of(ALL_TYPES, [source.copy_file()], Lsn(9)))
    assert delta_lake(spark, warehouse).applied(ALL_TYPES) == Lsn(9)
    assert_same(delta_rows(session, warehouse, ALL_TYPES), source.rows)
    # Another copy takes its place at once; who reads the former one still can.
    destination.copy(copy_of(ALL_TYPES, [source.copy_file()], Lsn(42), overflow=False))
    assert delta_lake(spark, warehouse).applied(ALL_TYPES) == Lsn(42)
    assert_same(delta_rows(session, warehouse, ALL_TYPES), source.rows)
    identifier = table_identifier(warehouse, ALL_TYPES.name)
    assert session.sql(f"SELECT * FROM {identifier} VERSION AS OF 0").count() == 3
    destination.drop(ALL_TYPES)
    destination.drop(ALL_TYPES)
    assert destination.applied(ALL_TYPES) is None
    assert not [file for file in warehouse.rglob("*") if file.is_file()]
    destination.copy(copy_of(ALL_TYPES, [source.copy_file()], Lsn(7), overflow=False))
    assert destination.applied(ALL_TYPES) == Lsn(7)
    assert_same(delta_rows(session, warehouse, ALL_TYPES), source.rows)


def test_weird_names(
    spark: SparkSession,
    session: SparkSession,
    warehouse: Path,
    tmp_path: Path,
    destination: LakeDestination,
) -> None:
    columns = {"id": "int", "a.b": "string", "q`\"'\\": "string", "ü é,;{}()\n\t=": "string"}
    schema = make_schema(columns, ["id", "a.b"], "x y.z'`\"%7e~", "Σχήμα.x")
    source = Source(schema, tmp_path)
    with source.transaction():
        source.insert(id=1, **{"a.b": "dot", "q`\"'\\": "quote"})
    source.events(spark)
    destination.copy(copy_of(schema, [source.copy_file()], source.position, overflow=False))
    with source.transaction():
        source.update(source.rows[0], unsent=["q`\"'\\"], **{"ü é,;{}()\n\t=": "x"})
        source.insert(id=1, **{"a.b": "b"})
    destination.apply(source.events(spark))
    assert_same(delta_rows(session, warehouse, schema), source.rows)
    assert destination.own_tables() == [schema.name]


def test_a_catalog_knows_the_tables_too(
    spark: SparkSession, session: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    schema = make_schema({"id": "bigint", "a": "string"}, ["id"], "t")
    schema = replace(schema, name=TableName("known", "t"))
    source = Source(schema, tmp_path)
    with source.transaction():
        source.insert(id=1, a="one")
    plain = delta_lake(spark, warehouse)
    plain.copy(copy_of(schema, [source.copy_file()], Lsn(1), overflow=False))
    plain.shutdown()
    destination = LakeDestination(
        spark, DeltaFormat(str(warehouse), catalog="spark_catalog"), OWNER
    )
    # One that was there before, and one that is made now.
    assert destination.applied(schema) == Lsn(1)
    assert session.table("spark_catalog.known.t").count() == 1
    other = replace(schema, name=TableName("known", "other"))
    destination.copy(copy_of(other, [source.copy_file()], Lsn(1), overflow=False))
    assert session.table("spark_catalog.known.other").count() == 1
    with pytest.raises(DestinationError, match="letters, digits and underscores only"):
        destination.copy(
            copy_of(replace(schema, name=TableName("known", "a b")), [], Lsn(1), overflow=False)
        )
    for one in (schema, other):
        destination.drop(one)
    assert session.sql("SHOW TABLES IN spark_catalog.known").count() == 0
    session.sql("DROP NAMESPACE spark_catalog.known")
    destination.shutdown()


def test_columns_that_differ_by_case_alone_are_refused(
    tmp_path: Path, destination: LakeDestination, warehouse: Path
) -> None:
    for columns in ({"id": "int", "Id": "string"}, {"id": "int", "_lsn": "bigint"}):
        schema = make_schema(columns, ["id"])
        source = Source(schema, tmp_path)
        with pytest.raises(DestinationError, match="differ by case alone") as refused:
            destination.copy(copy_of(schema, [source.copy_file()], Lsn(1), overflow=False))
        assert not refused.value.retry
        assert "Iceberg" in refused.value.hint
    assert not warehouse.exists()


def test_columns_with_names_of_deltas_own_are_refused(
    tmp_path: Path, destination: LakeDestination, warehouse: Path
) -> None:
    for name in ("_metadata", "filePath"):
        schema = make_schema({"id": "int", name: "string"}, ["id"])
        source = Source(schema, tmp_path)
        with pytest.raises(DestinationError, match=f"column {name}, a name that Delta") as refused:
            destination.copy(copy_of(schema, [source.copy_file()], Lsn(1), overflow=False))
        assert not refused.value.retry
        assert "Iceberg" in refused.value.hint
    assert not warehouse.exists()


def test_columns_that_get_a_name_of_deltas_own_are_refused(
    tmp_path: Path, destination: LakeDestination
) -> None:
    before = form(id="1 bigint", a="2 string")
    source = Source(before, tmp_path)
    destination.copy(copy_of(before, [source.copy_file()], Lsn(1), overflow=False))
    added = form(id="1 bigint", a="2 string", filePath="3 string")
    renamed = form(id="1 bigint", filePath="2 string")
    for evolution in (
        Evolution(before, added, added=(added.column("filePath"),)),
        Evolution(before, renamed, renamed=((before.column("a"), renamed.column("filePath")),)),
    ):
        with pytest.raises(DestinationError, match="column filePath, a name that Delta") as refused:
            destination.evolve(evolution)
        assert not refused.value.retry
    assert destination.applied(before) == Lsn(1)


def test_tables_of_others_are_left_alone(
    spark: SparkSession, session: SparkSession, warehouse: Path, source: Source
) -> None:
    ours = delta_lake(spark, warehouse)
    for name, owner in (("a", Owner("other", OWNER.system)), ("b", Owner(OWNER.pipeline, "1"))):
        theirs = delta_lake(spark, warehouse, owner)
        theirs.copy(copy_of(make_schema({"id": "int"}, ["id"], name), [], Lsn(1)))
        theirs.shutdown()
    by_hand = table_identifier(warehouse, ALL_TYPES.name)
    session.sql(f"CREATE TABLE {by_hand} (id bigint) USING delta")
    damaged = warehouse / "public" / "damaged" / "_delta_log"
    damaged.mkdir(parents=True)
    (damaged / f"{0:020}.json").write_text("{")
    ours.copy(copy_of(make_schema({"id": "int"}, ["id"], "ours"), [], Lsn(1)))
    with structlog.testing.capture_logs() as logs:
        assert ours.own_tables() == [TableName("public", "ours")]
    assert [log["table"] for log in logs] == [
        table_identifier(warehouse, TableName("public", "damaged"))
    ]
    files = {file for file in warehouse.rglob("*") if file.is_file()}
    for call in (ours.applied, ours.drop):
        with pytest.raises(DestinationForeign, match="was not created by walflow"):
            call(ALL_TYPES)
    with pytest.raises(DestinationForeign):
        ours.copy(copy_of(ALL_TYPES, [source.copy_file()], Lsn(1), overflow=False))
    assert {file for file in warehouse.rglob("*") if file.is_file()} == files
    ours.shutdown()


def form(**columns: str) -> TableSchema:
    """Columns by name: attribute number and type."""
    parts = {name: column.split(" ") for name, column in columns.items()}
    return TableSchema(
        oid=1,
        name=TableName("public", "t"),
        columns=tuple(
            Column(name, PgType("any", 0, 0), kind, name != "id", int(number))
            for name, (number, kind) in parts.items()
        ),
        key=("id",),
    )


def test_a_table_follows_its_sources_form(
    spark: SparkSession,
    session: SparkSession,
    tmp_path: Path,
    destination: LakeDestination,
    warehouse: Path,
) -> None:
    before = form(id="1 bigint", a="2 string", b="3 string", n="4 int", gone="5 int")
    source = Source(before, tmp_path)
    with source.transaction():
        source.insert(id=1, a="a1", b="b1", n=1, gone=1)
    source.events(spark)
    destination.copy(copy_of(before, [source.copy_file()], source.position, overflow=False))
    after = form(id="1 bigint", b="2 string", a="3 string", n="4 bigint", t="6 timestamp_ntz")
    was, now = before.column, after.column
    noon = datetime(2026, 11, 15, 12)
    evolution = Evolution(
        before,
        after,
        added=(now("t"),),
        dropped=(was("gone"),),
        renamed=((was("a"), now("b")), (was("b"), now("a"))),
        widened=((was("n"), now("n")),),
        missing={"t": noon},
    )
    for lake in (destination, delta_lake(spark, warehouse)):
        lake.evolve(evolution)
        assert lake.applied(after) == source.position
        rows = delta_rows(session, warehouse, after)
        assert rows == [{"id": 1, "b": "a1", "a": "b1", "n": 1, "t": noon}]
    text = replace(now("n"), spark_type="string")
    other = replace(after, columns=(*after.columns[:3], text, *after.columns[4:]))
    with pytest.raises(NotFollowed):
        destination.evolve(Evolution(after, other, widened=((now("n"), text),)))
    new = replace(after, name=TableName("other", "name"))
    assert destination.rename(after, new.name)
    assert destination.rename(after, new.name)
    assert (destination.applied(after), destination.applied(new)) == (None, source.position)
    assert delta_rows(session, warehouse, new) == rows


def test_versions_and_maintenance(
    session: SparkSession,
    tmp_path: Path,
    spark: SparkSession,
    destination: LakeDestination,
    warehouse: Path,
) -> None:
    schema = make_schema({"id": "int", "v": "string"}, ["id"])
    source, format = Source(schema, tmp_path), DeltaFormat(str(warehouse))
    source.events(spark)
    destination.copy(copy_of(schema, [source.copy_file()], source.position, overflow=False))
    positions = [source.position]
    for number in range(3):
        with source.transaction():
            source.insert(id=number, v="v")
        destination.apply(source.events(spark))
        positions.append(source.position)
    found = format.versions(session, schema.name)
    assert [version.position for version in found] == positions
    two = format.versions_at(session, {schema.name: Lsn(positions[2] + 1)})
    assert two == {schema.name: found[2].id}
    as_of = format.as_of(schema.name, two[schema.name])
    assert session.sql(f"SELECT id FROM {as_of}").count() == 2
    # What somebody else does says no position, and takes none away.
    stamp, engine = Stamp(OWNER, positions[-1]), SparkEngine(format)
    few, many = Compaction(2, 1 << 20), Compaction(50, 1 << 20)
    assert not engine.compact(session, schema.name, many, lambda: nullcontext(stamp))
    assert engine.compact(session, schema.name, few, lambda: nullcontext(stamp))
    assert len(session.table(format.identifier(schema.name)).inputFiles()) == 1
    assert delta_lake(spark, warehouse).applied(schema) == positions[-1]
    format.remove_orphans(session, schema.name, datetime.now(UTC))
    assert sorted(session.sql(f"SELECT id FROM {as_of}").collect()) == [(0,), (1,)]
    # Nor does a table that was made again what it was keep a position that it no longer has.
    identifier = table_identifier(warehouse, schema.name)
    session.sql(f"RESTORE TABLE {identifier} TO VERSION AS OF {two[schema.name]}")
    assert delta_lake(spark, warehouse).applied(schema) == positions[2]
    assert session.table(identifier).count() == 2
    # Nor are versions from before a copy that set it back those of positions after it.
    destination.copy(copy_of(schema, [source.copy_file()], positions[1], overflow=False))
    newest = format.versions(session, schema.name)[-1].id
    assert format.versions_at(session, {schema.name: positions[3]}) == {schema.name: newest}


def test_expiry_gives_up_what_only_former_versions_need(
    session: SparkSession, destination: LakeDestination, warehouse: Path, source: Source
) -> None:
    format, name = DeltaFormat(str(warehouse)), TableName("public", "older")
    for position in range(1, 5):
        destination.copy(copy_of(ALL_TYPES, [source.copy_file()], Lsn(position), overflow=False))
    folder = table_folder(warehouse, name)
    # Elsewhere, because Spark remembers what it has read.
    shutil.copytree(table_folder(warehouse, ALL_TYPES.name), folder)
    _as_if_earlier(folder, versions=3, hours=3)
    orphan = folder / "orphan.parquet"
    orphan.write_bytes(b"")
    os.utime(orphan, (0, 0))
    first, *others = format.versions(session, name)
    format.expire(session, name, [], datetime.now(UTC))
    assert orphan.exists()
    given_up = [first.id, others[0].id, others[1].id]
    format.expire(session, name, given_up, datetime.now(UTC))
    assert not orphan.exists()
    left = [version.id for version in format.versions(session, name)]
    assert (first.id in left, others[-1].id in left) == (False, True)
    for version in left:
        rows = session.sql(f"SELECT * FROM {format.as_of(name, version)}").toArrow()
        assert rows.num_rows == len(source.rows)
    with pytest.raises(Exception, match=r"(?i)file.*(not exist|not found|missing)"):
        session.sql(f"SELECT * FROM {format.as_of(name, first.id)}").toArrow()


def _as_if_earlier(folder: Path, versions: int, hours: int) -> None:
    """Make the table's first commits, and the files of that time, older than they are."""
    earlier = hours * 3_600_000
    for version in range(versions):
        commit = folder / "_delta_log" / f"{version:020}.json"
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            for what, told in action.items():
                for field in ("timestamp", "deletionTimestamp", "modificationTime"):
                    if what in ("commitInfo", "remove", "add") and field in told:
                        told[field] -= earlier
        commit.with_name(f".{commit.name}.crc").unlink()
        commit.write_text("".join(json.dumps(action) + "\n" for action in actions))
    for file in folder.rglob("*.parquet"):
        os.utime(file, (file.stat().st_atime, file.stat().st_mtime - earlier / 1000))


def test_startup_warms_up_outside_the_warehouse(
    destination: LakeDestination, warehouse: Path
) -> None:
    destination.startup()
    assert not warehouse.exists()
