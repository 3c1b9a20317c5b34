"""Tables that are shown by a view, from their copy to their end: three things that are one table.

A table ``t`` has its rows in ``t__base``, what came since in ``t__changes``, and is the view
``t`` where the catalog keeps views. While there is a table ``t``, that is the table, and the parts
are what is left of another one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from pyarrow import parquet
from pyspark.errors import AnalysisException

from walflow.destinations.lake.batch import Batch
from walflow.destinations.lake.format import LakeFormat, Stored
from walflow.destinations.lake.freshness.appending import append_batch
from walflow.destinations.lake.freshness.folding import Unfolded, fold
from walflow.destinations.lake.freshness.parts import (
    PART_OF,
    Formed,
    Parts,
    base_form,
    base_of,
    changes_of,
    changes_schema,
    form_properties,
    formed_property,
    have_one_schema,
    part_properties,
    said_by_parts,
    stored_parts,
    whole_of,
    why_merged,
)
from walflow.destinations.lake.freshness.shown import show
from walflow.destinations.lake.owner import Owner, Stamp, check_owner, is_owned
from walflow.destinations.lake.schema_changes import change_schema
from walflow.destinations.lake.table_schema import LakeTableSchema, TablePlan
from walflow.errors import DestinationError, DestinationForeign
from walflow.evolution import Evolution, NotFollowed
from walflow.failpoints import failpoint
from walflow.model import Lsn, TableName
from walflow.spark.causes import cause_of
from walflow.spark.names import literal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ViewedTables"]

_logger = structlog.get_logger(__name__)


class ViewedTables:
    """Calls get a session that is the caller's alone, as those of the format do."""

    def __init__(self, format: LakeFormat, owner: Owner) -> None:
        self._format = format
        self._owner = owner
        self._unfolded = Unfolded()

    # What there is.

    def look(self, spark: SparkSession, name: TableName) -> Stored | None:
        """The parts as one table; None: there are none, or not of one copy. DestinationForeign if
        they are not ours."""
        if (stored := self.anyones(spark, name)) is not None:
            check_owner(self._format.identifier(base_of(name)), self._owner, stored.properties)
        return stored

    def anyones(self, spark: SparkSession, name: TableName) -> Stored | None:
        """So too, whoever owns them."""
        base = self._part(spark, base_of(name), name)
        return base and stored_parts(base, self._part(spark, changes_of(name), name))

    def opened(self, spark: SparkSession, parts: Parts) -> None:
        """Get the table ready to be followed: its view may be missing after a crash.

        If that was while the parts' form changed, there is nothing that a view could show: it is
        made when the change is done."""
        base, changes = (self._format.look(spark, part) for part in (parts.base, parts.changes))
        if base is not None and changes is not None and have_one_schema(base, changes):
            show(self._format, spark, parts)
        self._count(spark, parts)

    def whole(self, spark: SparkSession, names: Iterable[TableName]) -> list[TableName]:
        """The tables that these are, or are parts of."""
        found = set()
        for name in names:
            stored = self._format.look(spark, name) if name.name.endswith(_SUFFIXES) else None
            found.add((stored and whole_of(name, stored)) or name)
        return sorted(found)

    def without_parts(self, name: TableName, stored: Stored) -> Stored:
        """The stored table, which has this name, as the one that it is. DestinationError if it is a
        part of another."""
        if (whole := whole_of(name, stored)) is not None:
            raise _taken(self._format.identifier(name), whole)
        # If there is the property, it was a base until it got the table's name.
        others = {key: value for key, value in stored.properties.items() if key != PART_OF}
        return replace(stored, properties=others)

    def _part(self, spark: SparkSession, part: TableName, whole: TableName) -> Stored | None:
        stored = self._format.look(spark, part)
        return stored if stored and stored.properties.get(PART_OF) == str(whole) else None

    def _own_part(self, spark: SparkSession, part: TableName, whole: TableName) -> bool:
        stored = self._part(spark, part, whole)
        return stored is not None and is_owned(self._owner, stored.properties)

    # Copies.

    def wanted(self, lake_schema: LakeTableSchema, files: Sequence[Path]) -> bool:
        """Whether a copy that is in these files is to be shown by a view."""
        plan, reason = lake_schema.plan, why_merged(lake_schema)
        if plan.freshness == "merge":
            return False
        if plan.freshness == "auto":
            can_be = self._format.keeps_views and reason is None
            return can_be and _rows_in(files) >= plan.view_from_rows
        if reason is not None:
            _logger.warning(
                "a table cannot be shown by a view", table=str(lake_schema.name), why=reason
            )
            return False
        return True

    def is_as_wanted(self, lake_schema: LakeTableSchema, stored: Stored) -> bool:
        """Whether the table is, or is not, shown by a view, as the plan says."""
        is_viewed, can_be = PART_OF in stored.properties, why_merged(lake_schema) is None
        if lake_schema.plan.freshness == "auto":
            # One that cannot be may be from before that was known.
            return can_be or not is_viewed
        return is_viewed == (lake_schema.plan.freshness == "view" and can_be)

    def replace(
        self,
        spark: SparkSession,
        lake_schema: LakeTableSchema,
        stamp: Stamp,
        copy: Callable[[LakeTableSchema], None],
    ) -> LakeTableSchema:
        """Make the table from a copy, which ``copy`` puts into a table of the form that it is
        given, with the stamp. Readers of the view see the former rows or these; if there was a
        table in its place, there is nothing for a moment. Repeats safely."""
        self._check_free(spark, lake_schema.name)
        formed = self._formed_by_copy(spark, lake_schema)
        self._settle(spark, lake_schema.name)
        said = {**part_properties(lake_schema, uuid.uuid4().hex), **formed}
        lake_schema = replace(lake_schema, more_properties=said)
        copy(base_form(lake_schema))
        failpoint("view.copied", lake_schema.name)
        self._replace_changes(spark, lake_schema, stamp)
        if self._format.look(spark, lake_schema.name) is not None:
            self._format.drop(spark, lake_schema.name)
        parts = Parts(
            lake_schema.name,
            tuple(column.name for column in lake_schema.columns),
            lake_schema.schema.key,
        )
        self.opened(spark, parts)
        if not self._format.keeps_views:
            _logger.info(
                "a table is to be read through a view, and the catalog keeps none",
                table=str(lake_schema.name),
                hint=f"`walflow view {lake_schema.name}` prints the view.",
            )
        return lake_schema

    def _check_free(self, spark: SparkSession, name: TableName) -> None:
        """Whether parts and view can have their names, or have them already."""
        ours = False
        for part in (base_of(name), changes_of(name)):
            if (found := self._format.look(spark, part)) is not None:
                if found.properties.get(PART_OF) != str(name):
                    raise _taken(self._format.identifier(part), name)
                check_owner(self._format.identifier(part), self._owner, found.properties)
                ours = True
        identifier = self._format.identifier(name)
        if ours or not self._format.keeps_views or self._format.look(spark, name) is not None:
            return
        if _is_readable(spark, identifier):
            raise DestinationForeign(
                f"the view {identifier} exists and was not made by walflow",
                hint=f"Use another catalog, or remove the view: DROP VIEW {identifier};",
            )

    def _formed_by_copy(
        self, spark: SparkSession, lake_schema: LakeTableSchema
    ) -> Mapping[str, str]:
        """Versions from before the copy can still be shown if it is of the form that they have."""
        before = Parts.of(lake_schema.name, self.look(spark, lake_schema.name))
        names = {column.name for column in lake_schema.columns}
        if before and (set(before.columns), before.key) == (names, lake_schema.schema.key):
            return formed_property(before.base_formed, before.changes_formed)
        now = Formed(int(time.time() * 1000))
        return formed_property(now, now)

    def _settle(self, spark: SparkSession, name: TableName) -> None:
        """Leave no changes that the rows of a new copy would be hidden by."""
        stored = self.look(spark, name)
        parts = Parts.of(name, stored)
        if stored is None or parts is None or stored.position is None:
            return
        try:
            self.fold(spark, parts, stored.position)
        except Exception as error:
            # A table that is broken is no reason not to copy it again.
            _logger.warning(
                "changes of a table's former copy could not be merged",
                table=str(name),
                error=cause_of(error).message,
            )

    def _replace_changes(
        self, spark: SparkSession, lake_schema: LakeTableSchema, stamp: Stamp
    ) -> None:
        lake_schema = changes_schema(lake_schema)
        if not self._format.adopt(spark, lake_schema, [], {}, stamp):
            nothing = spark.createDataFrame([], lake_schema.ddl.replace(" NOT NULL", ""))
            self._format.replace(nothing, lake_schema, stamp)

    # Changes.

    def apply(self, batch: Batch, upto: Lsn, stored: Stored) -> LakeTableSchema:
        """Append the round, in exactly one commit; the session stamps it."""
        lake_schema = replace(batch.lake_schema, more_properties=said_by_parts(stored))
        lake_schema = append_batch(replace(batch, lake_schema=lake_schema), upto)
        stats = batch.changes.stats
        # A truncate has named all keys.
        removed = self._unfolded.base_rows(lake_schema.name) if batch.changes.truncated else 0
        self._unfolded.appended(lake_schema.name, stats.rows + removed)
        return lake_schema

    def fold_due(self, name: TableName, plan: TablePlan) -> bool:
        return self._unfolded.due(name, plan)

    def fold(self, spark: SparkSession, parts: Parts, position: Lsn) -> None:
        """Merge all changes, which are those up to the position, into the base. Repeats safely."""
        if not spark.table(self._format.identifier(parts.changes)).isEmpty():
            fold(self._format, spark, parts, self._owner, position)
        self._count(spark, parts)

    def change(
        self,
        spark: SparkSession,
        lake_schema: LakeTableSchema,
        evolution: Evolution,
        stored: Stored,
    ) -> None:
        """Bring the table to the form, as change_form does. Readers of the view may be refused for
        a moment, and never see values under another column's name."""
        if (reason := why_merged(lake_schema)) is not None:
            raise NotFollowed(f"it is shown by a view, which it cannot be any more: {reason}")
        parts = Parts.of(lake_schema.name, stored)
        if parts is not None and stored.position is not None:
            self.fold(spark, parts, stored.position)
        for part in (base_form(lake_schema), changes_schema(lake_schema)):
            failpoint("view.changing", part.name)
            change_schema(spark, self._format, part, evolution, self._owner)
            properties = form_properties(lake_schema, self._format.look(spark, part.name))
            self._say(spark, part.name, properties)
        if (parts := Parts.of(lake_schema.name, self.look(spark, lake_schema.name))) is not None:
            show(self._format, spark, parts)
            if stored.position is not None:
                self._begin_versions(spark, parts, stored.position)

    def _begin_versions(self, spark: SparkSession, parts: Parts, position: Lsn) -> None:
        """Commit versions of the new form, to be read instead of those with the same rows."""
        formed = []
        for part in (parts.base, parts.changes):
            stored = self._format.look(spark, part)
            since = None if stored is None else stored.position
            stamp = Stamp(self._owner, position, since)
            with self._format.stamped(spark, stamp):
                self._format.touch(spark, part)
            newest = self._format.versions(spark, part)[-1]
            former = self._format.versions_at(spark, {part: position}).get(part)
            formed.append(Formed(newest.milliseconds, newest.id, former))
        self._say(spark, parts.base, formed_property(*formed))

    def _say(self, spark: SparkSession, part: TableName, properties: Mapping[str, str]) -> None:
        said = ", ".join(f"{literal(name)} = {literal(v)}" for name, v in properties.items())
        self._format.alter(spark, part, f"SET TBLPROPERTIES ({said})")

    def _count(self, spark: SparkSession, parts: Parts) -> None:
        base, changes = (self._format.rows(spark, part) for part in (parts.base, parts.changes))
        self._unfolded.found(parts.name, base, changes)

    # The end.

    def merge(self, spark: SparkSession, parts: Parts, position: Lsn) -> bool:
        """Make it a table that changes are merged into, without a copy. False if the base cannot
        get the view's name, and then nothing has happened."""
        if not self._format.keeps_views:
            # It keeps folders, which have their names.
            return False
        self.fold(spark, parts, position)
        self.hide(spark, parts.name)
        if not self._format.rename(spark, parts.base, parts.name):
            show(self._format, spark, parts)
            return False
        self.drop_parts(spark, parts.name)
        return True

    def hide(self, spark: SparkSession, name: TableName) -> None:
        """Give the view's name free, if there is a view of ours."""
        if self._format.keeps_views and self._own_part(spark, base_of(name), name):
            self._format.drop_view(spark, name)

    def drop_parts(self, spark: SparkSession, name: TableName) -> None:
        """Remove the parts, if they are there and ours; the view is hidden."""
        # The base last: by it the view is known to be ours.
        for part in (changes_of(name), base_of(name)):
            if self._own_part(spark, part, name):
                self._format.drop(spark, part)
        self._unfolded.forget(name)


def _is_readable(spark: SparkSession, identifier: str) -> bool:
    """Whether there is a table or view. (Spark's own ``tableExists`` is not sure of views.)"""
    try:
        spark.table(identifier).schema  # noqa: B018 - it is looked for when the schema is
    except AnalysisException as error:
        if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
            return False
        raise
    return True


def _rows_in(files: Sequence[Path]) -> int:
    return sum(parquet.read_metadata(file).num_rows for file in files)


_SUFFIXES = (base_of(TableName("", "")).name, changes_of(TableName("", "")).name)


def _taken(identifier: str, whole: TableName) -> DestinationError:
    return DestinationError(
        f"the table {identifier} would be another one and a part of {whole}, which a view shows",
        hint="Give one of them another name (mapping.tables), or have the changes of "
        f"{whole} merged (apply.tables, freshness: merge) and copy it again.",
        retry=False,
    )
