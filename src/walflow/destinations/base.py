"""What a destination is.

``Destination`` is the least that one must do. The other protocols are optional and found with
``isinstance``; a destination that has ``Positioned`` gets every change effectively once, any other
at least once. All calls may come from several threads, never two at once for the same table.

The schema that a destination is given has the *destination's* name for the table, by the mapping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from walflow.errors import DestinationError, WalflowError
from walflow.evolution import Evolution
from walflow.model import ChangeStats, Lsn, Span, TableName, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


__all__ = [
    "AdoptsFiles",
    "BreaksOff",
    "ChangesTables",
    "Checked",
    "ConsistentCut",
    "Destination",
    "DropsTables",
    "Events",
    "FormerChanges",
    "KeepsProgress",
    "ListsTables",
    "Maintains",
    "Positioned",
    "RenamesTables",
    "Shutdown",
    "Startup",
    "SwapsTables",
    "TableChanges",
    "TableProgress",
    "TablesFailed",
]


@dataclass(frozen=True, slots=True)
class FormerChanges:
    """Changes from before a table got its present form."""

    files: tuple[str, ...]
    evolution: Evolution
    """The way to the present form."""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The changes of one table in a stretch of the log; all rows have the one schema."""

    schema: TableSchema
    files: tuple[str, ...]
    """Files of the change log, as Spark finds them, with rows of this form."""
    stats: ChangeStats
    """What is in the files at most: a destination may take short cuts by it."""
    spark: SparkSession = field(repr=False)
    after: Lsn = Lsn(0)
    """Changes of transactions that committed before this position are not among the rows."""
    former: tuple[FormerChanges, ...] = ()
    """Files whose rows have another form; ``changes`` shows them in this one."""

    @property
    def truncated(self) -> bool:
        """Whether the table was emptied: the rows are those after the last truncate."""
        return self.stats.last_truncate is not None

    @property
    def changes(self) -> DataFrame:
        """Every change: the table's columns and ``_change_type``, ``_lsn``, ``_seq``,
        ``_timestamp``, ``_xid``, ``_unchanged``, ``_old``, ``_exact``. (``_lsn``, ``_seq``) is
        their order, is unique, and is the same in every replay."""
        rows = self._read()
        # A position is the end of a transaction, `_lsn` the place of its commit, just before.
        return rows.where(f"`_lsn` >= {int(self.after)}") if self.after else rows

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
        from walflow.spark.net_keyless import exploded_copies, net_copies

        if self.schema.key:
            return net_changes(self.changes, self.schema, self.stats)
        return exploded_copies(net_copies(self.changes, self.schema, self.stats), self.schema)

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
class Events:
    """A stretch of the log, and the changes in it of the tables that are concerned."""

    span: Span
    tables: tuple[TableChanges, ...]


class TablesFailed(DestinationError):
    """Some tables of a round could not be written; the others were.

    If trying again cannot help one of them, it speaks for all, with its exit code.
    """

    def __init__(self, failures: Mapping[TableName, Exception]) -> None:
        final = {name: error for name, error in failures.items() if _is_final(error)}
        first, error = next(iter((final or failures).items()))
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        super().__init__(f"{first}: {error}{more}", hint=getattr(error, "hint", None))
        self.failures = dict(failures)
        if isinstance(error, WalflowError):
            self.retry, self.exit_code = error.retry, error.exit_code

    def __reduce__(self) -> tuple[object, ...]:
        return TablesFailed, (self.failures,)


def _is_final(error: Exception) -> bool:
    return isinstance(error, WalflowError) and not error.retry


@runtime_checkable
class Destination(Protocol):
    """The least that a destination must do."""

    @property
    def name(self) -> str: ...

    def truncate_table(self, table: TableSchema) -> None:
        """Make the table empty before a copy; it may not exist yet. Repeats safely."""

    def write_table_rows(self, table: TableSchema, rows: DataFrame) -> None:
        """Append rows of the copy, with a column ``_exact`` if some need it. Empty rows create
        the table. May be called several times after one truncate_table."""

    def write_events(self, events: Events) -> None:
        """Apply the changes. The same events may come again, and must then change nothing.

        Mostly these are the changes of one table, and calls for other tables go on at the same
        time. What goes wrong with the one table is raised as it is; of several tables, those that
        could not be written are told by TablesFailed, and the others were written."""


@runtime_checkable
class Startup(Protocol):
    def startup(self) -> None:
        """Called once before all else; may take the time to warm up."""


@runtime_checkable
class Shutdown(Protocol):
    def shutdown(self) -> None:
        """Called once after all else, also after errors."""


