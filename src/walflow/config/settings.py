"""The settings of a pipeline, section by section.

Secrets are ``SecretStr``: they never print, and ``redacted`` shows a URI without them.
``docs/reference/settings.md`` is generated from this file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_serializer, model_validator

from walflow.config.lake import ApplySettings, MaintenanceSettings, TableSettings
from walflow.config.tls import TlsSettings, with_tls
from walflow.config.values import (
    Address,
    HomePath,
    Memory,
    NumericType,
    Options,
    PipelineName,
    Section,
    SlotName,
    TableNames,
    TablePatterns,
    Template,
)
from walflow.model import TableName
from walflow.redaction import MASK, is_secret_name, redacted

__all__ = [
    "ApplySettings",
    "BatchSettings",
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
    "TablesSettings",
    "TlsSettings",
    "TypeSettings",
]


CUTS_FILE = "cuts.db"
LEASE_FILE = "lease.json"
"""In the log's folder, if the store keeps no leases."""


def _without_secrets(values: Mapping[str, str]) -> dict[str, str]:
    return {key: MASK if is_secret_name(key) else redacted(value) for key, value in values.items()}


class SourceSettings(Section):
    """The Postgres database whose tables are followed."""

    uri: SecretStr = Field(description="postgresql://user:password@host:port/database?sslmode=…")
    publication: str | None = Field(
        None,
        min_length=1,
        description="The publication whose tables are followed; default: the one that the pipeline "
        "began with. A new pipeline begins with `walflow_<name>`, or with an existing one named "
        "`walflow` that walflow did not create.",
    )
    create_publication: bool = Field(
        False,
        description="Create the publication if it is missing: FOR ALL TABLES, or, if "
        "`tables.include` or `tables.exclude` are set, for the tables that they choose now.",
    )
    slot: SlotName | None = Field(
        None, description="The replication slot; default: walflow_<name>."
    )
    failover: bool = Field(
        False, description="Create a slot that standbys keep (Postgres 17 and newer)."
    )
    on_slot_lost: Literal["error", "resync"] = Field(
        "error",
        description="What to do when changes are lost, because the slot is gone, was invalidated, "
        "or was read by something else: `error` ends the pipeline and changes nothing; `resync` "
        "copies all tables again, with a new slot if needed. (Which tables changed between the end "
        "of the old slot and the new one is not known.)",
    )
    backlog_bytes: int = Field(
        64 << 20, ge=0, description="From this much unread WAL on, it is read in bulk through SQL."
    )
    tls: TlsSettings = TlsSettings()

    @model_validator(mode="after")
    def _put_tls_into_the_uri(self) -> Self:
        # Here, and so nobody who connects can forget it.
        uri = with_tls(self.uri.get_secret_value(), self.tls)
        object.__setattr__(self, "uri", SecretStr(uri))
        return self


class TablesSettings(Section):
    """Which of the published tables are followed. Patterns are like a shell's, over schema and
    table: `public.*`, `*.audit_*`, `shop.orders_20??`. They are case-sensitive."""

    include: TablePatterns = Field(
        (),
        description="Only tables like these; empty: all. A publication that walflow creates has "
        "these tables. Tables that are created later are not added to it (ALTER PUBLICATION … ADD "
        "TABLE does that).",
    )
    exclude: TablePatterns = Field((), description="No tables like these, even if included.")

    @property
    def choose(self) -> bool:
        """Whether there may be tables that are not followed."""
        return bool(self.include or self.exclude)

    @property
    def named(self) -> tuple[str, ...]:
        """The tables that are included by name, not by a pattern for several."""
        return tuple(pattern for pattern in self.include if not re.search(r"[*?[]", pattern))

    def have(self, table: TableName) -> bool:
        """Whether the table is chosen."""
        included = not self.include or any(_is_like(table, pattern) for pattern in self.include)
        return included and not any(_is_like(table, pattern) for pattern in self.exclude)


def _is_like(table: TableName, pattern: str) -> bool:
    # At any dot: names of schemas and tables may contain dots.
    parts = pattern.split(".")
    return any(
        fnmatchcase(table.schema, ".".join(parts[:at]))
        and fnmatchcase(table.name, ".".join(parts[at:]))
        for at in range(1, len(parts))
    )


class BatchSettings(Section):
    """How many changes are collected before they are applied."""

    max_size: int = Field(
        1_000_000,
        gt=0,
        description="A segment of the log is sealed at the next commit past this many changes.",
    )
    max_fill_ms: int = Field(
        200, ge=0, description="How long a segment collects changes before it is sealed."
    )


class TypeSettings(Section):
    """Which types columns get where there is a choice."""

    numeric: NumericType = Field(
        "decimal(38,18)",
        description="The type of numeric columns that have no precision (or more than 38 digits): "
        "decimal(precision,scale), double or string.",
    )


class LogSettings(Section):
    """The change log, between receiving and applying."""

    folder: HomePath | None = Field(
        None, description="Where the change log is kept; default: ~/.walflow/<name>."
    )
    max_bytes: int = Field(20 << 30, gt=0, description="Receiving pauses when the log is larger.")
    retain_seconds: float = Field(3600, ge=0, description="How long applied segments are kept.")
    segment_bytes: int = Field(
        256 << 20, gt=0, description="A segment is sealed at the next commit past this size."
    )
    file_bytes: int = Field(
        128 << 20, gt=0, description="Files roll at about this size inside a transaction."
    )


class CopySettings(Section):
    """How tables are copied."""

    range_bytes: int = Field(
        64 << 20, gt=0, description="About how much of a table one range of pages covers."
    )


