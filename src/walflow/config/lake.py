"""Settings of tables in a lake: modes, metadata columns and maintenance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from walflow.config.values import Section, SourceTable, parse_object

__all__ = [
    "ApplySettings",
    "DroppedColumns",
    "EngineChoice",
    "MaintenanceSettings",
    "Metadata",
    "Mode",
    "TablePlan",
    "TableSettings",
]

Mode = Literal["mirror", "soft_delete", "history", "scd2"]
DroppedColumns = Literal["drop", "keep"]
EngineChoice = Literal["auto", "spark", "columnar"]


class TableSettings(Section):
    """Settings of one table, instead of those of `apply` for all."""

    mode: Mode | None = Field(None, description="What the table keeps; see apply.mode.")
    on_column_dropped: DroppedColumns | None = Field(
        None, description="What happens to dropped columns; see apply.on_column_dropped."
    )


TableOptions = Annotated[dict[SourceTable, TableSettings], BeforeValidator(parse_object)]


class ApplySettings(Section):
    """How changes are applied to tables of a lake (Iceberg, Delta)."""

    mode: Mode = Field(
        "mirror",
        description="`mirror`: the table equals the source's. `soft_delete`: it also keeps deleted "
        "rows, and marks them. `history`: it has a row for every change. `scd2`: it has a row for "
        "every version of a row, with the time in which it was valid.",
    )
    engine: EngineChoice = Field(
        "auto",
        description="What writes batches. `columnar`: Arrow in the driver, for Iceberg tables in "
        "mode `mirror` whose files are on this machine; a batch that cannot be written so fails. "
        "`spark`: Spark's jobs. `auto`: columns where they can, else Spark.",
    )
    metadata: bool = Field(
        True,
        description="Whether rows have columns for the kind, position and time of their last "
        "change.",
    )
    change_type_column: str = Field(
        "_CHANGE_TYPE",
        min_length=1,
        description="The name of the column for the kind of a row's last change: insert, update, "
        "delete.",
    )
    lsn_column: str = Field(
        "_LSN",
        min_length=1,
        description="The name of the column for the position of that change's commit.",
    )
    timestamp_column: str = Field(
        "_TIMESTAMP",
        min_length=1,
        description="The name of the column for the time of that change's commit.",
    )
    on_column_dropped: DroppedColumns = Field(
        "drop",
        description="Whether a column that the source drops is dropped, or kept with its values.",
    )
    on_rewrite: Literal["resync", "trust"] = Field(
        "resync",
        description="What to do when ALTER TABLE rewrites all rows of a table, for example to "
        "change a column's type (integer to bigint), or to make an UNLOGGED table LOGGED. The new "
        "values are not in the WAL: `resync` copies the table again; `trust` assumes that the "
        "values are the same (no USING, nothing written while it was UNLOGGED) if the new type can "
        "hold all of them. A table without TOAST (all columns short) that the publication does not "
        "name itself is also copied again after VACUUM FULL, CLUSTER and TRUNCATE.",
    )
    tables: TableOptions = Field(
        default_factory=dict,
        description="`mode` and `on_column_dropped` of single tables: {public.orders: {mode: "
        "history}}.",
    )

    def plan_of(self, table: str | None = None) -> TablePlan:
        """Of a table of the source (schema.table), or of all others."""
        own = self.tables.get(table) if table is not None else None
        names = Metadata(self.change_type_column, self.lsn_column, self.timestamp_column)
        return TablePlan(
            (own and own.mode) or self.mode,
            (own and own.on_column_dropped) or self.on_column_dropped,
            names if self.metadata else None,
        )

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if len({self.change_type_column, self.lsn_column, self.timestamp_column}) < 3:
            raise ValueError(
                "change_type_column, lsn_column and timestamp_column must have different names"
            )
        return self


_DEFAULTS = ApplySettings()


@dataclass(frozen=True, slots=True)
class Metadata:
    """The names of the columns that tell by which change a row came to be."""

    change_type: str = _DEFAULTS.change_type_column
    lsn: str = _DEFAULTS.lsn_column
    timestamp: str = _DEFAULTS.timestamp_column


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What holds for one table in the end."""

    mode: Mode = _DEFAULTS.mode
    on_column_dropped: DroppedColumns = _DEFAULTS.on_column_dropped
    metadata: Metadata | None = Metadata()


class MaintenanceSettings(Section):
    """Maintenance of tables in a lake."""

    enabled: bool = Field(True, description="Whether walflow maintains its tables.")
    interval_seconds: float = Field(
        300, gt=0, description="The longest time between two maintenances of a table that changes."
    )
    small_files: int = Field(
        64, ge=2, description="From this many small files on, they are compacted."
    )
    target_file_bytes: int = Field(
        64 << 20, gt=0, description="The approximate size of files that compaction writes."
    )
    keep_snapshots_seconds: float = Field(
        86_400,
        ge=0,
        description="How long old versions of a table can be read: older snapshots are removed.",
    )
    keep_snapshots: int = Field(
        100, ge=1, description="How many of a table's last snapshots stay, however old."
    )
    orphans_seconds: float = Field(
        86_400,
        ge=3600,
        description="Files that belong to no snapshot are removed at this age.",
    )
