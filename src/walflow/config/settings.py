"""The settings of a pipeline, section by section.

Secrets are ``SecretStr``: they never print, and ``redacted`` shows a URI without them.
``docs/reference/settings.md`` is made of what stands here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_serializer,
    model_validator,
)

from walflow.config.values import (
    Address,
    HomePath,
    Memory,
    NumericType,
    Options,
    PipelineName,
    SlotName,
    SourceTable,
    TableNames,
    Template,
    Words,
    parse_object,
)
from walflow.redaction import MASK, is_secret_name, redacted

__all__ = [
    "ApplySettings",
    "CopySettings",
    "DestinationSettings",
    "LogSettings",
    "MaintenanceSettings",
    "MappingSettings",
    "Settings",
    "SourceSettings",
    "SparkSettings",
    "StoreSettings",
    "TableSettings",
    "TypeSettings",
]


def _without_secrets(values: Mapping[str, str]) -> dict[str, str]:
    return {key: MASK if is_secret_name(key) else redacted(value) for key, value in values.items()}


class _Section(BaseModel):
    # Inputs stay out of errors and tracebacks: any of them may be a secret in the wrong place.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class SourceSettings(_Section):
    """The Postgres database whose tables are followed."""

    uri: SecretStr = Field(description="postgresql://user:password@host:port/database?sslmode=…")
    publication: str = Field(
        "walflow", min_length=1, description="The publication whose tables are followed."
    )
    create_publication: bool = Field(
        False, description="Make the publication (FOR ALL TABLES, or for `tables`) if missing."
    )
    tables: Words = Field(
        (), description="schema.table names for a publication that walflow makes; empty: all."
    )
    slot: SlotName | None = Field(
        None, description="The replication slot; default: walflow_<name>."
    )
    failover: bool = Field(
        False, description="Make the slot one that standbys keep (Postgres 17 and newer)."
    )
    on_slot_lost: Literal["error", "resync"] = Field(
        "error",
        description="What to do when changes are lost, because the slot is gone, was invalidated, "
        "or was read by someone else: `error` ends the pipeline and touches nothing; `resync` "
        "copies all tables again, under a new slot if need be. (Which of them changed between the "
        "end of the old slot and the new one, nobody can tell.)",
    )
    backlog_bytes: int = Field(
        64 << 20, ge=0, description="From this much unread log on, the bulk path reads it."
    )


class TypeSettings(_Section):
    """What types become where there is a choice."""

    numeric: NumericType = Field(
        "decimal(38,18)",
        description="The type of numeric columns that have no precision (or more than 38 digits): "
        "decimal(precision,scale), double or string.",
    )


class LogSettings(_Section):
    """The change log, between receiving and applying."""

    folder: HomePath | None = Field(
        None, description="Where the change log is kept; default: ~/.walflow/<name>."
    )
    max_bytes: int = Field(20 << 30, gt=0, description="Receiving pauses when the log is larger.")
    retain_seconds: float = Field(3600, ge=0, description="How long applied segments are kept.")
    fill_ms: int = Field(200, ge=0, description="How long a segment collects before it is sealed.")
    segment_bytes: int = Field(
        256 << 20, gt=0, description="A segment is sealed at the next commit past this size."
    )
    file_bytes: int = Field(
        128 << 20, gt=0, description="Files roll at about this size inside a transaction."
    )


class CopySettings(_Section):
    """How tables are copied."""

    range_bytes: int = Field(
        64 << 20, gt=0, description="About how much of a table one range of pages covers."
    )


class DestinationSettings(_Section):
    """Where the tables go."""

    uri: str = Field(description="iceberg:///folder/of/the/tables or delta:///folder/of/the/tables")
    options: Options = Field(default_factory=dict, description="Passed to the catalog as they are.")

    @field_serializer("uri")
    def _show_uri(self, uri: str) -> str:
        return redacted(uri)

    @field_serializer("options")
    def _show_options(self, options: dict[str, str]) -> dict[str, str]:
        return _without_secrets(options)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        yield from (("uri", redacted(self.uri)), ("options", _without_secrets(self.options)))


class MappingSettings(_Section):
    """What the destination calls the tables."""

    template: Template = Field(
        "{schema}.{table}",
        description="The destination's name for a table, as namespace.table; {schema} and "
        "{table} stand for the source's.",
    )
    tables: TableNames = Field(
        default_factory=dict,
        description="Names for single tables, before the template: {public.orders: sales.orders}.",
    )


Mode = Literal["mirror", "soft_delete", "history", "scd2"]
Freshness = Literal["auto", "merge", "view"]
DroppedColumns = Literal["drop", "keep"]


class TableSettings(_Section):
    """What holds for one table instead of what `apply` says for all."""

    mode: Mode | None = None
    freshness: Freshness | None = None
    on_column_dropped: DroppedColumns | None = None


TableOptions = Annotated[dict[SourceTable, TableSettings], BeforeValidator(parse_object)]


class ApplySettings(_Section):
    """What becomes of changes in tables of a lake (Iceberg, Delta)."""

    mode: Mode = Field(
        "mirror",
        description="`mirror`: the table equals the source's. `soft_delete`: so it does, but "
        "deleted rows stay, and are marked. `history`: every change is a row. `scd2`: every "
        "version of a row is one, with the time that it was valid.",
    )
    freshness: Freshness = Field(
        "auto",
        description="`merge`: each round is merged into the table. `view`: rounds are appended to "
        "a table of changes, a view shows both, and changes are merged from time to time. `auto`: "
        "`view` for tables of `view_from_rows` and more, if the catalog keeps views.",
    )
    view_from_rows: int = Field(
        20_000_000, ge=0, description="From how many rows on `auto` chooses `view`, at the copy."
    )
    fold_share: float = Field(
        0.1,
        gt=0,
        description="With `view`: changes are merged when they are this share of the table's rows.",
    )
    fold_seconds: float = Field(
        300, ge=0, description="With `view`: changes are merged when the oldest is of this age."
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
        description="What to do when Postgres rewrites a table for another type of a column, as "
        "from integer to bigint. How it made the new values is not in its log: `resync` copies "
        "the table again, `trust` takes it that they are the same (no USING), where the new type "
        "holds all of them.",
    )
    tables: TableOptions = Field(
        default_factory=dict,
        description="For single tables: {public.orders: {mode: history}}; `mode`, `freshness` and "
        "`on_column_dropped` can be said.",
    )

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if len({self.change_type_column, self.lsn_column, self.timestamp_column}) < 3:
            raise ValueError(
                "change_type_column, lsn_column and timestamp_column must have different names"
            )
        return self


class MaintenanceSettings(_Section):
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


class StoreSettings(_Section):
    """Where the pipeline's state is kept."""

    uri: SecretStr | None = Field(
        None,
        description="sqlite:///file, postgresql://…, redis://… or memory:; default: state.db in "
        "the log's folder.",
    )
    postgres_schema: str = Field(
        "walflow", min_length=1, description="Where tables of a Postgres store are made."
    )
    redis_prefix: str = Field("etl:", description="What the keys of a Redis store begin with.")


