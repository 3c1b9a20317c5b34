"""A base for destinations that take rows and changes as Python objects: the quickest to write.

    class Webhook(RowwiseDestination):
        name = "webhook"

        def truncate_table(self, table): ...
        def insert_rows(self, table, rows): ...
        def apply_changes(self, table, changes): ...

With ``transactions = True`` the changes come between a ``Begin`` and a ``Commit`` of their
transaction, and a ``Relation`` tells the schema of those that follow it.

``truncate_table`` makes the table empty and forgets what was kept to tell changes that come again:
after a new copy, changes that were here before may come, and count, again.

Values are ``None``, ``bool``, ``int``, ``float``, ``Decimal``, ``str``, ``bytes``, ``date``,
``datetime`` (with UTC as their zone for ``timestamp``, without one for ``timestamp_ntz``), and
lists of them.
"""

from __future__ import annotations

import datetime
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from walflow.destinations.arrow import ArrowDestination, own_and_old
from walflow.destinations.base import TableChanges
from walflow.model import ChangeType, Lsn, TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Begin",
    "Change",
    "Commit",
    "CopiedRow",
    "Delete",
    "Event",
    "Insert",
    "Relation",
    "Row",
    "RowwiseDestination",
    "Truncate",
    "Update",
]

Row = Mapping[str, Any]
"""Values by column."""


class CopiedRow(dict[str, Any]):
    """A row of a copy: a dictionary of its values by column, and the texts of some of them."""

    __slots__ = ("exact",)

    def __init__(self, values: Any = (), exact: Mapping[str, str] | None = None) -> None:
        super().__init__(values)
        self.exact: Mapping[str, str] = exact or {}
        """By column, Postgres's own text of values that the column's type cannot hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    lsn: Lsn
    """The place of the commit in Postgres's log."""
    seq: int
    """The number of the change in its transaction."""
    timestamp: datetime.datetime
    """When the transaction was committed."""
    xid: int

    @property
    def order(self) -> tuple[Lsn, int]:
        """Unique for a table, greater for what came later, and the same in every replay."""
        return self.lsn, self.seq


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert(_Change):
    row: Row
    unchanged: frozenset[str] = frozenset()
    """Columns that Postgres did not send: it has happened that an update makes a row one of the
    published ones, while large values of it stay as they were."""
    exact: Mapping[str, str] = field(default_factory=dict)
    """By column, Postgres's own text of values that the column's type cannot hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update(_Change):
    row: Row
    """The new row, without the columns in ``unchanged``."""
    old: Row
    """By what the row is found as it was: its key, or, if the table has none, all columns."""
    unchanged: frozenset[str] = frozenset()
    """Large values that stay as they were, and that Postgres therefore did not send."""
    exact: Mapping[str, str] = field(default_factory=dict)
    old_exact: Mapping[str, str] = field(default_factory=dict)
    """The texts of values in ``old``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(_Change):
    old: Row
    """By what the row is found: its key, or, if the table has none, all columns."""
    old_exact: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate(_Change):
    """The table was emptied."""


