"""What Iceberg and Delta do each in its own way: the rest of a lake is the same for both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from walflow.destinations.lake.net_columns import ColumnarChanges
from walflow.destinations.lake.owner import Owner, Stamp
from walflow.destinations.lake.table_schema import LakeTableSchema
from walflow.model import Lsn, TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Columnar",
    "Compaction",
    "Constant",
    "LakeFormat",
    "RowPlaces",
    "Stored",
    "Turn",
    "Version",
]

Constant = str | int | datetime | None
"""What a column of ours has in all rows of a copy."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a table says of itself."""

    position: Lsn | None
    """Of its newest commit that has one; None: no copy of it was ever completed."""
    columns: Mapping[str, str]
    """Name and Spark type of each, in order."""
    properties: Mapping[str, str]
    version: str | None
    """Which version of it says so, see LakeFormat.version; None: it has none yet."""


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Two expressions, of a table that is called TARGET in SQL, that tell equal rows apart."""

    file: str
    place: str


@dataclass(frozen=True, slots=True)
class Version:
    """A commit of a table that can still be read."""

    id: int
    """By which a reader names it: a snapshot of Iceberg's, a version of Delta's."""
    committed: datetime
    position: Lsn | None
    """None: a commit of maintenance, or not one of ours."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """When files are rewritten, and as what."""

    small_files: int
    """From this many files on that are much smaller than the target."""
    target_bytes: int
    small_part: int = 8
    """A file is small below this part of the target. (A table's copy has files of about a fourth,
    and it would not pay to write them anew.)"""
    worn_share: float = 0.3
    """A file is rewritten if so much of it is deleted."""

    @property
    def small_bytes(self) -> int:
        """A smaller file is small."""
        return self.target_bytes // self.small_part


@dataclass(frozen=True, slots=True)
class NewColumn:
    name: str
    spark_type: str
    after: str | None
    """The column that it comes after; None: it is the first."""
    value: object
    """What rows that are there have in it, as Python has it; None: null."""


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """What becomes of a table's columns, all at once: names may be swapped. The columns that are
    there have their names from before, but in ``added``, which comes last."""

    dropped: tuple[str, ...]
    renamed: Mapping[str, str]
    widened: Mapping[str, str]
    """Their new types."""
    nullable: frozenset[str]
    """May have nulls from now on."""
    added: tuple[NewColumn, ...]
    properties: Mapping[str, str]


Turn = Callable[[], AbstractContextManager[Stamp]]
"""Entered by every commit in between: nobody else of this process writes the table meanwhile.
Gives what the commit has to say of itself."""


class Columnar(Protocol):
    """Writes in columns, in this process. FallBackToSpark: this cannot be written so, and nothing
    has happened."""

    def merge(
        self,
        lake_schema: LakeTableSchema,
        net_changes: Callable[[], ColumnarChanges],
        begins: Lsn,
        stamp: Stamp,
    ) -> None:
        """Put the rows in the place of those with the keys, in one commit with the stamp.
        ``net_changes`` says what the changes come to since the position at which the table is
        (TableMoved if it is elsewhere), and is asked only if the table can be written."""

    def append(self, name: TableName, rows: pa.Table) -> None:
        """Add rows that have all columns of the table. One commit, without a stamp."""

    def compact(self, name: TableName, policy: Compaction, turn: Turn) -> bool:
        """Rewrite some of its files as one, if it pays, in one commit; whether it did. Batches go
        on meanwhile, but for the moments of the turns."""


class LakeFormat(Protocol):
    """All calls get a session that is the caller's alone (but ``opened``), and may come from
    several threads, never two at once for one table. What Spark throws they let through."""

    @property
    def name(self) -> str:
        """``iceberg``"""

    @property
    def session_conf(self) -> Mapping[str, str]:
        """Settings that a session of ours needs."""

    def opened(self, spark: SparkSession) -> None:
        """Get ready, with the caller's own session. May take long. Repeats safely."""

    def warm_copy(self, folder: str) -> LakeFormat:
        """The same format on another folder, for tables that only warm Spark up."""

    def identifier(self, name: TableName) -> str:
        """The table's name in Spark SQL."""

    def make_namespace(self, spark: SparkSession, name: TableName) -> None:
        """Make what the table is to be in, unless it is there."""

    def has_namespace(self, spark: SparkSession, name: TableName) -> bool:
        """Whether there is what the table is to be in."""

    def drop_namespace(self, spark: SparkSession, name: TableName) -> None:
        """Remove what the table was in, unless something else is in it."""

    def look(self, spark: SparkSession, name: TableName) -> Stored | None:
        """None when there is no such table. Must be quick: it is asked at each
        start."""

    def version(self, spark: SparkSession, name: TableName) -> str | None:
        """What tells the table's newest version from all others, also of other tables that had the
        name; None: there is none. Must cost next to nothing: it is asked before each batch."""

    def check_names(self, name: TableName, columns: Collection[str]) -> None:
        """DestinationError if a table cannot have columns of these names."""

    def create(self, spark: SparkSession, lake_schema: LakeTableSchema, owner: Owner) -> None:
        """Make the table, empty and without a position. There is none."""

    def replace(self, rows: DataFrame, lake_schema: LakeTableSchema, stamp: Stamp) -> None:
        """Make these rows (all columns of the schema, in order) the table, whatever was there, in
        one commit with the stamp. Readers see the former table or this one."""

    def adopt(
        self,
        spark: SparkSession,
        lake_schema: LakeTableSchema,
        files: Sequence[Path],
        constants: Mapping[str, Constant],
        stamp: Stamp,
    ) -> bool:
        """As replace, with the rows of these Parquet files, taken over as they are; ``constants``
        are the values of our columns, which the files lack. False if it cannot be done so, and
        then nothing has happened. The files stay with the caller."""

    def stamped(self, spark: SparkSession, stamp: Stamp) -> AbstractContextManager[None]:
        """What the session commits inside carries the stamp."""

    def append(self, rows: DataFrame, name: TableName) -> None:
        """Add rows that have all columns of the table, in order. One commit."""

    def columnar(self, spark: SparkSession) -> Columnar | None:
        """None: only Spark can write."""

    def overwrite(self, rows: DataFrame, name: TableName) -> None:
        """Make these the table's only rows. One commit."""

    def touch(self, spark: SparkSession, name: TableName) -> None:
        """Commit nothing but the session's stamp."""

    @property
    def places(self) -> RowPlaces | None:
        """What tells rows apart that are equal in all columns; None: a MERGE cannot use it."""

    def add_column(self, spark: SparkSession, name: TableName, column: str, type: str) -> None:
        """Add a column that is null in all rows."""

    def change_columns(self, spark: SparkSession, name: TableName, changes: ColumnChanges) -> bool:
        """Do all of it in one commit, but new columns with a value that cannot be given them so:
        those are left out. Former versions of the table stay as they are. False if it cannot be
        done so, and then nothing has happened."""

    def alter(self, spark: SparkSession, name: TableName, *clauses: str) -> None:
        """``ALTER TABLE`` with each of the clauses, in turn, that change columns. Also without
        any, it sets right what a former call that broke off has left."""

    def rename(self, spark: SparkSession, name: TableName, new: TableName) -> bool:
        """Give the table the other name, which no table has. False if it cannot be done, and then
        nothing has happened."""

    def rows(self, spark: SparkSession, name: TableName) -> int:
        """About how many rows the table has; must be quick."""

    def drop(self, spark: SparkSession, name: TableName) -> None:
        """Remove the table and its files, if it is there."""

    def owned_tables(self, spark: SparkSession, owner: Owner) -> list[TableName]:
        """All tables that are the owner's."""

    # Versions and maintenance. What these commit carries the session's stamp.

    def as_of(self, name: TableName, version: int) -> str:
        """What stands behind FROM in Spark SQL, to read the table as it was."""

    def versions(self, spark: SparkSession, name: TableName) -> list[Version]:
        """Those that can be read, oldest first, the present one last; of a table that was
        replaced, also those from before."""

    def versions_at(
        self, spark: SparkSession, positions: Mapping[TableName, Lsn]
    ) -> dict[TableName, int]:
        """Of each table the first version that has the newest position up to this one, if it can
        still be read. Must be quick: it is asked about once a second."""

    def compact(self, spark: SparkSession, name: TableName, policy: Compaction) -> bool:
        """Have Spark rewrite small files, and those of which much is deleted, if there are enough
        of them to pay, and what lists the files; whether anything was committed. Does a limited
        amount of work: what is left is due again."""

    @property
    def expires_beside(self) -> bool:
        """Whether versions expire, and orphans are removed, while batches are written. If not,
        the one that asks for it has the turn."""

    def expire(
        self, spark: SparkSession, name: TableName, versions: Sequence[int], before: datetime
    ) -> None:
        """Give up these versions, all of them committed before that time, and the files that only
        they need. The present one is never among them. A format that cannot give up single
        versions keeps all from the oldest one on that is not among them."""

    def remove_orphans(self, spark: SparkSession, name: TableName, before: datetime) -> None:
        """Remove files in the table's folder from before that time that no version needs. May
        take long: it looks at all of them."""