class SparkSettings(_Section):
    """Where Spark runs, and with what."""

    remote: SecretStr | None = Field(
        None,
        description="sc://host:port/;token=… of a Spark Connect server, instead of `master`. It, "
        "or a cluster's workers, must see the log's folder and the destination under the same "
        "path as this process, and have the same Python and walflow.",
    )
    master: str = Field("local[*]", description="local[N], spark://host:port, …")
    driver_memory: Memory = Field("2g", description="The JVM's heap, like 512m or 2g.")
    ivy_settings: HomePath | None = Field(
        None, description="An Ivy settings file that says where jars come from."
    )
    conf: Options = Field(default_factory=dict, description="More Spark settings.")

    @field_serializer("conf")
    def _show_conf(self, conf: dict[str, str]) -> dict[str, str]:
        return _without_secrets(conf)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, _without_secrets(value) if name == "conf" else value


class Settings(_Section):
    """One pipeline. Printing, ``repr`` and ``model_dump`` show no secret; attributes do."""

    name: PipelineName = Field(
        "default",
        description="The pipeline's name: small letters, digits and underscores. Slot, log and "
        "state are found by it.",
    )
    source: SourceSettings
    destination: DestinationSettings
    log: LogSettings = LogSettings()
    # The key is `copy` everywhere; the attribute is not, because BaseModel has a method copy().
    copying: CopySettings = Field(CopySettings(), alias="copy")
    types: TypeSettings = TypeSettings()
    mapping: MappingSettings = MappingSettings()
    apply: ApplySettings = ApplySettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    store: StoreSettings = StoreSettings()
    max_table_sync_workers: int = Field(
        4,
        ge=1,
        description="How many tables are copied at once, and how many catch up at once.",
    )
    max_copy_connections: int = Field(
        4, ge=1, description="Source connections that copy at once, over all tables."
    )
    table_error_retry_delay_ms: int = Field(
        10_000,
        ge=0,
        description="How long a table that failed waits before it is tried again. Doubles with "
        "each failure in a row, up to an hour; up to 20 % more are added at random.",
    )
    table_error_retry_max_attempts: int = Field(
        5,
        ge=0,
        description="How often in a row a table that failed is tried again by itself. If that "
        "fails too (with 5: at the sixth failure), it waits for `walflow retry`.",
    )
    on_table_removed: Literal["keep", "drop"] = Field(
        "keep",
        description="What becomes of the destination's table when one is unpublished, or gets "
        "another name.",
    )
    spark: SparkSettings = SparkSettings()
    metrics_address: Address | None = Field(
        None, description="host:port to serve /metrics on; default: not served."
    )

    @property
    def slot(self) -> str:
        return self.source.slot or f"walflow_{self.name}"

    @property
    def log_folder(self) -> Path:
        return self.log.folder or Path.home() / ".walflow" / self.name
