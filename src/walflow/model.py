"""The nouns: positions, names, columns, schemas, spans and phases.

Values only. They are frozen, hashable, picklable (Spark executors receive them), and do not depend
on connections, files or Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from pydantic_core import core_schema

__all__ = [
    "OLD_EXACT",
    "ChangeStats",
    "ChangeType",
    "Column",
    "CopyFile",
    "Lsn",
    "PageRange",
    "PgType",
    "Phase",
    "ReplicaIdentity",
    "Span",
    "TableName",
    "TableSchema",
    "quote_identifier",
]


OLD_EXACT = "_old."
"""The prefix of a column's name in the change log's ``_exact``, if the text belongs to the value in
``_old``."""


class Lsn(int):
    """A position in the write-ahead log: an integer that prints as Postgres prints it."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse Postgres's notation, ``16/B374D848``."""
        high, slash, low = text.partition("/")
        if not slash:
            raise ValueError(f"not a log position: {text!r} (expected a form like 16/B374D848)")
        return cls((int(high, 16) << 32) | int(low, 16))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        """In JSON: the integer."""
        return core_schema.no_info_after_validator_function(cls, core_schema.int_schema())

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({self})"


def quote_identifier(name: str) -> str:
    """A name in Postgres's double quotes, for SQL."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``schema.table``. Everything after the first dot is the table's name."""
        schema, dot, name = text.partition(".")
        if not dot:
            raise ValueError(f"not a table's name: {text!r} (expected a form like public.orders)")
        return cls(schema, name)

    @property
    def quoted(self) -> str:
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.name)}"

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


class ReplicaIdentity(StrEnum):
    """What Postgres logs of the old row of an update or delete (pg_class.relreplident)."""

    DEFAULT = "d"
    INDEX = "i"
    FULL = "f"
    NOTHING = "n"


