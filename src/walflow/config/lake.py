"""Settings of tables in a lake: what becomes of changes there, and the upkeep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from walflow.config.section import Section
from walflow.config.values import SourceTable, parse_object

__all__ = [
    "ApplySettings",
    "DroppedColumns",
    "MaintenanceSettings",
    "Mode",
    "TableSettings",
    "WantedOfTable",
]

Mode = Literal["mirror", "soft_delete", "history", "scd2"]
DroppedColumns = Literal["drop", "keep"]


class TableSettings(Section):
    """What holds for one table instead of what `apply` says for all."""

    mode: Mode | None = Field(None, description="What becomes of changes; see apply.mode.")
    on_column_dropped: DroppedColumns | None = Field(
        None, description="What becomes of dropped columns; see apply.on_column_dropped."
    )


@dataclass(frozen=True, slots=True)
class WantedOfTable:
    """What holds for a table in the end."""

    mode: Mode
    on_column_dropped: DroppedColumns


TableOptions = Annotated[dict[SourceTable, TableSettings], BeforeValidator(parse_object)]


class ApplySettings(Section):
    """What becomes of changes in tables of a lake (Iceberg, Delta)."""

    mode: Mode = Field(
        "mirror",
        description="`mirror`: the table equals the source's. `soft_delete`: so it does, but "
        "deleted rows stay, and are marked. `history`: every change is a row. `scd2`: every "
        "version of a row is one, with the time that it was valid.",
    )
    metadata: bool = Field(
        True, description="Whether rows tell by which change, and when, they came to be."
    )
    change_type_column: str = Field(
        "_CHANGE_TYPE",
        min_length=1,
        description="Its name for the kind of a row's last change: insert, update, delete.",
    )
    lsn_column: str = Field(
        "_LSN", min_length=1, description="Its name for the position of that change's commit."
    )
    timestamp_column: str = Field(
        "_TIMESTAMP", min_length=1, description="Its name for the time of that change's commit."
    )
    on_column_dropped: DroppedColumns = Field(
        "drop", description="Whether a column that the source drops goes, or stays with its values."
    )
    on_rewrite: Literal["resync", "trust"] = Field(
        "resync",
        description="What to do when ALTER TABLE writes all rows of a table anew, as for another "
        "type of a column (integer to bigint), or to make an UNLOGGED table a LOGGED one. The new "
        "values are not in Postgres's log: `resync` copies the table again, `trust` takes it that "
        "they are the same (no USING, nothing written while it was UNLOGGED), where a new type "
        "holds all of them. Without TOAST (all columns short) a table that the publication does "
        "not name itself is copied again after VACUUM FULL, CLUSTER and TRUNCATE, too.",
    )
    tables: TableOptions = Field(
        default_factory=dict,
        description="For single tables: {public.orders: {mode: history}}; `mode` and "
        "`on_column_dropped` can be said.",
    )

    def wanted_of(self, table: str | None) -> WantedOfTable:
        """Of a table of the source (schema.table), or of all others."""
        own = self.tables.get(table) if table is not None else None
        return WantedOfTable(
            (own and own.mode) or self.mode,
            (own and own.on_column_dropped) or self.on_column_dropped,
        )

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if len({self.change_type_column, self.lsn_column, self.timestamp_column}) < 3:
            raise ValueError(
                "change_type_column, lsn_column and timestamp_column must have different names"
            )
        return self


class MaintenanceSettings(Section):
    """The upkeep of tables of a lake, between rounds."""

    enabled: bool = Field(True, description="Whether walflow does it.")
    interval_seconds: float = Field(
        300, gt=0, description="How long a table that changes goes without it, at most."
    )
    small_files: int = Field(
        64, ge=2, description="From this many small files on, a table's are rewritten as few."
    )
    target_file_bytes: int = Field(
        64 << 20, gt=0, description="About how large the files that it writes are."
    )
    keep_snapshots_seconds: float = Field(
        86_400,
        ge=0,
        description="How long one can read a table as it was: older snapshots are removed.",
    )
    keep_snapshots: int = Field(
        100, ge=1, description="As many of a table's last snapshots stay, however old."
    )
    orphans_seconds: float = Field(
        86_400,
        ge=3600,
        description="Files that belong to no snapshot are removed when they are of this age.",
    )