@runtime_checkable
class Checked(Protocol):
    """Can be tried out before a pipeline is started: what `walflow check` asks for."""

    def check_writable(self) -> None:
        """Make a scratch table under a name that no table has, write to it, and remove it and all
        else that was made for it, also if this fails midway. Touches nothing that is there.
        DestinationError, with what to do, if tables cannot be written. Takes seconds at most."""


@runtime_checkable
class BreaksOff(Protocol):
    """Can end calls that take long before they are done."""

    def break_off(self) -> None:
        """Called once when the pipeline is to end, before ``shutdown``, while calls may be under
        way: a copy that would go on for long raises Stopped, and what waits to be tried again
        raises its error. Both come again with the next start."""


@runtime_checkable
class Positioned(Protocol):
    """Keeps the applied position with the data, in the same transaction."""

    def applied(self, table: TableSchema) -> Lsn | None:
        """Up to where the table has all changes; None: there is no complete copy of it.

        Asked before each batch, and to be answered by the table as it is now, not from memory: if
        somebody has set it back, or made it anew, the changes that it lacks are written again, or
        it is copied again. A destination that sees that only while it writes raises TableMoved."""

    def mark_applied(self, table: TableSchema, position: Lsn) -> None:
        """Called when the copy is complete: the table has all up to the position."""


@runtime_checkable
class AdoptsFiles(Protocol):
    """Can take finished Parquet files over as they are, instead of write_table_rows."""

    def adopt_files(
        self, table: TableSchema, files: Sequence[Path], position: Lsn, overflow: bool
    ) -> None:
        """Make the table from the copy's files and mark it as applied up to the position.

        What was there before, of whatever form, is replaced in one step: readers see the old
        table or the new one. ``exact``: some file has the column ``_exact``. The files stay with
        the caller, who may remove them afterwards. If it fails, all is as it was, and the call
        may be repeated; so it may after it has succeeded.
        """


@runtime_checkable
class SwapsTables(Protocol):
    """Can put one table in the place of another: a copy is then written to a shadow, and readers
    see the former table until it is complete."""

    def swap_table(self, shadow: TableSchema, table: TableSchema) -> None:
        """Make the shadow the table. There may be none so far. The former one is gone after it;
        a position that was marked on the shadow is the table's. Repeats safely."""


@runtime_checkable
class ChangesTables(Protocol):
    """Can follow a table's form without a new copy."""

    def change_table(self, evolution: Evolution) -> None:
        """Bring the table from ``evolution.before`` to ``evolution.after`` (both with the
        destination's name): columns, key, and in rows that are there, the values of
        ``evolution.missing`` (see walflow.spark.schema_changes.missing_value) in columns that were
        added.
        The table's position stays.

        Called before the first changes of the new form are written, and while nobody writes
        changes; also if only the key is another. Called again, with the same forms, if it was not
        heard of how it ended; so a part of it, or all, may have been done. No other change of form
        is asked for before this one has succeeded. NotFollowed: it can be done only by a new copy.
        DestinationError with ``retry`` False and a hint: the destination cannot have such a table,
        and it is set aside."""


@runtime_checkable
class RenamesTables(Protocol):
    def rename_table(self, table: TableSchema, name: TableName) -> bool:
        """Give the table, as it is, the other name (of the destination's). False: it cannot be
        done, and nothing has happened. True again if it has that name already."""


@runtime_checkable
class Maintains(Protocol):
    """Looks after its tables: files that became many or small, snapshots that became old."""

    def maintenance_due(self, table: TableSchema) -> bool:
        """Whether the table wants to be looked after. Asked after each round, and every second
        while there are none: must cost nothing."""

    def maintain(self, table: TableSchema) -> None:
        """Look after the table. Called between two rounds of it: nobody else writes it meanwhile,
        and its next changes wait, so it should not take long. Repeats safely; if it fails, the
        table is as readable and as complete as before."""


@dataclass(frozen=True, slots=True)
class TableProgress:
    """Which version of a table belongs to a picture."""

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
    tables: tuple[TableProgress, ...]


@runtime_checkable
class KeepsProgress(Protocol):
    """Keeps, beside the tables, which of their versions belong together."""

    def record_progress(self, cut: ConsistentCut) -> bool:
        """Keep the picture. Called about once a second while tables change, one call at a time,
        while rounds go on. Repeats safely; if it fails, or says that the picture was not kept, a
        later one takes its place."""


@runtime_checkable
class DropsTables(Protocol):
    def drop_table(self, table: TableSchema) -> None:
        """Remove the table and its data, if it is there. Repeats safely. DestinationForeign, and
        all is left as it is, if the table is not this pipeline's."""


@runtime_checkable
class ListsTables(Protocol):
    """Knows its tables by itself, also those that the pipeline no longer follows."""

    def own_tables(self) -> Iterable[TableName]:
        """All tables that are this pipeline's, by the destination's names."""
