"""The table of consistent cuts: which versions of a pipeline's tables belong together.

One row a table a cut. Each cut says until when it is kept (see ``retention``), and its versions
are kept as long. The newest cut always stays.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from walflow.config import MaintenanceSettings
from walflow.config.lake import TablePlan
from walflow.destinations.base import ConsistentCut
from walflow.destinations.lake.engines import Engines
from walflow.destinations.lake.format import LakeFormat
from walflow.destinations.lake.maintenance import Due, maintain
from walflow.destinations.lake.owner import OWN_NAMESPACE, Owner, Stamp, check_owner
from walflow.destinations.lake.retention import Retention
from walflow.destinations.lake.table_schema import LakeTableSchema, lake_table_schema
from walflow.model import Column, Lsn, PgType, TableName, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from walflow.destinations.lake.noted_cuts import NotedCuts

__all__ = ["AsOf", "ConsistentCuts", "RecordedCut", "RecordedTable", "cuts_table", "query_as_of"]

_COLUMNS = {
    "lsn": "bigint",
    "lsn_text": "string",
    "since_lsn": "bigint",
    "commit_time": "timestamp",
    "source_table": "string",
    "destination_table": "string",
    "snapshot_id": "bigint",
    "position": "bigint",
    "recorded_at": "timestamp",
    "kept_until": "timestamp",
}
_ARROW_TYPES = {
    "bigint": pa.int64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
}

_TIDY_EVERY = 128
_MAINTENANCE = MaintenanceSettings(
    small_files=32, target_file_bytes=32 << 20, keep_snapshots_seconds=300, keep_snapshots=20
)
"""Of the table itself: it is read for moments, and nobody asks what it once was."""


def cuts_table(pipeline: str) -> TableName:
    """Each pipeline has its own: several may write to one lake."""
    return TableName(OWN_NAMESPACE, f"consistent_cuts_{pipeline}")


@dataclass(frozen=True, slots=True)
class RecordedTable:
    """A table in a cut."""

    source: TableName
    table: TableName
    version: int
    position: Lsn


@dataclass(frozen=True, slots=True)
class RecordedCut:
    """A cut that is in the table; see ConsistentCut."""

    since: Lsn
    upto: Lsn
    commit_time: datetime | None
    recorded: datetime
    tables: tuple[RecordedTable, ...]


@dataclass(frozen=True, slots=True)
class AsOf:
    """A cut, and how to read it."""

    cut: RecordedCut
    queries: tuple[str | None, ...]
    """Of each of its tables, the query that gives its rows; None: they can no longer be read."""


class ConsistentCuts:
    """Calls get a session that is the caller's alone. ``record`` is called by one thread."""

    def __init__(
        self,
        format: LakeFormat,
        engines: Engines,
        owner: Owner,
        keep_seconds: float,
        noted: NotedCuts | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``noted``: where else they are noted."""
        self._clock = clock
        self._noted = noted
        self._format = format
        self._engines = engines
        self._owner = owner
        self._lake_schema = _lake_schema(owner.pipeline)
        self._retention = Retention(keep_seconds)
        self._found: dict[TableName, tuple[Lsn, int]] = {}
        self._forgotten: set[TableName] = set()
        self._forgetting = threading.Lock()
        self._recorded = 0
        self._lock = threading.Lock()
        self._is_there = False

    @property
    def name(self) -> TableName:
        return self._lake_schema.name

    def record(self, spark: SparkSession, cut: ConsistentCut) -> bool:
        """Keep the cut, in one commit. False if one of its versions is already gone."""
        self._make(spark)
        if (tables := self._recorded_tables(spark, cut)) is None:
            return False
        now = self._clock()
        until = now + self._retention.seconds(now)
        rows = _rows(cut, tables, now, until)
        self._engines.append(spark, self.name, rows)
        if self._noted is not None:
            queries = {table: self._query(table) for table in tables}
            self._noted.record(cut, queries, now, until)
        self._recorded += 1
        if self._recorded % _TIDY_EVERY == 0:
            self._tidy(spark)
        return True

    def forget(self, name: TableName) -> None:
        """There may be another table of this name now. Any thread may say so."""
        with self._forgetting:
            self._forgotten.add(name)
        if self._noted is not None:
            self._noted.doubt(name)

    def _make(self, spark: SparkSession) -> None:
        with self._lock:
            if self._is_there:
                return
            stored = self._format.look(spark, self.name)
            if stored is None:
                self._format.make_namespace(spark, self.name)
                self._format.create(spark, self._lake_schema, self._owner)
            else:
                check_owner(self._format.identifier(self.name), self._owner, stored.properties)
            self._is_there = True

    def _recorded_tables(
        self, spark: SparkSession, cut: ConsistentCut
    ) -> list[RecordedTable] | None:
        positions = {table.table: table.position for table in cut.tables}
        versions = self._versions(spark, positions)
        if len(versions) < len(positions):
            return None
        return [
            RecordedTable(table.source, table.table, versions[table.table], table.position)
            for table in cut.tables
        ]

    def _query(self, table: RecordedTable) -> str:
        """The query that reads the table as it is in the cut."""
        return f"SELECT * FROM {self._format.as_of(table.table, table.version)}"

    def _versions(
        self, spark: SparkSession, positions: Mapping[TableName, Lsn]
    ) -> Mapping[TableName, int]:
        """Looked up are only those that are new since the last cut."""
        with self._forgetting:
            forgotten, self._forgotten = self._forgotten, set()
        last = {name: known for name, known in self._found.items() if name not in forgotten}
        asked = {
            name: position
            for name, position in positions.items()
            if name not in last or last[name][0] != position
        }
        found = self._format.versions_at(spark, asked)
        versions = {name: last[name][1] for name in positions if name not in asked} | found
        self._found = {name: (positions[name], version) for name, version in versions.items()}
        return versions

    def _tidy(self, spark: SparkSession) -> None:
        if self._noted is not None:
            self._noted.tidy()
        spark.sql(
            f"DELETE FROM {self._format.identifier(self.name)}"
            f" WHERE kept_until <= {_moment(self._clock())}"
        )
        due = Due(compact=True, remove_orphans=False)
        stamp = Stamp(self._owner, Lsn(0))
        maintain(
            spark,
            self._format,
            self._engines,
            self.name,
            _MAINTENANCE,
            due,
            lambda: (),
            lambda: nullcontext(stamp),
            self._clock,
        )

    # Reading.

    def newest(
        self,
        spark: SparkSession,
        position: Lsn | None = None,
        moment: datetime | None = None,
    ) -> RecordedCut | None:
        """The newest cut, or the newest one up to the position or the time."""
        from pyspark.sql import functions as sf

        rows = self._kept(spark)
        if rows is None:
            return None
        if position is not None:
            rows = rows.where(sf.col("since_lsn") <= int(position))
        if moment is not None:
            rows = rows.where(sf.coalesce("commit_time", "recorded_at") <= sf.lit(moment))
        (newest,) = rows.agg(sf.max(sf.struct("lsn", "recorded_at"))).collect()[0]
        return None if newest is None else _cut(rows, newest)

    def oldest(self, spark: SparkSession) -> RecordedCut | None:
        """The oldest one that is kept."""
        from pyspark.sql import functions as sf

        rows = self._kept(spark)
        if rows is None:
            return None
        (oldest,) = rows.agg(sf.min(sf.struct("lsn", "recorded_at"))).collect()[0]
        return None if oldest is None else _cut(rows, oldest)

    def needed(self, spark: SparkSession, name: TableName) -> Collection[int]:
        """The versions of the table that the kept cuts need."""
        from pyspark.sql import functions as sf

        rows = self._kept(spark)
        if rows is None:
            return ()
        rows = rows.where(sf.col("destination_table") == str(name))
        return {row[0] for row in rows.select("snapshot_id").distinct().collect()}

    def _kept(self, spark: SparkSession) -> DataFrame | None:
        """Rows of the kept cuts; None: there is no table."""
        if self._format.look(spark, self.name) is None:
            return None
        identifier = self._format.identifier(self.name)
        # The newest one is of the tables as they are, for as long as nothing happens to them.
        # Times are compared as structs: as they are, Spark makes them a part of the code that it
        # compiles, and each query would leave other classes behind.
        return spark.table(identifier).where(
            f"struct(kept_until) > struct({_moment(self._clock())})"
            " OR named_struct('at', recorded_at) ="
            f" (SELECT named_struct('at', max(recorded_at)) FROM {identifier})"
        )


def query_as_of(spark: SparkSession, format: LakeFormat, table: RecordedTable) -> str | None:
    """The query that reads the table as it was in a cut. None: the version is gone."""
    name, version = table.table, table.version
    if format.look(spark, name) is None:
        return None
    kept = {one.id for one in format.versions(spark, name)}
    return f"SELECT * FROM {format.as_of(name, version)}" if version in kept else None


def _lake_schema(pipeline: str) -> LakeTableSchema:
    columns = tuple(
        Column(name, PgType(kind, 0, 0), kind, attnum=number)
        for number, (name, kind) in enumerate(_COLUMNS.items(), 1)
    )
    schema = TableSchema(0, cuts_table(pipeline), columns, ())
    return lake_table_schema(schema, TablePlan(metadata=None), overflow=False)


def _rows(
    cut: ConsistentCut, tables: Sequence[RecordedTable], now: float, until: float
) -> pa.Table:
    rows = [
        (
            int(cut.upto),
            str(cut.upto),
            int(cut.since),
            cut.commit_time,
            str(table.source),
            str(table.table),
            table.version,
            int(table.position),
            _micros(now),
            _micros(until),
        )
        for table in tables
    ]
    values = zip(*rows, strict=True) if rows else ([] for _ in _COLUMNS)
    kinds = (_ARROW_TYPES[kind] for kind in _COLUMNS.values())
    columns = [pa.array(column, kind) for column, kind in zip(values, kinds, strict=True)]
    return pa.table(columns, names=list(_COLUMNS))


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)


def _moment(seconds: float) -> str:
    return f"timestamp_micros({_micros(seconds)})"


def _cut(rows: DataFrame, which: Row) -> RecordedCut:
    from pyspark.sql import functions as sf

    is_of_it = (sf.col("lsn") == which["lsn"]) & (sf.col("recorded_at") == which["recorded_at"])
    found = rows.where(is_of_it).orderBy("source_table").collect()
    first = found[0]
    return RecordedCut(
        Lsn(first["since_lsn"]),
        Lsn(first["lsn"]),
        None if first["commit_time"] is None else first["commit_time"].astimezone(UTC),
        first["recorded_at"].astimezone(UTC),
        tuple(
            RecordedTable(
                TableName.parse(row["source_table"]),
                TableName.parse(row["destination_table"]),
                row["snapshot_id"],
                Lsn(row["position"]),
            )
            for row in found
        ),
    )
