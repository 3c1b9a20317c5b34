"""Tables in version 2 of Iceberg's format, for engines that read no deletion vectors: all that
walflow does to tables it does to these too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog

from tests.destinations.conftest import OWNER
from tests.destinations.modes import KEYED, KEYLESS, MODELS, Lake, begun
from tests.destinations.reference import Source, assert_same, copy_of, reading_session, stored_rows
from tests.destinations.test_lake_modes import copies_story, keyed_story
from walflow.config import MaintenanceSettings, load_settings
from walflow.config.lake import Mode
from walflow.destinations import open_destination
from walflow.destinations.iceberg import IcebergFormat, table_identifier
from walflow.destinations.lake import LakeDestination, TablePlan
from walflow.errors import ConfigError
from walflow.model import Column, Lsn, PgType, TableSchema
from walflow.testing.destinations import DestinationContract, ReadRows, Reopen
from walflow.testing.sources import make_schema, way_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = make_schema({"id": "bigint", "n": "int", "big": "string"}, ["id"])


@pytest.mark.long
@pytest.mark.spark
class TestContract(DestinationContract):
    keeps_exact = True

    @pytest.fixture
    def reopen(self, spark: SparkSession, tmp_path: Path) -> Iterator[Reopen]:
        with ExitStack() as opened:

            def another() -> LakeDestination:
                destination = LakeDestination(
                    spark, IcebergFormat(str(tmp_path / "lake"), version=2), OWNER
                )
                opened.callback(destination.shutdown)
                return destination

            yield another

    @pytest.fixture
    def destination(self, reopen: Reopen) -> object:
        return reopen()

    @pytest.fixture
    def read_rows(self, spark: SparkSession, tmp_path: Path) -> ReadRows:
        session = reading_session(spark, tmp_path / "lake")
        return lambda table: stored_rows(session, table)


class Table:
    """A source, and a table in a lake of this version."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        version: int = 2,
        *,
        plan: TablePlan | None = None,
    ) -> None:
        self.spark, self.folder, self.plan = spark, folder, plan or TablePlan()
        (folder / "log").mkdir()
        self.session = reading_session(spark, folder / "lake")
        self.source = Source(SCHEMA, folder / "log")
        self.destination = self.opened(version)
        with self.source.transaction():
            for number in range(10):
                self.source.insert(id=number, n=number, big=f"large {number}")

    def opened(self, version: int) -> LakeDestination:
        return LakeDestination(
            self.spark,
            IcebergFormat(str(self.folder / "lake"), version=version),
            OWNER,
            lambda _: self.plan,
            maintenance=MaintenanceSettings(
                small_files=3, keep_snapshots_seconds=0, keep_snapshots=1
            ),
        )

    def copy(self) -> None:
        self.source.events(self.spark)
        files = [self.source.copy_file()]
        position = self.source.position
        self.destination.copy(copy_of(self.source.schema, files, position, overflow=False))
        self.check()

    def change(self) -> None:
        """Keys that are exchanged, large values that are not sent, and rows that go and come."""
        source = self.source
        with source.transaction():
            first, second = source.find(id=1), source.find(id=2)
            moved = source.update(first, unsent=["big"], id=100)
            source.update(second, unsent=["big"], id=1)
            source.update(moved, unsent=["big"], id=2)
            source.update(source.find(id=3), unsent=["big"], n=(source.find(id=3)["n"] or 0) + 1)
            source.delete(source.find(id=4))
            source.insert(id=4, n=None, big="new")
        self.destination.apply(source.events(self.spark))
        self.check()

    def check(self) -> None:
        assert_same(stored_rows(self.session, self.source.schema), self.source.rows)
        assert self.destination.applied(self.source.schema) == self.source.position

    def asked(self, query: str) -> object:
        return self.session.sql(query.format(table_identifier(SCHEMA.name))).collect()[0][0]

    @property
    def stored_version(self) -> int:
        properties = self.session.sql(
            f"SHOW TBLPROPERTIES {table_identifier(SCHEMA.name)} ('format-version')"
        )
        return int(properties.collect()[0]["value"])


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Iterator[Table]:
    table = Table(spark, tmp_path)
    yield table
    table.destination.shutdown()


def with_column(schema: TableSchema) -> TableSchema:
    added = Column("later", PgType("integer", 23, 23), "int", attnum=9, missing="7")
    key, n, big = schema.columns
    return replace(schema, columns=(key, replace(n, spark_type="bigint"), big, added))


