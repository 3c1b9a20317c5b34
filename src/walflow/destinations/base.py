"""What a destination is: a few calls, each for one table.

``Destination`` is what a pipeline calls. What a destination can do beside writing copies and
changes is data: its ``capabilities``. A class of your own need not derive from it:
``walflow.destinations.own`` makes one from anything that has ``name``, ``truncate_table``,
``write_table_rows`` and ``write_events``.

All calls may come from several threads, never two at once for the same table. The schema that a
destination is given has the *destination's* name for the table, by the mapping.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from walflow.evolution import Evolution, NotFollowed
from walflow.model import ChangeStats, Lsn, Span, TableName, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


__all__ = [
    "Capabilities",
    "ConsistentCut",
    "CutTable",
    "Destination",
    "FormerChanges",
    "TableChanges",
    "TableCopy",
    "Written",
]


_NOWHERE = Span(Lsn(0), Lsn(0))


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a destination can do beside writing copies and changes."""

    keeps_position: bool = False
    """It commits a table's position in the same transaction as the rows: every change arrives
    effectively once. Without it, at least once."""
    evolves: bool = False
    """It follows changes of a table's schema without a new copy."""
    renames: bool = False
    drops: bool = False
    keeps_cuts: bool = False
    """It keeps which versions of its tables belong together."""
    maintains_beside: bool = False
    """It maintains a table while changes are applied to it."""
    checks: bool = False
    """It can be tried out before a pipeline is started."""


@dataclass(frozen=True, slots=True)
class TableCopy:
    """All rows of a table, as they were at a position."""

    schema: TableSchema
    files: tuple[Path, ...]
    """Parquet files of the change log. They stay with the log, which may remove them later."""
    position: Lsn
    overflow: bool
    """Whether some file has the column ``_exact``."""
    spark: SparkSession = field(repr=False)

    @property
    def rows(self) -> DataFrame:
        """The table's columns, and ``_exact`` if some rows need it."""
        from walflow.spark.changes import read_copy

        files = [str(file) for file in self.files]
        return read_copy(self.spark, files, self.schema, self.overflow)

    def using(self, spark: SparkSession) -> TableCopy:
        """The same rows, read by another session."""
        return replace(self, spark=spark)


@dataclass(frozen=True, slots=True)
class FormerChanges:
    """Changes from before a table got its present schema."""

    files: tuple[str, ...]
    evolution: Evolution
    """The way to the present schema."""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The changes of one table in a part of the log; all rows have the one schema."""

    schema: TableSchema
    files: tuple[str, ...]
    """Files of the change log, as Spark finds them, with rows of this schema."""
    stats: ChangeStats
    """What is in the files at most: a destination may take short cuts by it."""
    spark: SparkSession = field(repr=False)
    span: Span = _NOWHERE
    """Where the destination's table is, and where it is with these changes."""
    after: Lsn = Lsn(0)
    """Changes of transactions that committed before this position are not among the rows."""
    former: tuple[FormerChanges, ...] = ()
    """Files whose rows have another schema; ``changes`` shows them in this one."""

    @property
    def truncated(self) -> bool:
        """Whether the table was emptied: the rows are those after the last truncate."""
        return self.stats.last_truncate is not None

    @property
    def key_chains(self) -> bool:
        """Whether a row may have changed its key twice. Looks into the files."""
        from walflow.spark.key_chains import may_chain

        return bool(self.former) or may_chain(self.files, self.schema, self.stats)

    @property
    def changes(self) -> DataFrame:
        """Every change: the table's columns and ``_change_type``, ``_lsn``, ``_seq``,
        ``_timestamp``, ``_xid``, ``_unchanged``, ``_old``, ``_exact``. (``_lsn``, ``_seq``) is
        their order, is unique, and is the same in every replay."""
        from walflow.spark.changes import place

        rows = self._read()
        # A position is the end of a transaction, `_lsn` the place of its commit, just before.
        return rows.where(place() > place(self.after)) if self.after else rows

    def _read(self) -> DataFrame:
        from walflow.spark.changes import read_changes
        from walflow.spark.schema_changes import in_schema

        parts = [
            in_schema(read_changes(self.spark, part.files, part.evolution.before), part.evolution)
            for part in self.former
        ]
        if self.files or not parts:
            parts.append(read_changes(self.spark, self.files, self.schema))
        return reduce(lambda one, other: one.union(other), parts)

    def net(self) -> DataFrame:
        """What the changes come to; see walflow.spark.net for the columns.

        Keyed tables: one ``upsert`` or ``delete`` a key. Keyless tables: one ``insert`` or
        ``delete`` for each copy of a row that comes or goes.
        """
        from walflow.spark.net import net_changes
        from walflow.spark.net_keyless import net_keyless

        if self.schema.key:
            return net_changes(self.changes, self.schema, self.stats, chains=self.key_chains)
        return net_keyless(self.changes, self.schema, self.stats)

    def using(self, spark: SparkSession) -> TableChanges:
        """The same changes, read by another session (say, one with settings of its own)."""
        return replace(self, spark=spark)

    def since(self, position: Lsn) -> TableChanges:
        """Without the transactions that ended at or before the position."""
        stats = self.stats
        if stats.last_truncate is not None and stats.last_truncate[0] < position:
            stats = replace(stats, last_truncate=None)
        return replace(self, after=max(self.after, position), stats=stats)