class ChangeType(StrEnum):
    """The values of the change log's ``_change_type`` column."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"


@dataclass(frozen=True, slots=True)
class ChangeStats:
    """What the changes of one table contain, and so how they must be applied. Statistics can be
    added: ``a + b`` describes both together."""

    rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    key_changes: int = 0
    """Rows with an ``_old``."""
    truncates: int = 0
    unchanged: bool = False
    """Whether some row lacks values, because Postgres did not send them."""
    overflow: bool = False
    """Whether some row has a value that its column could not hold."""
    last_truncate: tuple[int, int] | None = None
    """(lsn, seq) of the last truncate: nothing before it matters."""
    incomplete: bool = False
    """Whether an insert lacks values, as when an update makes a row match a row filter."""

    def __add__(self, other: ChangeStats) -> ChangeStats:
        truncates = [t for t in (self.last_truncate, other.last_truncate) if t is not None]
        return ChangeStats(
            rows=self.rows + other.rows,
            inserts=self.inserts + other.inserts,
            updates=self.updates + other.updates,
            deletes=self.deletes + other.deletes,
            key_changes=self.key_changes + other.key_changes,
            truncates=self.truncates + other.truncates,
            unchanged=self.unchanged or other.unchanged,
            overflow=self.overflow or other.overflow,
            incomplete=self.incomplete or other.incomplete,
            last_truncate=max(truncates, default=None),
        )


@dataclass(frozen=True, slots=True)
class PgType:
    """A Postgres type, reduced to what decides how its values are written.

    Domains are resolved: ``oid`` is the declared type, ``base`` the type whose text and binary
    format the values have, ``typmod`` the modifier that applies to that base.
    """

    name: str
    """As Postgres prints it, modifiers included: ``numeric(12,2)``, ``mood[]``."""
    oid: int
    base: int
    typmod: int = -1
    element: PgType | None = None
    """The element type, for arrays and domains over arrays."""
    delimiter: str = ","
    """The delimiter of elements in this array's text (``;`` for box[])."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: PgType
    spark_type: str
    """The column's type in the change log and in destinations, as Spark DDL: ``decimal(12,2)``."""
    nullable: bool = True
    attnum: int = 0
    """pg_attribute.attnum, which stays the same when a column is renamed. 0: not known."""
    missing: str | None = None
    """The column's value in rows from before it was added, as text (pg_attribute's attmissingval,
    the constant default that it was added with). None: null."""
    missing_known: bool = True
    """Whether ``missing`` is certain. It is not where partitions differ, or where the type does not
    hold it."""
    altered: int = 0
    """The transaction that last altered it before this schema (pg_attribute.xmin). As long as no
    later one has, the column has its name and type. 0: not known."""


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The published columns and key of a table from one log position on."""

    oid: int
    name: TableName
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """Names of the columns that identify a row, in column order. Empty: only the whole row does."""
    replica_identity: ReplicaIdentity = ReplicaIdentity.DEFAULT
    version: Lsn = Lsn(0)
    """The first position at which rows had this schema."""
    filenodes: frozenset[int] = frozenset()
    """The files (relfilenodes) of its rows when the schema was read. If one is gone later, it was
    rewritten (or truncated). Empty: not known. Not compared by ``same_schema``."""
    unpublished: frozenset[int] = frozenset()
    """The attribute numbers of its unpublished columns. Not compared by ``same_schema``."""
    newest: int = 0
    """The greatest attribute number so far, if known. A column that is added later has a greater
    one. Not compared by ``same_schema``."""

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def key_columns(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.name in self.key)

    @property
    def identity_columns(self) -> tuple[Column, ...]:
        """The columns that identify an old row: the key, or for keyless tables all columns."""
        return self.key_columns or self.columns

    @property
    def numbered(self) -> bool:
        """Whether the attribute numbers of all columns are known, so that renames can be
        followed."""
        return all(column.attnum for column in self.columns)

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def same_schema(self, other: TableSchema) -> bool:
        """Whether rows of both can be in one file and one table. What only the catalog has
        (nullability, attribute numbers) does not count."""
        return self._identity == other._identity

    def same_columns(self, other: TableSchema) -> bool:
        """Whether both are the same schema, and no column was dropped and created again in
        between."""
        mine = [column.attnum for column in self.columns]
        return self.same_schema(other) and mine == [column.attnum for column in other.columns]

    @property
    def _identity(self) -> tuple[object, ...]:
        columns = [(column.name, column.spark_type, column.type.base) for column in self.columns]
        return (self.oid, self.name, self.key, self.replica_identity, tuple(columns))


@dataclass(frozen=True, slots=True)
class PageRange:
    """Some pages of one relation."""

    relation: int
    """The relation's oid."""
    first_page: int
    end_page: int | None
    """The first page after the range. None: the range ends with the relation, however much that
    grows."""
    bytes: int = 0
    """How much there is to read, roughly."""


@dataclass(frozen=True, slots=True)
class CopyFile:
    """A Parquet file with rows of a table."""

    name: str
    """Relative to the copy's folder."""
    rows: int
    bytes: int
    overflow: bool
    """Whether it has the column of overflow texts."""
    checksum: int
    """Of its content."""


@dataclass(frozen=True, slots=True)
class Span:
    """The part ``(after, upto]`` of the log; both ends are ends of transactions."""

    after: Lsn
    upto: Lsn

    def __post_init__(self) -> None:
        if self.upto < self.after:
            raise ValueError(f"a span cannot end ({self.upto}) before it begins ({self.after})")

    def __str__(self) -> str:
        return f"({self.after}, {self.upto}]"


class Phase(StrEnum):
    """The state of a table on its way from its first copy to live changes."""

    INIT = "Init"
    """It waits for its turn to be copied."""
    DATA_SYNC = "DataSync"
    """Its rows are read from the source into the change log, under one snapshot."""
    FINISHED_COPY = "FinishedCopy"
    """All rows are read, and are loaded into the destination."""
    SYNC_WAIT = "SyncWait"
    """It waits until the change log has passed the position of its copy."""
    CATCHUP = "Catchup"
    """The changes since its copy, which the log has collected, are applied."""
    SYNC_DONE = "SyncDone"
    """It has reached the position of the other tables."""
    READY = "Ready"
    """Its changes are applied as they are committed."""
    ERRORED = "Errored"
    """It is set aside; the log keeps its changes, and the other tables go on."""