@pytest.mark.spark
def test_a_table_is_copied_changed_reshaped_compacted_and_copied_again(
    table: Table, way: str
) -> None:
    table.copy()
    assert table.stored_version == 2
    for _ in range(4):
        table.change()
    formats = "SELECT collect_set(file_format) FROM {}.files WHERE content <> 0"
    assert table.asked(formats) == ["PARQUET"]
    assert table.destination.maintenance_due(table.source.schema)
    files = "SELECT count(*) FROM {}.files"
    before = table.asked(files)
    table.destination.maintain(table.source.schema)
    assert table.asked(files) < before  # type: ignore[operator]
    table.check()
    before_form, after_form = table.source.schema, with_column(table.source.schema)
    table.source.schema = after_form
    table.source.rows = [{**row, "later": 7} for row in table.source.rows]
    table.destination.evolve(way_to(before_form, after_form, {"later": 7}))
    table.check()
    table.change()
    table.copy()
    table.change()
    assert table.stored_version == 2


@pytest.mark.spark
def test_files_of_a_copy_are_adopted_where_there_are_no_columns_of_ours(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The others would need values for rows from before, which came with version 3."""
    table = Table(spark, tmp_path, plan=TablePlan(metadata=None))
    table.copy()
    table.change()
    assert list((tmp_path / "lake").rglob("copy-*/*.parquet"))
    assert table.stored_version == 2
    table.destination.shutdown()


@pytest.mark.spark
@pytest.mark.parametrize(
    "mode",
    [pytest.param(mode, marks=() if mode == "scd2" else pytest.mark.long) for mode in MODELS],
)
def test_every_mode(spark: SparkSession, tmp_path: Path, mode: Mode) -> None:
    lake = Lake(spark, tmp_path, version=2)
    stories = {"keyed": (KEYED, keyed_story)}
    if mode in ("mirror", "history"):
        stories["keyless"] = KEYLESS, copies_story
    for name, (schema, story) in stories.items():
        told = begun(lake, schema, mode, name)
        for number, _ in enumerate(story(told.source)):
            if number % 2:
                told.batch()
                told.check()
        told.batch()
        told.check()
    for destination in lake.open:
        destination.shutdown()


@pytest.mark.spark
def test_tables_of_the_other_version(spark: SparkSession, tmp_path: Path, way: str) -> None:
    """One that is older gets the version with a new copy; one that is newer stays so, as Iceberg
    has it, and walflow says what to do."""
    table = Table(spark, tmp_path, version=2)
    table.copy()
    table.destination.shutdown()
    table.destination = table.opened(version=3)
    table.change()
    assert table.stored_version == 2
    table.copy()
    table.change()
    assert table.stored_version == 3
    table.destination.shutdown()
    table.destination = table.opened(version=2)
    with structlog.testing.capture_logs() as logs:
        table.change()
        table.copy()
        table.change()
    assert table.stored_version == 3
    (told,) = [one for one in logs if one["event"] == "table stays in its format version"]
    assert (told["table"], told["version"], told["wanted"]) == ("public.t", 3, 2)
    assert "DROP TABLE" in told["hint"]
    # As the hint says.
    table.session.sql(f"DROP TABLE {table_identifier(SCHEMA.name)} PURGE")
    table.destination.shutdown()
    table.destination = table.opened(version=2)
    assert table.destination.applied(table.source.schema) is None
    table.copy()
    table.change()
    assert table.stored_version == 2
    table.destination.shutdown()


@pytest.mark.spark
def test_the_setting_reaches_the_tables(spark: SparkSession, tmp_path: Path) -> None:
    given = {"source.uri": "postgresql://h/d", "destination.uri": f"iceberg://{tmp_path}/lake"}
    # As text, which is all that the environment and the command line have.
    settings = load_settings(None, given | {"destination.format_version": "2"}, {})
    opened = open_destination(settings, "source", spark=spark, warm_up=False)
    opened.destination.copy(copy_of(SCHEMA, [], Lsn(1)))
    session = reading_session(spark, tmp_path / "lake")
    shown = session.sql(f"SHOW TBLPROPERTIES {table_identifier(SCHEMA.name)} ('format-version')")
    assert shown.collect()[0]["value"] == "2"
    opened.close()


@pytest.mark.parametrize(
    ("uri", "settings", "words"),
    [
        ("delta:///lake", {"destination.format_version": "2"}, "format_version is for Iceberg"),
        ("iceberg:///lake", {"destination.format_version": "1"}, "greater than or equal to 2"),
        (
            "iceberg:///lake",
            {"destination.options": '{"format-version": 2}'},
            "set destination.format_version",
        ),
    ],
)
def test_settings_that_cannot_be(uri: str, settings: dict[str, str], words: str) -> None:
    given = {"source.uri": "postgresql://h/d", "destination.uri": uri}
    with pytest.raises(ConfigError, match=words):
        load_settings(None, given | settings, {})
