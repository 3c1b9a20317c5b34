"""Following a change of the source table's schema.

The table's property COLUMNS has the attribute number of each column. So a column that was dropped
and created again is not mistaken for the former one, however far an earlier attempt came. Until
the property has the new schema, the table's names have their former meaning; afterwards, the new
one. In between, columns whose name another column needs get a temporary name. A format that can do
all this in one commit does.

Existing rows:

- an added column has the value that Postgres shows in rows from before it, in every mode: a row
  looks the same whether it was written before or after the column was added;
- a dropped column goes with its values, or stays if the settings say so (and always in a
  history). It is then null in later rows. It keeps its name until another column gets that name,
  then it is called ``<name>__dropped_<n>``, with its attribute number. A new copy does not have
  it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from walflow.destinations.lake.format import ColumnChanges, LakeFormat, NewColumn, Stored
from walflow.destinations.lake.owner import Owner, Stamp
from walflow.destinations.lake.table_schema import (
    COLUMNS,
    EXACT,
    LakeTableSchema,
    column_numbers,
    keeps_dropped,
)
from walflow.destinations.lake.written_back import CHANGED_ROWS, said_of
from walflow.evolution import Evolution, NotFollowed
from walflow.model import Lsn
from walflow.spark.changes import EXACT_TYPE
from walflow.spark.names import literal, quoted
from walflow.spark.row_identity import may_be_inexact
from walflow.spark.schema_changes import missing_value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructField

__all__ = ["change_schema"]


def change_schema(
    spark: SparkSession,
    format: LakeFormat,
    lake_schema: LakeTableSchema,
    evolution: Evolution,
    owner: Owner,
) -> None:
    """Bring the table to the lake schema, which is that of ``evolution.after``. Its position
    stays. Repeats safely, from wherever a former try broke off. NotFollowed: only a new copy can do
    it."""
    stored = format.look(spark, lake_schema.name)
    if stored is None:
        raise NotFollowed("there is no table to be changed")
    names = _names(lake_schema, evolution, stored)
    format.check_names(
        lake_schema.name, names.later_names | {column.name for column in lake_schema.columns}
    )
    change = _Change(spark, format, lake_schema, evolution, names, stored.position)
    stamp = None if stored.position is None else Stamp(owner, stored.position, stored.position)
    with nullcontext() if stamp is None else format.stamped(spark, stamp):
        if lake_schema.overflow and EXACT not in stored.columns:
            # The source's table loses its last column, and a table of a lake has one at least.
            format.add_column(spark, lake_schema.name, EXACT, EXACT_TYPE)
        if not change.names.meant:
            change.move()
        change.complete()


@dataclass(frozen=True, slots=True)
class _Names:
    """Of the source's columns in the table, by attribute number."""

    before: Mapping[int, str]
    after: Mapping[int, str]
    """With those of columns that are kept."""
    meant: bool
    """Whether names in the table have their new meaning already."""

    @property
    def later_names(self) -> frozenset[str]:
        return frozenset(self.after.values())

    def moved(self) -> dict[int, tuple[str, str]]:
        """The columns that get another name, with both."""
        both = {number: (name, self.after.get(number)) for number, name in self.before.items()}
        return {n: (old, new) for n, (old, new) in both.items() if new is not None and new != old}

    def dropped(self) -> list[str]:
        return [name for number, name in self.before.items() if number not in self.after]


def _names(lake_schema: LakeTableSchema, evolution: Evolution, stored: Stored) -> _Names:
    before, after = column_numbers(evolution.before), column_numbers(evolution.after)
    said = stored.properties.get(COLUMNS)
    numbers: dict[str, int] = before if said is None else json.loads(said)
    gone = (
        set()
        if keeps_dropped(lake_schema.plan)
        else {column.attnum for column in evolution.dropped}
    )
    meant = after.items() <= numbers.items() and gone.isdisjoint(numbers.values())
    if not meant and not before.items() <= numbers.items():
        raise NotFollowed("the destination's table has columns of neither schema")
    later = dict(after)
    for name, number in numbers.items():
        if number not in after.values() and number not in gone:
            aside = name if name not in later else f"{name}__dropped_{number}"
            if aside in later:
                raise NotFollowed(f"column {aside} has the name of one that is kept")
            later[aside] = number
    return _Names(
        {number: name for name, number in (before if meant else numbers).items()},
        {number: name for name, number in later.items()},
        meant,
    )


