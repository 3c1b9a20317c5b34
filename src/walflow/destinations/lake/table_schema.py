"""What a lake's table has as columns: those of the source, and ours beside them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from walflow.config.lake import Metadata, Mode, TablePlan
from walflow.destinations.lake.written_back import CHANGED_ROWS
from walflow.errors import DestinationError
from walflow.model import Column, TableName, TableSchema
from walflow.spark.changes import EXACT_TYPE
from walflow.spark.names import quoted
from walflow.spark.row_identity import may_be_inexact

__all__ = [
    "COLUMNS",
    "COPY",
    "CURRENT",
    "DELETED",
    "EXACT",
    "MODE",
    "SEQ",
    "VALID_FROM",
    "VALID_TO",
    "LakeTableSchema",
    "StoredColumn",
    "column_numbers",
    "has_columns",
    "is_as_planned",
    "keeps_dropped",
    "lake_table_schema",
    "table_properties",
]

EXACT = "_EXACT"
"""The column of overflow texts: Postgres's own text of values that their column cannot hold.
It is added to a table the first time that a row needs it."""


COPY = "copy"
"""The kind of change that rows have which came with the copy."""
MODE = "walflow.mode"
"""Under this name a table's properties have its mode."""
_METADATA = "walflow.metadata"
"""And under this one the names of its metadata columns, as JSON."""
COLUMNS = "walflow.columns"
"""Under this name they have, as JSON, which column of the source each column is: its attribute
number by its name here."""

DELETED = "_DELETED"
SEQ = "_SEQ"
VALID_FROM, VALID_TO, CURRENT = "_VALID_FROM", "_VALID_TO", "_CURRENT"


@dataclass(frozen=True, slots=True)
class StoredColumn:
    name: str
    spark_type: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class LakeTableSchema:
    """A table of the lake, as it is to be."""

    schema: TableSchema
    """Under the destination's name."""
    plan: TablePlan
    overflow: bool
    """Whether it has the column of overflow texts."""
    ours: tuple[StoredColumn, ...]
    """The columns that the mode adds, metadata among them."""

    @property
    def name(self) -> TableName:
        return self.schema.name

    @property
    def metadata(self) -> Metadata | None:
        """The names of its metadata columns; None if it has none."""
        return _metadata(self.plan)

    @property
    def columns(self) -> tuple[StoredColumn, ...]:
        source = tuple(
            StoredColumn(c.name, c.spark_type, not self._never_null(c)) for c in self.schema.columns
        )
        overflow = (StoredColumn(EXACT, EXACT_TYPE),) if self.overflow else ()
        return source + self.ours + overflow

    @property
    def ddl(self) -> str:
        """The columns, as Spark DDL."""
        return ", ".join(
            f"{quoted(c.name)} {c.spark_type}{'' if c.nullable else ' NOT NULL'}"
            for c in self.columns
        )

    def _never_null(self, column: Column) -> bool:
        # A key that its type cannot hold becomes null, with the text in the column of exact
        # texts. A history has rows of truncates, which have no values at all.
        return (
            self.plan.mode == "mirror"
            and column.name in self.schema.key
            and not may_be_inexact(column)
        )


def lake_table_schema(schema: TableSchema, plan: TablePlan, *, overflow: bool) -> LakeTableSchema:
    """The schema of the lake's table. DestinationError if a column of the source has a name of
    ours, two of ours have one name, or the mode is not one for such a table."""
    if plan.mode == "scd2" and not schema.key:
        raise _keyless(schema)
    ours = _metadata_columns(plan) + _MODE_COLUMNS[plan.mode]
    names = [EXACT, *(c.name for c in ours)]
    if twice := sorted(name for name in names if names.count(name) > 1):
        raise _not_possible(
            f"two of the columns that walflow adds to {schema.name} have the name {twice[0]}",
            "Give metadata columns other names: apply.change_type_column, apply.lsn_column, "
            "apply.timestamp_column.",
        )
    taken = {c.name for c in ours} & set(schema.column_names)
    if taken:
        raise _clash(schema, min(taken))
    # A table of a lake has a column at least: where the source has none, it is this one.
    return LakeTableSchema(schema, plan, overflow or not schema.columns, ours)


_MODE_COLUMNS: Mapping[Mode, tuple[StoredColumn, ...]] = {
    "mirror": (),
    "soft_delete": (StoredColumn(DELETED, "boolean"),),
    # With the position it is the order of all changes.
    "history": (StoredColumn(SEQ, "bigint"),),
    "scd2": (
        StoredColumn(VALID_FROM, "timestamp"),
        StoredColumn(VALID_TO, "timestamp"),
        StoredColumn(CURRENT, "boolean"),
    ),
}


def _metadata(plan: TablePlan) -> Metadata | None:
    # A history without them says nothing.
    return plan.metadata or (Metadata() if plan.mode == "history" else None)


def _metadata_columns(plan: TablePlan) -> tuple[StoredColumn, ...]:
    names = _metadata(plan)
    if names is None:
        return ()
    return (
        StoredColumn(names.change_type, "string"),
        StoredColumn(names.lsn, "bigint"),
        StoredColumn(names.timestamp, "timestamp"),
    )


def _clash(schema: TableSchema, name: str) -> DestinationError:
    return _not_possible(
        f"{schema.name} has a column {name}, which walflow adds to tables of a lake itself",
        "Rename the source's column. Metadata columns can have other names "
        "(apply.change_type_column, apply.lsn_column, apply.timestamp_column) or be left out "
        "(apply.metadata: false); columns of a mode go with another mode (apply.mode).",
    )


def _keyless(schema: TableSchema) -> DestinationError:
    return _not_possible(
        f"{schema.name} has no key, so it is not known which rows are versions of which, as mode "
        "scd2 has to",
        f"Give the table a primary key, or another mode: apply.tables.{schema.name}.mode: history",
    )


def _not_possible(message: str, hint: str) -> DestinationError:
    return DestinationError(message, hint=hint, retry=False)


def table_properties(lake_schema: LakeTableSchema) -> Mapping[str, str]:
    """What a table says of itself beside whose it is."""
    return {
        **_planned_properties(lake_schema.plan),
        COLUMNS: json.dumps(column_numbers(lake_schema.schema)),
        CHANGED_ROWS: "",
    }


def _planned_properties(plan: TablePlan) -> Mapping[str, str]:
    """So, of a table that is as planned: with other ones it is another table."""
    names = _metadata(plan)
    columns = [] if names is None else [names.change_type, names.lsn, names.timestamp]
    return {MODE: plan.mode, _METADATA: json.dumps(columns)}


def is_as_planned(plan: TablePlan, properties: Mapping[str, str]) -> bool:
    # Tables from before there were modes mirror their source, and have its columns alone.
    stored = {MODE: "mirror", _METADATA: "[]", **properties}
    return all(stored[name] == value for name, value in _planned_properties(plan).items())


def keeps_dropped(plan: TablePlan) -> bool:
    """Whether columns that the source drops stay. In a history always: its rows tell what was."""
    return plan.on_column_dropped == "keep" or plan.mode == "history"


def has_columns(properties: Mapping[str, str], names: Collection[str], schema: TableSchema) -> bool:
    """Whether a table with these columns, which says this of itself, has those of the schema. One
    that was set back may have the columns of then."""
    said = json.loads(properties.get(COLUMNS, "{}"))
    return all(
        name in names and (not number or said.get(name, number) == number)
        for name, number in column_numbers(schema).items()
    )


def column_numbers(schema: TableSchema) -> dict[str, int]:
    return {column.name: column.attnum for column in schema.columns}
