"""Your own destination, made one that a pipeline can call.

It needs ``name``, ``truncate_table``, ``write_table_rows`` and ``write_events``. Whatever of the
methods in ``OptionalCalls`` it has is found by its name, and used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from walflow.destinations.base import Capabilities, Destination, TableChanges, TableCopy
from walflow.errors import ConfigError
from walflow.evolution import Evolution
from walflow.model import Lsn, TableName, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BasicDestination", "OptionalCalls", "OwnDestination", "adapted", "capabilities_of"]

_BASIC = ("name", "truncate_table", "write_table_rows", "write_events")


class BasicDestination(Protocol):
    """The least that a destination must do."""

    @property
    def name(self) -> str: ...

    def truncate_table(self, table: TableSchema) -> None:
        """Make the table empty before a copy; it may not exist yet. Repeats safely."""

    def write_table_rows(self, table: TableSchema, rows: DataFrame) -> None:
        """Append rows of the copy, with a column ``_exact`` if some need it. Empty rows create
        the table. May be called several times after one truncate_table."""

    def write_events(self, changes: TableChanges) -> None:
        """Apply the changes of one table. The same ones may come again, alone or with more, and
        must then change nothing. Calls for other tables go on at the same time."""


class OptionalCalls(Protocol):
    """What else a destination may have: each method alone, but ``applied`` with ``mark_applied``,
    and ``maintain`` with ``maintenance_due``. Where nothing is said, it is what the method of
    ``walflow.destinations.base.Destination`` is, which has the same name or the one in brackets."""

    def startup(self) -> None: ...
    def break_off(self) -> None: ...
    def shutdown(self) -> None: ...
    def check_writable(self) -> None: ...

    def applied(self, table: TableSchema) -> Lsn | None: ...

    def mark_applied(self, table: TableSchema, position: Lsn) -> None:
        """Called when the copy is complete: the table has all up to the position."""

    def swap_table(self, shadow: TableSchema, table: TableSchema) -> None:
        """Make the shadow the table: a copy is then written to a shadow, and readers see the former
        table until it is complete. There may be none so far. The former one is gone after it; a
        position that was marked on the shadow is the table's. Repeats safely."""

    def change_table(self, evolution: Evolution) -> None:
        """(``evolve``)"""

    def maintenance_due(self, table: TableSchema) -> bool: ...
    def maintain(self, table: TableSchema) -> None: ...

    def rename_table(self, table: TableSchema, name: TableName) -> bool:
        """(``rename``)"""

    def drop_table(self, table: TableSchema) -> None:
        """(``drop``)"""

    def own_tables(self) -> Iterable[TableName]: ...


def adapted(given: object) -> Destination:
    """What was given, as a pipeline calls it. ConfigError if it is no destination."""
    if isinstance(getattr(given, "capabilities", None), Capabilities):
        return cast("Destination", given)
    if lacking := [name for name in _BASIC if not hasattr(given, name)]:
        raise ConfigError(
            f"{type(given).__name__} is not a destination: it lacks {', '.join(lacking)}.",
            hint="walflow.destinations.rowwise.RowwiseDestination is a base to begin with.",
        )
    return OwnDestination(given)


def capabilities_of(kind: object) -> Capabilities:
    """Of a destination, or of its class."""
    declared = getattr(kind, "capabilities", None)
    if isinstance(declared, Capabilities):
        return declared
    return Capabilities(
        keeps_position=_has(kind, "applied") and _has(kind, "mark_applied"),
        evolves=_has(kind, "change_table"),
        renames=_has(kind, "rename_table"),
        drops=_has(kind, "drop_table"),
        checks=_has(kind, "check_writable"),
    )


def _has(kind: object, name: str) -> bool:
    return callable(getattr(kind, name, None))


class OwnDestination(Destination):
    """A destination that has the basic methods, and some of the optional ones."""

    def __init__(self, given: object) -> None:
        self.given: Any = given
        self.capabilities = capabilities_of(given)

    @property
    def name(self) -> str:
        name: str = self.given.name
        return name

    def startup(self) -> None:
        self._call("startup")

    def break_off(self) -> None:
        self._call("break_off")

    def shutdown(self) -> None:
        self._call("shutdown")

    def check_writable(self) -> None:
        self._call("check_writable")

    def copy(self, copy: TableCopy) -> None:
        given, table = self.given, copy.schema
        target = _shadow_of(table) if self._swaps else table
        given.truncate_table(target)
        given.write_table_rows(target, copy.rows)
        if self.capabilities.keeps_position:
            given.mark_applied(target, copy.position)
        if self._swaps:
            given.swap_table(target, table)

    def applied(self, table: TableSchema) -> Lsn | None:
        position: Lsn | None = self.given.applied(table)
        return position

    def apply(self, changes: TableChanges) -> None:
        self.given.write_events(changes)

    def evolve(self, evolution: Evolution) -> None:
        self.given.change_table(evolution)

    def maintenance_due(self, table: TableSchema) -> bool:
        return bool(self._call("maintenance_due", table))

    def maintain(self, table: TableSchema) -> None:
        self._call("maintain", table)

    def rename(self, table: TableSchema, name: TableName) -> bool:
        return bool(self.given.rename_table(table, name))

    def drop(self, table: TableSchema) -> None:
        self.given.drop_table(table)
        if self._swaps:
            # A copy that was broken off may have left one.
            self.given.drop_table(_shadow_of(table))

    def own_tables(self) -> Iterable[TableName]:
        names: Iterable[TableName] = self._call("own_tables") or ()
        return names

    @property
    def _swaps(self) -> bool:
        return _has(self.given, "swap_table")

    def _call(self, name: str, *args: object) -> Any:
        method = getattr(self.given, name, None)
        return None if method is None else method(*args)


def _shadow_of(table: TableSchema) -> TableSchema:
    """The table that a copy is written to before it takes the table's place."""
    return replace(table, name=TableName(table.name.schema, f"{table.name.name}__walflow_new"))
