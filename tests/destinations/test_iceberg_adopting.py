"""Copies that become tables: in one step, whatever was there before."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.destinations.conftest import OWNER
from tests.destinations.reference import (
    ALL_TYPES,
    Inexact,
    Source,
    assert_same,
    copy_of,
    iceberg_lake,
    make_schema,
    reading_session,
    same,
    stored_rows,
)
from walflow.destinations.iceberg import table_identifier
from walflow.destinations.lake import LakeDestination
from walflow.errors import DestinationError
from walflow.model import Lsn, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# The same table in three forms, a column of which changes its type on the way.
FORMS = (
    make_schema({"id": "bigint", "a": "string", "n": "int"}, ["id"]),
    make_schema({"n": "string", "id": "bigint", "b": "timestamp"}, ["id"]),
    make_schema({"n": "decimal(12,2)"}, []),
)
IDENTIFIER = table_identifier(FORMS[0].name)
METADATA = ["_CHANGE_TYPE", "_LSN", "_TIMESTAMP"]


def source_of(schema: TableSchema, folder: Path, rows: int = 3) -> Source:
    source = Source(schema, folder)
    with source.transaction():
        for number in range(rows):
            source.insert(**{"id": number} if schema.key else {})
    return source


def data_files(warehouse: Path) -> set[Path]:
    return set(warehouse.rglob("*.parquet"))


@pytest.mark.usefixtures("way")
def test_makes_a_table_of_the_files(
    spark: SparkSession, destination: LakeDestination, warehouse: Path, source: Source
) -> None:
    file = source.copy_file()
    destination.copy(copy_of(ALL_TYPES, [file], Lsn(77), overflow=False))
    assert destination.applied(ALL_TYPES) == Lsn(77)
    assert iceberg_lake(spark, warehouse, OWNER).applied(ALL_TYPES) == Lsn(77)
    file.unlink()
    assert_same(stored_rows(reading_session(spark, warehouse), ALL_TYPES), source.rows)


def test_takes_files_as_they_are(
    destination: LakeDestination, warehouse: Path, source: Source
) -> None:
    file = source.copy_file()
    destination.copy(copy_of(ALL_TYPES, [file], Lsn(77), overflow=False))
    assert [f.stat().st_ino for f in data_files(warehouse)] == [file.stat().st_ino]


def test_what_a_file_tells_of_its_columns(
    spark: SparkSession, destination: LakeDestination, warehouse: Path, source: Source
) -> None:
    """The same as if Spark had written it (but of floats: see columnar.metrics)."""
    destination.copy(copy_of(ALL_TYPES, [source.copy_file()], Lsn(77), overflow=False))
    session = reading_session(spark, warehouse)
    columns = ", ".join(
        f"CAST(readable_metrics.{name}.{part} AS string)"
        for name in ("id", "ok", "s", "i", "t", "n", "bin", "d", "tz", "ntz")
        for part in ("lower_bound", "upper_bound", "null_value_count", "value_count")
    )
    told = f"SELECT record_count, {columns} FROM {IDENTIFIER}.files"
    ours = session.sql(told).collect()
    whole = session.table(IDENTIFIER).coalesce(1)
    whole.writeTo(IDENTIFIER).overwritePartitions()
    assert ours == session.sql(told).collect()
    size = session.sql(f"SELECT file_path, file_size_in_bytes FROM {IDENTIFIER}.files").collect()
    assert [row[1] for row in size] == [Path(row[0]).stat().st_size for row in size]


@pytest.mark.usefixtures("way")
def test_files_with_and_without_overflow_texts(
    spark: SparkSession, destination: LakeDestination, warehouse: Path, source: Source
) -> None:
    plain = source.copy_file()
    rows = list(source.rows)
    source.rows = [{**rows[1], "id": 9, "n": Inexact(None, "NaN")}]
    files = [plain, source.copy_file(overflow=True)]
    destination.copy(copy_of(ALL_TYPES, files, source.position, overflow=True))
    assert_same(stored_rows(reading_session(spark, warehouse), ALL_TYPES), [*rows, *source.rows])
    with source.transaction():
        source.update(source.rows[0], t="after", unsent=["n"])
    destination.apply(source.events(spark))
    assert_same(stored_rows(reading_session(spark, warehouse), ALL_TYPES), [*rows, *source.rows])


@pytest.mark.usefixtures("way")
def test_no_files_make_an_empty_table(
    spark: SparkSession, destination: LakeDestination, warehouse: Path, source: Source
) -> None:
    destination.copy(copy_of(ALL_TYPES, [], Lsn(5), overflow=False))
    assert destination.applied(ALL_TYPES) == Lsn(5)
    session = reading_session(spark, warehouse)
    assert stored_rows(session, ALL_TYPES) == []
    destination.copy(copy_of(ALL_TYPES, [source.copy_file()], Lsn(6), overflow=False))
    destination.copy(copy_of(ALL_TYPES, [], Lsn(7), overflow=False))
    assert stored_rows(session, ALL_TYPES) == []
    assert iceberg_lake(spark, warehouse, OWNER).applied(ALL_TYPES) == Lsn(7)


def test_rows_are_written_where_files_cannot_be_linked(
    spark: SparkSession,
    destination: LakeDestination,
    warehouse: Path,
    source: Source,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another file system")

    monkeypatch.setattr("os.link", refuse)
    source.rows[1]["tz"] = Inexact(None, "infinity")
    file = source.copy_file(overflow=True)
    destination.copy(copy_of(ALL_TYPES, [file], Lsn(5), overflow=True))
    assert file.stat().st_nlink == 1
    assert_same(stored_rows(reading_session(spark, warehouse), ALL_TYPES), source.rows)
    assert not list(warehouse.rglob("copy-*"))


@pytest.mark.usefixtures("way")
def test_adopting_again_changes_nothing_and_another_form_replaces(
    spark: SparkSession, destination: LakeDestination, warehouse: Path, tmp_path: Path
) -> None:
    session = reading_session(spark, warehouse)
    for position, form in enumerate([*FORMS, *FORMS], 10):
        source = source_of(form, tmp_path)
        files = [source.copy_file()]
        for _ in range(2):
            destination.copy(copy_of(form, files, Lsn(position), overflow=False))
            assert session.table(IDENTIFIER).columns == [*form.column_names, *METADATA]
            assert_same(stored_rows(session, form), source.rows)
            assert destination.applied(form) == Lsn(position)


@pytest.mark.usefixtures("way")
def test_changes_follow_a_table_that_was_replaced(
    spark: SparkSession, destination: LakeDestination, warehouse: Path, tmp_path: Path
) -> None:
    for form in FORMS:
        source = source_of(form, tmp_path)
        source.events(spark)
        destination.copy(copy_of(form, [source.copy_file()], source.position, overflow=False))
        with source.transaction():
            source.delete(source.rows[0])
            source.insert(**{"id": 7} if form.key else {})
        destination.apply(source.events(spark))
        assert_same(stored_rows(reading_session(spark, warehouse), form), source.rows)


def test_former_snapshots_stay_for_their_readers(
    spark: SparkSession, destination: LakeDestination, warehouse: Path, source: Source
) -> None:
    destination.copy(copy_of(ALL_TYPES, [source.copy_file()], Lsn(10), overflow=False))
    session = reading_session(spark, warehouse)
    former = session.sql(f"SELECT snapshot_id FROM {IDENTIFIER}.snapshots").collect()[0][0]
    before = session.table(IDENTIFIER).toArrow()
    for form in FORMS:
        destination.copy(copy_of(form, [], Lsn(11), overflow=False))
        other = source_of(form, warehouse)
        destination.copy(copy_of(form, [other.copy_file()], Lsn(12), overflow=False))
    after = session.sql(f"SELECT * FROM {IDENTIFIER} VERSION AS OF {former}").toArrow()
    assert after.equals(before)


@contextmanager
def reading(session: SparkSession, states: Sequence[Source]) -> Iterator[threading.Semaphore]:
    """Reads the table over and over meanwhile, each time one of the states; counts how often."""
    ended = threading.Event()
    reads = threading.Semaphore(0)
    wrong: list[object] = []
    known = [(list(state.schema.column_names), state.rows) for state in states]
    changing = len({state.schema for state in states}) > 1

    def read() -> None:
        while not ended.is_set():
            try:
                found = session.sql(f"SELECT * FROM {IDENTIFIER}").drop(*METADATA).toArrow()
                rows = found.to_pylist()
                if not any(found.column_names == names and same(rows, r) for names, r in known):
                    wrong.append(rows)
            except Exception as error:
                # So Spark says that the columns have changed since it has looked at the query.
                if not (changing and "INCOMPATIBLE_TABLE_CHANGE_AFTER_ANALYSIS" in str(error)):
                    wrong.append(error)
            reads.release()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield reads
    finally:
        ended.set()
        reader.join()
    assert not wrong, [str(one)[:500] for one in wrong[:3]]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("forms", [FORMS, (FORMS[0],) * 3], ids=["other form", "other rows"])
def test_readers_see_the_former_table_or_the_new_one(
    spark: SparkSession,
    destination: LakeDestination,
    warehouse: Path,
    tmp_path: Path,
    forms: Sequence[TableSchema],
) -> None:
    states = [source_of(form, tmp_path, rows) for rows, form in enumerate(forms, 3)]
    files = [[state.copy_file()] for state in states]
    destination.copy(copy_of(forms[0], files[0], Lsn(1), overflow=False))
    with reading(reading_session(spark, warehouse), states) as reads:
        for turn in range(1, 13):
            form = turn % len(forms)
            destination.copy(copy_of(forms[form], files[form], Lsn(turn), overflow=False))
            if turn % 4 == 0:
                assert reads.acquire(timeout=240)


@pytest.mark.parametrize("trouble", ["missing", "unreadable"])
@pytest.mark.parametrize("there", [True, False])
def test_what_fails_leaves_all_as_it_was(
    spark: SparkSession,
    destination: LakeDestination,
    warehouse: Path,
    tmp_path: Path,
    way: str,
    trouble: str,
    there: bool,
) -> None:
    session = reading_session(spark, warehouse)
    before, after = (source_of(form, tmp_path) for form in FORMS[:2])
    if there:
        destination.copy(copy_of(FORMS[0], [before.copy_file()], Lsn(1), overflow=False))
    data = data_files(warehouse)
    good, bad = after.copy_file(), tmp_path / "bad.parquet"
    if trouble == "unreadable":
        bad.write_bytes(b"PAR1" + b"not Parquet at all" + b"PAR1")
    with pytest.raises(DestinationError):
        destination.copy(copy_of(FORMS[1], [good, bad], Lsn(2), overflow=False))
    assert session.catalog.tableExists(IDENTIFIER) == there
    assert destination.applied(FORMS[0]) == (Lsn(1) if there else None)
    if there:
        assert_same(stored_rows(session, FORMS[0]), before.rows)
    if way == "bridge":
        # By SQL, a task may still write what nobody will see.
        assert data_files(warehouse) == data
    destination.copy(copy_of(FORMS[1], [good], Lsn(2), overflow=False))
    assert_same(stored_rows(session, FORMS[1]), after.rows)


def test_a_catalog_of_another_kind(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    spark._jvm.System.setProperty(  # type: ignore[union-attr]
        "derby.stream.error.file", str(tmp_path / "derby.log")
    )
    options: Mapping[str, str] = {
        "type": "jdbc",
        "uri": f"jdbc:derby:{tmp_path / 'catalog'};create=true",
    }
    destination = iceberg_lake(spark, warehouse, OWNER, options)
    # Derby does not know LIMIT, with which Iceberg looks for namespaces.
    destination._namespaces.add("public")
    session = reading_session(spark, warehouse, options)
    for position, form in enumerate([*FORMS, *FORMS], 10):
        source = source_of(form, tmp_path)
        destination.copy(copy_of(form, [source.copy_file()], Lsn(position), overflow=False))
        assert_same(stored_rows(session, form), source.rows)
        again = iceberg_lake(spark, warehouse, OWNER, options)
        assert again.applied(form) == Lsn(position)
    destination.drop(FORMS[0])
    assert destination.applied(FORMS[0]) is None
    assert not data_files(warehouse)
    destination.shutdown()