@dataclass(frozen=True, slots=True)
class _Change:
    spark: SparkSession
    format: LakeFormat
    lake_schema: LakeTableSchema
    evolution: Evolution
    names: _Names
    position: Lsn | None
    """The table's; it stays."""

    @property
    def identifier(self) -> str:
        return self.format.identifier(self.lake_schema.name)

    def move(self) -> None:
        """Make the names mean what they are to mean."""
        fields = self._fields()
        self._check_free(fields)
        later = self.names.later_names
        # A name that another column gets would not tell afterwards whose text it is.
        self._rename_overflow(
            {old: _aside(n) for n, (old, _) in self.names.moved().items() if old in later},
            [name for name in self.names.dropped() if name in later],
        )
        numbers = {name: number for number, name in self.names.after.items()}
        properties = {COLUMNS: json.dumps(numbers)}
        untouched = fields.keys() >= set(self.names.before.values())
        if untouched and self._change_at_once(fields, properties):
            return
        clauses = [f"DROP COLUMN {quoted(n)}" for n in self.names.dropped() if n in fields]
        for number, (old, new) in self.names.moved().items():
            if old in fields:
                free = new not in self.names.before.values()
                clauses.append(_rename(old, new if free else _aside(number)))
        said = f"SET TBLPROPERTIES ({literal(COLUMNS)} = {literal(properties[COLUMNS])})"
        self.format.alter(self.spark, self.lake_schema.name, *clauses, said)

    def _check_free(self, fields: Mapping[str, StructField]) -> None:
        """None of the names that columns get may be another's, which is not the source's."""
        given = {new for _, new in self.names.moved().values()}
        given |= {column.name for column in self.evolution.added}
        for name in given & (fields.keys() - self.names.before.values()):
            # By a former try, which got so far with this one.
            if not any(
                new == name and old not in fields for old, new in self.names.moved().values()
            ):
                raise NotFollowed(f"the destination's table has a column {name} already")

    def _change_at_once(
        self, fields: Mapping[str, StructField], properties: Mapping[str, str]
    ) -> bool:
        before = self.names.before
        changes = ColumnChanges(
            dropped=tuple(self.names.dropped()),
            renamed=dict(self.names.moved().values()),
            widened={old.name: new.spark_type for old, new in self.evolution.widened},
            nullable=frozenset(
                before[number]
                for number, name in self.names.after.items()
                if number in before and self._needs_nulls(fields[before[number]], name)
            ),
            added=self._added(),
            properties=properties,
        )
        return self.format.change_columns(self.spark, self.lake_schema.name, changes)

    def complete(self) -> None:
        """Do what is left to do; the names mean what they are to mean."""
        fields = self._fields()
        added = {column.attnum for column in self.evolution.added}
        clauses = [
            _rename(_aside(number), name)
            for number, name in self.names.after.items()
            if _aside(number) in fields and number not in added
        ]
        # At once, and even if there is nothing to do: below, rows are read.
        self.format.alter(self.spark, self.lake_schema.name, *clauses)
        fields = self._fields()
        clauses = [
            f"ALTER COLUMN {quoted(new.name)} TYPE {new.spark_type}"
            for _, new in self.evolution.widened
            if fields[new.name].dataType.simpleString() != new.spark_type
        ]
        clauses += [
            f"ALTER COLUMN {quoted(name)} DROP NOT NULL"
            for name in self.names.after.values()
            if name in fields and self._needs_nulls(fields[name], name)
        ]
        if clauses:
            self.format.alter(self.spark, self.lake_schema.name, *clauses)
        for column in self._added():
            if column.name not in fields:
                self._add(column, fields)
        self._complete_overflow()

    def _needs_nulls(self, field: StructField, name: str) -> bool:
        never_null = any(c.name == name and not c.nullable for c in self.lake_schema.columns)
        return not field.nullable and not never_null

    def _added(self) -> tuple[NewColumn, ...]:
        """In their order, each after the one that it comes after at the source."""
        names = self.evolution.after.column_names
        return tuple(
            NewColumn(
                column.name,
                column.spark_type,
                names[place - 1] if place else None,
                self.evolution.missing.get(column.name),
            )
            for place, column in enumerate(self.evolution.after.columns)
            if column in self.evolution.added
        )

    def _add(self, column: NewColumn, fields: Mapping[str, StructField]) -> None:
        place = "FIRST" if column.after is None else f"AFTER {quoted(column.after)}"
        source = self.evolution.after.column(column.name)
        # Under its name only with its values.
        name = column.name if column.value is None else _aside(source.attnum)
        if name not in fields:
            added = f"ADD COLUMN {quoted(name)} {column.spark_type} {place}"
            self.format.alter(self.spark, self.lake_schema.name, added)
        if column.value is not None:
            self.spark.sql(
                f"UPDATE {self.identifier}"
                f" SET {quoted(name)} = {missing_value(self.evolution, source)}"
                f" WHERE {quoted(name)} IS NULL"
            )
            self._note_rows()
            self.format.alter(self.spark, self.lake_schema.name, _rename(name, column.name))

    # The texts of values that a column does not hold are named by the column.

    def _complete_overflow(self) -> None:
        later, before = self.names.later_names, self.evolution.before
        inexact = {column.attnum for column in before.columns if may_be_inexact(column)}
        moved = self.names.moved()
        names = {_aside(number): new for number, new in self.names.after.items()}
        names |= {old: new for n, (old, new) in moved.items() if n in inexact and old not in later}
        dropped = {column.name for column in before.columns if column.attnum in inexact}
        gone = [name for name in self.names.dropped() if name in dropped and name not in later]
        if gone or moved or self.evolution.dropped:
            self._rename_overflow(names, gone)

    def _rename_overflow(self, names: Mapping[str, str], dropped: list[str]) -> None:
        """The texts that have one of the names get the other; those of dropped columns go."""
        if not self.lake_schema.overflow or not (names or dropped):
            return
        either = ", ".join(literal(name) for name in (*names, *dropped))
        concerned = f"arrays_overlap(map_keys({EXACT}), array({either}))"
        if self.spark.table(self.identifier).where(concerned).isEmpty():
            return
        texts = EXACT
        if dropped:
            gone = ", ".join(map(literal, dropped))
            texts = f"map_filter({texts}, (name, text) -> name NOT IN ({gone}))"
        if names:
            pairs = ", ".join(f"{literal(old)}, {literal(new)}" for old, new in names.items())
            given = f"coalesce(try_element_at(map({pairs}), name), name)"
            texts = f"transform_keys({texts}, (name, text) -> {given})"
        self.spark.sql(
            f"UPDATE {self.identifier} SET {EXACT} = CASE WHEN size({texts}) > 0 THEN {texts} END"
            f" WHERE {concerned}"
        )
        self._note_rows()

    def _note_rows(self) -> None:
        """The newest commit changed rows, see lake.written_back."""
        if self.position is None:
            return
        newest = self.format.versions(self.spark, self.lake_schema.name)[-1]
        said = said_of(self.position, newest.id)
        self.format.alter(
            self.spark,
            self.lake_schema.name,
            f"SET TBLPROPERTIES ({literal(CHANGED_ROWS)} = {literal(said)})",
        )

    def _fields(self) -> dict[str, StructField]:
        return {field.name: field for field in self.spark.table(self.identifier).schema.fields}


def _aside(number: int) -> str:
    """The name of a column that cannot have its own yet."""
    return f"_walflow_{number}"


def _rename(old: str, new: str) -> str:
    return f"RENAME COLUMN {quoted(old)} TO {quoted(new)}"
