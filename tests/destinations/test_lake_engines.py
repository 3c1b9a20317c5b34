"""Which engine writes a batch, and that both come to the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from tests.destinations.conftest import OWNER
from tests.destinations.pairs import KEYED
from tests.destinations.reference import Source, assert_same, copy_of, rows_of
from walflow.config.lake import EngineChoice
from walflow.destinations.base import Written
from walflow.destinations.delta import DeltaFormat
from walflow.destinations.iceberg import IcebergFormat
from walflow.destinations.lake import LakeDestination, LakeFormat, TablePlan
from walflow.destinations.lake.fallback import Reason
from walflow.destinations.lake.sessions import lake_session
from walflow.errors import DestinationError
from walflow.model import Lsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Engined:
    """A source, and its table in a lake that has an engine of its choice."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        engine: EngineChoice,
        plan: TablePlan | None = None,
        format: Callable[[str], LakeFormat] = IcebergFormat,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.spark = spark
        self.folder = folder
        self.source = Source(KEYED, folder)
        self.format = format(str(folder / "lake"))
        self.plan = plan or TablePlan()
        self.destination = self.opened(engine)
        with self.source.transaction():
            for number in range(5):
                self.source.insert(id=number, a=f"a{number}", b=f"b{number}", n=number)
        self.source.events(spark)
        copy = copy_of(KEYED, [self.source.copy_file()], self.source.position)
        self.destination.copy(copy)

    def opened(self, engine: EngineChoice) -> LakeDestination:
        return LakeDestination(self.spark, self.format, OWNER, lambda _: self.plan, engine=engine)

    def batch(self) -> Written | None:
        with self.source.transaction():
            self.source.update(self.source.find(id=1), b="changed")
            self.source.delete(self.source.find(id=2))
            self.source.insert(id=int(self.source.position), a="new", b=None, n=None)
            self.source.update(self.source.find(id=3), unsent=["a"], n=33)
        return self.destination.apply(self.source.events(self.spark))

    def check(self) -> None:
        session = lake_session(self.spark, self.format.session_conf)
        table = session.table(self.format.identifier(KEYED.name))
        assert_same(rows_of(table, KEYED), self.source.rows)


def test_the_setting_chooses(spark: SparkSession, tmp_path: Path) -> None:
    expected: Mapping[EngineChoice, Written] = {
        "auto": Written("columnar"),
        "columnar": Written("columnar"),
        "spark": Written("spark", Reason.SETTING.value),
    }
    for engine, written in expected.items():
        lake = Engined(spark, tmp_path / engine, engine)
        assert lake.batch() == written
        lake.check()
        lake.destination.shutdown()


def test_what_columns_cannot_do_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    lake = Engined(spark, tmp_path / "soft", "auto", TablePlan(mode="soft_delete"))
    with capture_logs() as logs:
        assert lake.batch() == Written("spark", Reason.MODE.value)
    (log,) = (log for log in logs if log["event"] == "left to Spark")
    assert (log["log_level"], log["table"]) == ("debug", "public.t")
    assert (log["reason"], log["detail"]) == ("mode", "mode soft_delete")
    lake.destination.shutdown()


def test_of_delta_spark_writes_all(spark: SparkSession, tmp_path: Path) -> None:
    lake = Engined(spark, tmp_path / "delta", "auto", format=DeltaFormat)
    assert lake.batch() == Written("spark", Reason.FORMAT.value)
    lake.check()
    lake.destination.shutdown()


def test_columns_or_nothing(spark: SparkSession, tmp_path: Path) -> None:
    lake = Engined(spark, tmp_path / "soft", "columnar", TablePlan(mode="soft_delete"))
    position = lake.destination.applied(KEYED)
    with pytest.raises(DestinationError, match="in columns: mode soft_delete") as refused:
        lake.batch()
    assert "apply.engine: auto" in refused.value.hint
    assert lake.destination.applied(KEYED) == position != Lsn(0)
    lake.destination.shutdown()


def test_paths_that_are_not_of_this_machine(spark: SparkSession, tmp_path: Path) -> None:
    """By fs.defaultFS a path without a scheme is one of another file system. (This one keeps its
    files on this machine, at another place.)"""
    elsewhere, warehouse = tmp_path / "elsewhere", Path("/walflow-elsewhere") / tmp_path.name
    elsewhere.mkdir()
    assert not warehouse.exists()

    def format(folder: str) -> LakeFormat:
        return IcebergFormat(
            str(warehouse),
            {
                "hadoop.fs.defaultFS": "viewfs://elsewhere/",
                "hadoop.fs.viewfs.mounttable.elsewhere.link./walflow-elsewhere": elsewhere.as_uri(),
            },
        )

    lake = Engined(spark, tmp_path / "log", "auto", format=format)
    assert lake.batch() == Written("spark", Reason.PLACE.value)
    lake.check()
    assert not warehouse.exists(), "files were written to this machine's disk"
    assert list(elsewhere.rglob("*.parquet"))
    lake.destination.shutdown()
