"""A base for destinations that take Arrow batches instead of Spark's DataFrames."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from walflow.destinations.base import TableChanges
from walflow.errors import Stopped
from walflow.model import OLD_EXACT, TableSchema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["ArrowDestination"]


class ArrowDestination(ABC):
    """Give a ``name`` and three methods; what comes from Spark is streamed to them in batches.

    The batches of a table come one after the other, those of several tables at the same time.
    After a ``shutdown`` another pipeline may use the same object.
    """

    name: str
    batch_rows: int = 1000
    """How many rows, or changes, a batch has at most. It has fewer where they are large (16 MB)."""
    _ending: threading.Event

    def __new__(cls, *args: Any, **options: Any) -> Self:
        # Not in __init__, which those who derive a class need not call.
        made = super().__new__(cls)
        made._ending = threading.Event()
        return made

    def startup(self) -> None:
        """Called once before all else. If you override it, call this one too: the pipeline before
        this one may have broken off."""
        self._ending.clear()

    def break_off(self) -> None:
        """The copies and batches that are under way end after the batch that they are at."""
        self._ending.set()

    @abstractmethod
    def truncate_table(self, table: TableSchema) -> None:
        """Make the table empty before a copy; it may not exist yet. Repeats safely.

        What was kept to tell changes that come again goes too: the copy may be of an older position
        than the newest change that was here, and changes after it come, and count, again.
        """

    @abstractmethod
    def write_row_batch(self, table: TableSchema, rows: pa.RecordBatch) -> None:
        """Append rows of the copy, in no order: the table's columns, and ``_exact`` if some need
        it. A table without rows gets one batch without rows, which makes the table."""

    @abstractmethod
    def write_change_batch(self, table: TableSchema, changes: pa.RecordBatch) -> None:
        """Apply changes, which are in their order, with the columns of ``TableChanges.changes``.

        All of a call come again if a part of it failed, or if nobody heard that it succeeded.
        They may be cut into batches in another way then, or more changes may follow them.
        (``_lsn``, ``_seq``) tells a change that was there before: since the last
        ``truncate_table``, all up to the newest one that was applied.
        """

    def write_table_rows(self, table: TableSchema, rows: DataFrame) -> None:
        from walflow.spark.batches import arrow_batches

        for batch in arrow_batches(rows, self.batch_rows):
            if self._ending.is_set():
                raise Stopped(f"told to stop while {table.name} was written")
            self.write_row_batch(table, batch)

    def write_events(self, changes: TableChanges) -> None:
        for batch in self.change_batches(changes):
            self.write_change_batch(changes.schema, batch)

    def change_batches(self, changes: TableChanges) -> Iterator[pa.RecordBatch]:
        """The changes in their order. Stopped, after the first batch, once the pipeline ends."""
        from walflow.spark.batches import arrow_batches, in_files

        files = [*changes.files, *(file for part in changes.former for file in part.files)]
        batches = arrow_batches(
            changes.changes,
            self.batch_rows,
            order=("_lsn", "_seq"),
            at_most=in_files(files, changes.stats.rows),
        )
        for number, batch in enumerate(batches):
            if number and self._ending.is_set():
                raise Stopped(f"told to stop while changes of {changes.schema.name} were written")
            if batch.num_rows:
                yield batch


def own_and_old(texts: Mapping[str, str] | None) -> tuple[dict[str, str], dict[str, str]]:
    """Of a change's ``_exact``: the texts of the row, and those of the row as it was."""
    own, old = {}, {}
    for name, text in (texts or {}).items():
        if name.startswith(OLD_EXACT):
            old[name.removeprefix(OLD_EXACT)] = text
        else:
            own[name] = text
    return own, old