class DestinationSettings(Section):
    """Where the tables go."""

    uri: str = Field(
        description="iceberg:///folder/of/the/tables, delta:///folder/of/the/tables, "
        "https://host/path of a web service, or python:module:Class of your own."
    )
    options: Options = Field(
        default_factory=dict,
        description="For a lake: settings of its catalog. For a web service: `secret`, `token`, "
        "`batch_rows` and others. For your own class: its arguments.",
    )

    format_version: int = Field(
        3,
        ge=2,
        le=3,
        description="The format version of Iceberg tables that walflow creates: 3, with deletion "
        "vectors, or 2 for engines that cannot read those (with position deletes, which cost "
        "more). Existing tables keep theirs.",
    )

    @model_validator(mode="after")
    def _check_format_version(self) -> Self:
        if "format-version" in self.options:
            raise ValueError(
                "options are for the catalog, which does not use format-version: set "
                "destination.format_version"
            )
        if self.format_version != 3 and urlsplit(self.uri).scheme != "iceberg":
            raise ValueError("format_version is for Iceberg: this destination has no such versions")
        return self

    @field_serializer("uri")
    def _show_uri(self, uri: str) -> str:
        return redacted(uri)

    @field_serializer("options")
    def _show_options(self, options: dict[str, str]) -> dict[str, str]:
        return _without_secrets(options)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        yield from (("uri", redacted(self.uri)), ("options", _without_secrets(self.options)))


class MappingSettings(Section):
    """The names of tables in the destination."""

    template: Template = Field(
        "{schema}.{table}",
        description="The name of a table in the destination, as namespace.table; {schema} and "
        "{table} stand for the source's names.",
    )
    tables: TableNames = Field(
        default_factory=dict,
        description="Names for single tables, instead of the template: {public.orders: "
        "sales.orders}.",
    )


class StoreSettings(Section):
    """Where the pipeline's state is kept."""

    uri: SecretStr | None = Field(
        None,
        description="sqlite:///file, postgresql://…, redis://…, memory: or python:module:Class of "
        "your own; default: state.db in the log's folder.",
    )
    postgres_schema: str = Field(
        "walflow", min_length=1, description="The schema of a Postgres store's tables."
    )
    redis_prefix: str = Field("etl:", description="The prefix of a Redis store's keys.")


class SparkSettings(Section):
    """Where Spark runs, and its settings."""

    remote: SecretStr | None = Field(
        None,
        description="sc://host:port/;token=… of a Spark Connect server, instead of `master`. The "
        "server, or a cluster's workers, must see the log's folder and the destination under the "
        "same path as this process, and have the same Python and walflow.",
    )
    master: str = Field("local[*]", description="local[N], spark://host:port, …")
    driver_memory: Memory = Field("2g", description="The JVM's heap, like 512m or 2g.")
    ivy_settings: HomePath | None = Field(
        None, description="An Ivy settings file, which names where jars are fetched from."
    )
    conf: Options = Field(default_factory=dict, description="More Spark settings.")

    @field_serializer("conf")
    def _show_conf(self, conf: dict[str, str]) -> dict[str, str]:
        return _without_secrets(conf)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, _without_secrets(value) if name == "conf" else value


class Settings(Section):
    """One pipeline. Printing, ``repr`` and ``model_dump`` show no secret; attributes do."""

    name: PipelineName = Field(
        "default",
        description="The pipeline's name: small letters, digits and underscores. It identifies "
        "the slot, the log and the state.",
    )
    source: SourceSettings
    destination: DestinationSettings
    tables: TablesSettings = TablesSettings()
    batch: BatchSettings = BatchSettings()
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
        description="How long a table that failed waits before it is tried again. The time doubles "
        "with each further failure, up to an hour; up to 20 % are added at random.",
    )
    table_error_retry_max_attempts: int = Field(
        5,
        ge=0,
        description="How often a table that failed is tried again automatically. After one more "
        "failure (with 5: the sixth in a row) it waits for `walflow retry`.",
    )
    on_table_refused: Literal["set_aside", "error"] = Field(
        "set_aside",
        description="What to do at the first start with a table that cannot be followed as it is, "
        "because a column has a reserved name, a right is missing, or row security hides rows: "
        "`set_aside` starts with the other tables, and adds this one as soon as the cause is gone; "
        "`error` does not start, and leaves nothing behind. (If no table can be followed, walflow "
        "does not start in any case. After the first start such a table is always set aside.)",
    )
    on_table_removed: Literal["keep", "drop"] = Field(
        "keep",
        description="What happens to the destination's table when its source table is unpublished, "
        "or gets another name. (If `tables` excludes it, it is kept in any case.)",
    )
    spark: SparkSettings = SparkSettings()
    metrics_address: Address | None = Field(
        None, description="host:port to serve /metrics on; default: not served."
    )

    @property
    def slot(self) -> str:
        return self.source.slot or f"walflow_{self.name}"

    @property
    def cuts_file(self) -> Path:
        """Where the queries of `walflow as-of` are noted, beside the log."""
        return self.log_folder / CUTS_FILE

    @property
    def publication(self) -> str:
        """The publication's name, or the name that walflow would give it. If the setting is not
        set, only the source knows which one the pipeline has: see `chosen_publication` there."""
        return self.source.publication or f"walflow_{self.name}"

    def with_publication(self, name: str) -> Self:
        """The same settings with this publication."""
        source = self.source.model_copy(update={"publication": name})
        return self.model_copy(update={"source": source})

    @property
    def log_folder(self) -> Path:
        return self.log.folder or Path.home() / ".walflow" / self.name
