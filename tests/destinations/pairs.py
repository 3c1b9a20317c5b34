"""A source, its table in a lake of either format, and the way from one to the other."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tests.destinations.conftest import OWNER
from tests.destinations.reference import (
    Inexact,
    Row,
    Source,
    assert_same,
    copy_of,
    make_schema,
    rows_of,
)
from walflow.config import MaintenanceSettings
from walflow.config.lake import EngineChoice
from walflow.destinations.base import TableChanges
from walflow.destinations.delta import DeltaFormat
from walflow.destinations.iceberg import IcebergFormat
from walflow.destinations.lake import LakeDestination, Owner
from walflow.destinations.lake.format import LakeFormat
from walflow.destinations.lake.sessions import lake_session
from walflow.model import Lsn, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("iceberg", "delta")
KEYED = make_schema({"id": "bigint", "a": "string", "b": "string", "n": "int"}, ["id"])
FOREVER = Inexact(datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC), "infinity")
LAST_DAY = FOREVER.near
NAN = Inexact(None, "NaN")


def lake_format(name: str, warehouse: Path) -> LakeFormat:
    """One of ``FORMATS``."""
    return DeltaFormat(str(warehouse)) if name == "delta" else IcebergFormat(str(warehouse))


def delta_lake(spark: SparkSession, warehouse: Path, owner: Owner = OWNER) -> LakeDestination:
    return LakeDestination(spark, DeltaFormat(str(warehouse)), owner)


def delta_rows(session: SparkSession, warehouse: Path, schema: TableSchema) -> list[Row]:
    """The table's rows in the reference's form, without what only the lake has."""
    return rows_of(session.table(DeltaFormat(str(warehouse)).identifier(schema.name)), schema)


class Pair:
    """The table is in a folder of its own, with a name that has to be quoted."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        schema: TableSchema,
        format: str = "iceberg",
        maintenance: MaintenanceSettings | None = None,
        engine: EngineChoice = "auto",
    ) -> None:
        (folder / "log").mkdir()
        self.spark = spark
        self.source = Source(schema, folder / "log")
        self.warehouse = folder / "ware house%20"
        self._format = format
        self.format = lake_format(format, self.warehouse)
        self.destination = LakeDestination(
            spark, self.format, OWNER, maintenance=maintenance, engine=engine
        )
        self.session = lake_session(spark, self.format.session_conf)

    def another_destination(self) -> LakeDestination:
        """As a new process has it: it remembers nothing."""
        return LakeDestination(self.spark, lake_format(self._format, self.warehouse), OWNER)

    def copy(self, *, overflow: bool = False) -> None:
        """Start from the source's rows."""
        self.source.events(self.spark)
        files = [self.source.copy_file(overflow)]
        self.destination.copy(copy_of(self.source.schema, files, self.source.position, overflow))

    def batch(self, pieces: int = 1) -> TableChanges:
        """Apply what was done, and look."""
        events = self.source.events(self.spark, pieces)
        self.destination.apply(events)
        self.check()
        return events

    def check(self) -> None:
        assert_same(self.rows(), self.source.rows)

    def rows(self) -> list[Row]:
        schema = self.source.schema
        return rows_of(self.session.table(self.format.identifier(schema.name)), schema)

    def positions(self) -> list[Lsn | None]:
        """What the commits tell, the last one's last."""
        versions = self.format.versions(self.session, self.source.schema.name)
        return [version.position for version in versions]