@dataclass(frozen=True, slots=True)
class Written:
    """How changes were written, by a destination that has several ways."""

    engine: str
    fallback: str | None = None
    """In a few words, why it was not the quicker engine."""


@dataclass(frozen=True, slots=True)
class CutTable:
    """Which version of a table belongs to a consistent cut."""

    source: TableName
    table: TableName
    """The destination's name for it."""
    position: Lsn
    """The version is the one with the newest position up to this."""


@dataclass(frozen=True, slots=True)
class ConsistentCut:
    """Versions of tables that belong together: they show the source as it was at one moment."""

    since: Lsn
    upto: Lsn
    """It is the same at all positions from ``since`` to this."""
    commit_time: int | None
    """When the last transaction in it was committed at the source, in microseconds."""
    tables: tuple[CutTable, ...]


class Destination(Protocol):
    """Derive from it, give a ``name``, ``copy`` and ``apply``, and declare what else there is."""

    capabilities: Capabilities = Capabilities()

    @property
    @abstractmethod
    def name(self) -> str: ...

    # Its life.

    def startup(self) -> None:
        """Called once before all else; may take the time to warm up."""
        return

    def break_off(self) -> None:
        """Called once when the pipeline is to end, before ``shutdown``, while calls may be under
        way: a copy that would go on for long raises Stopped, and what waits to be tried again
        raises its error. Both come again with the next start."""
        return

    def shutdown(self) -> None:
        """Called once after all else, also after errors."""
        return

    def check_writable(self) -> None:
        """If it ``checks``: make a scratch table under a name that no table has, write to it, and
        remove it and all else that was made for it, also if this fails midway. Touches nothing
        that is there. DestinationError, with what to do, if tables cannot be written. Takes seconds
        at most."""
        return

    # A table.

    @abstractmethod
    def copy(self, copy: TableCopy) -> None:
        """Make the table from the copy, whatever was there before, also with another schema. Its
        position is then the copy's. If readers can be spared, they see the former table or the new
        one. Repeats safely, whether it failed or not."""

    def applied(self, table: TableSchema) -> Lsn | None:
        """If it ``keeps_position``: up to where the table has all changes; None: there is no
        complete copy of it.

        Asked before each batch, and to be answered by the table as it is now, not from memory: if
        somebody has set it back, or made it anew, the changes that it lacks are written again, or
        it is copied again. A destination that sees that only while it writes raises TableMoved."""
        raise NotImplementedError

    @abstractmethod
    def apply(self, changes: TableChanges) -> Written | None:
        """Apply the changes. The same ones may come again, alone or with more, and must then change
        nothing. None: nothing had to be written, or there is but one way."""

    def evolve(self, evolution: Evolution) -> None:
        """If it ``evolves``: bring the table from ``evolution.before`` to ``evolution.after`` (both
        with the destination's name): columns, key, and in rows that are there, the values of
        ``evolution.missing`` (see walflow.spark.schema_changes.missing_value) in columns that were
        added. The table's position stays.

        Called before the first changes of the new schema are written, and while nobody writes
        changes; also if only the key is another. Called again, with the same schemas, if the
        answer got lost; so a part of it, or all, may have been done. No other change of schema is
        asked for before this one has succeeded. NotFollowed: it can be done only by a new copy.
        DestinationError with ``retry`` False and a hint: the destination cannot have such a table,
        and it is set aside."""
        raise NotFollowed(f"the destination {self.name} follows no change of schema")

    def maintenance_due(self, table: TableSchema) -> bool:
        """Whether the table needs maintenance. Asked after each batch, and every second while
        there are none: must cost nothing."""
        return False

    def maintain(self, table: TableSchema) -> None:
        """Compact files, expire versions. Called between two batches of the table: nobody else
        writes it meanwhile, and its next changes wait, so it should not take long. If it
        ``maintains_beside``, the next changes come while this goes on. Repeats safely; if it
        fails, the table is as readable and as complete as before."""
        return

    def rename(self, table: TableSchema, name: TableName) -> bool:
        """If it ``renames``: give the table, as it is, the other name (of the destination's).
        False: it cannot be done, and nothing has happened. True again if it has that name
        already."""
        return False

    def drop(self, table: TableSchema) -> None:
        """If it ``drops``: remove the table and its data, if it is there. Repeats safely.
        DestinationForeign, and all is left as it is, if the table is not this pipeline's."""
        raise NotImplementedError

    # All tables.

    def own_tables(self) -> Iterable[TableName]:
        """The destination's names of all tables that it knows to be this pipeline's, also those
        that the pipeline no longer follows."""
        return ()

    def keep_cut(self, cut: ConsistentCut) -> bool:
        """If it ``keeps_cuts``: keep the consistent cut. Called about once a second while tables
        change, one call at a time, while batches go on. Repeats safely; if it fails, or says that
        the cut was not kept, a later one takes its place."""
        return False