Change = Insert | Update | Delete | Truncate


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The changes of a transaction follow, those of this table."""

    xid: int
    lsn: Lsn
    """The place of the commit in Postgres's log."""
    timestamp: datetime.datetime
    """When the transaction was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """There are no more changes of the transaction in this table."""

    xid: int
    lsn: Lsn
    timestamp: datetime.datetime
    changes: int
    """How many there were, in this table."""


@dataclass(frozen=True, slots=True)
class Relation:
    """The changes that follow have this schema. Comes before the first transaction of each call:
    somebody else may have made the calls before."""

    schema: TableSchema


Event = Begin | Commit | Relation | Change


class RowwiseDestination(ArrowDestination):
    """Give a ``name`` and three methods: this one's two, and ``truncate_table``."""

    transactions: bool = False
    """Whether ``apply_changes`` is to be given all events: ``Begin``, ``Commit`` and ``Relation``
    beside the changes."""

    @abstractmethod
    def insert_rows(self, table: TableSchema, rows: Sequence[CopiedRow]) -> None:
        """Append rows of the copy, in no order. No rows make the table. Rows are dictionaries;
        ``row.exact`` has the texts of values that they hold only nearly."""

    @abstractmethod
    def apply_changes(self, table: TableSchema, changes: Sequence[Any]) -> None:
        """Apply changes (``Change``; with ``transactions``, ``Event``), which are in their order.
        All of a batch come again if a part of it failed, or if its answer got lost; more changes
        may follow them then. ``change.order`` tells what was there before, since the last
        ``truncate_table``."""

    def write_row_batch(self, table: TableSchema, rows: pa.RecordBatch) -> None:
        # Arrow has no rows without columns, but Postgres has.
        values: list[Row] = [{} for _ in range(rows.num_rows)]
        if table.columns:
            values = rows.select(table.column_names).to_pylist(maps_as_pydicts="strict")
        texts: list[Any] = [None] * len(values)
        if "_exact" in rows.schema.names:
            texts = rows.column("_exact").to_pylist(maps_as_pydicts="strict")
        self.insert_rows(table, list(map(CopiedRow, values, texts)))

    def write_change_batch(self, table: TableSchema, changes: pa.RecordBatch) -> None:
        self.apply_changes(table, list(_typed(table, changes)))

    def write_events(self, changes: TableChanges) -> None:
        if not self.transactions:
            super().write_events(changes)
            return
        table, transaction = changes.schema, _Transaction()
        events: list[Event] = [Relation(table)]
        for batch in self.change_batches(changes):
            for change in _typed(table, batch):
                events += transaction.next(change)
            self.apply_changes(table, events)
            events = []
        if last := transaction.end():
            self.apply_changes(table, last)


class _Transaction:
    """The one whose changes come. It may go on in the next batch of rows."""

    def __init__(self) -> None:
        self._changes = 0
        self._last: Change | None = None

    def next(self, change: Change) -> Iterator[Event]:
        """The change, with what comes before it."""
        if self._last is None or change.lsn != self._last.lsn:
            yield from self.end()
            yield Begin(xid=change.xid, lsn=change.lsn, timestamp=change.timestamp)
        self._last = change
        self._changes += 1
        yield change

    def end(self) -> list[Event]:
        if (last := self._last) is None:
            return []
        count, self._changes, self._last = self._changes, 0, None
        return [
            Commit(xid=last.xid, lsn=last.lsn, timestamp=last.timestamp, changes=count),
        ]


def _typed(table: TableSchema, batch: pa.RecordBatch) -> Iterator[Change]:
    names = table.column_names
    identity = [column.name for column in table.identity_columns]
    for values in batch.to_pylist(maps_as_pydicts="strict"):
        about: dict[str, Any] = {
            "lsn": Lsn(values["_lsn"]),
            "seq": values["_seq"],
            "timestamp": values["_timestamp"],
            "xid": values["_xid"],
        }
        unchanged = frozenset(values["_unchanged"] or ())
        exact, old_exact = own_and_old(values["_exact"])
        row = {name: values[name] for name in names if name not in unchanged}
        match ChangeType(values["_change_type"]):
            case ChangeType.INSERT:
                yield Insert(**about, row=row, unchanged=unchanged, exact=exact)
            case ChangeType.UPDATE:
                old = values["_old"]
                if old is None:
                    # The row is found by what it still has.
                    old = {name: values[name] for name in identity}
                    old_exact = {name: exact[name] for name in identity if name in exact}
                yield Update(
                    **about,
                    row=row,
                    old=old,
                    unchanged=unchanged,
                    exact=exact,
                    old_exact=old_exact,
                )
            case ChangeType.DELETE:
                old = {name: values[name] for name in identity}
                yield Delete(**about, old=old, old_exact=exact)
            case ChangeType.TRUNCATE:
                yield Truncate(**about)
