"""The settings of a pipeline, section by section.

Secrets are ``SecretStr``: they never print, and ``redacted`` shows a URI without them.
``docs/reference/settings.md`` is made of what stands here.
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
from walflow.config.section import Section
from walflow.config.tls import TlsSettings, with_tls
from walflow.config.values import (
    Address,
    HomePath,
    Memory,
    NumericType,
    Options,
    PipelineName,
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


CUTS_FILE = "pictures.db"


def _without_secrets(values: Mapping[str, str]) -> dict[str, str]:
    return {key: MASK if is_secret_name(key) else redacted(value) for key, value in values.items()}


class SourceSettings(Section):
    """The Postgres database whose tables are followed."""

    uri: SecretStr = Field(description="postgresql://user:password@host:port/database?sslmode=…")
    publication: str | None = Field(
        None,
        min_length=1,
        description="The publication whose tables are followed; default: the one that the pipeline "
        "began with. A new pipeline begins with `walflow_<name>`, or with one named `walflow` that "
        "somebody has made by hand.",
    )
    create_publication: bool = Field(
        False,
        description="Make the publication if missing: FOR ALL TABLES, or, if `tables.include` or "
        "`tables.exclude` say something, for those that there are of them.",
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
    tls: TlsSettings = TlsSettings()

    @model_validator(mode="after")
    def _put_tls_into_the_uri(self) -> Self:
        # Here, and so nobody who connects can forget it.
        uri = with_tls(self.uri.get_secret_value(), self.tls)
        object.__setattr__(self, "uri", SecretStr(uri))
        return self


class TablesSettings(Section):
    """Which of the published tables are followed. The patterns are like those of a shell, over
    schema and table: `public.*`, `*.audit_*`, `shop.orders_20??`. Letters count as they are."""

    include: TablePatterns = Field(
        (),
        description="Only tables like these; empty: all. A publication that walflow makes is made "
        "of them, and tables that come to be later are not added to it (ALTER PUBLICATION … ADD "
        "TABLE does that).",
    )
    exclude: TablePatterns = Field((), description="No tables like these, also if included.")

    @property
    def choose(self) -> bool:
        """Whether there may be tables that are not followed."""
        return bool(self.include or self.exclude)

    @property
    def named(self) -> tuple[str, ...]:
        """The tables that are included by name, not by a pattern for several."""
        return tuple(pattern for pattern in self.include if not re.search(r"[*?[]", pattern))

    def have(self, table: TableName) -> bool:
        """Whether the table is one of those to be followed."""
        included = not self.include or any(_is_like(table, pattern) for pattern in self.include)
        return included and not any(_is_like(table, pattern) for pattern in self.exclude)


def _is_like(table: TableName, pattern: str) -> bool:
    # At whichever dot: schemas and tables may have some in their names.
    parts = pattern.split(".")
    return any(
        fnmatchcase(table.schema, ".".join(parts[:at]))
        and fnmatchcase(table.name, ".".join(parts[at:]))
        for at in range(1, len(parts))
    )


class BatchSettings(Section):
    """How much is collected before it goes on to the destination."""

    max_size: int = Field(
        1_000_000,
        gt=0,
        description="A segment of the log is sealed at the next commit past this many changes.",
    )
    max_fill_ms: int = Field(
        200, ge=0, description="How long a segment collects changes before it is sealed."
    )


class TypeSettings(Section):
    """What types become where there is a choice."""

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
        description="Of a lake: settings of its catalog. Of a web service: `secret`, `token`, "
        "`batch_rows` and others. Of your own class: its arguments.",
    )

    format_version: int = Field(
        3,
        ge=2,
        le=3,
        description="Of Iceberg tables that walflow makes: 3, with deletion vectors, or 2 for "
        "engines that cannot read those (with position deletes, which cost more). Tables that are "
        "there keep theirs.",
    )

    @model_validator(mode="after")
    def _check_format_version(self) -> Self:
        if "format-version" in self.options:
            raise ValueError(
                "options are for the catalog, which has no use for format-version: say "
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


class StoreSettings(Section):
    """Where the pipeline's state is kept."""

    uri: SecretStr | None = Field(
        None,
        description="sqlite:///file, postgresql://…, redis://…, memory: or python:module:Class of "
        "your own; default: state.db in the log's folder.",
    )
    postgres_schema: str = Field(
        "walflow", min_length=1, description="Where tables of a Postgres store are made."
    )
    redis_prefix: str = Field("etl:", description="What the keys of a Redis store begin with.")


class SparkSettings(Section):
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


class Settings(Section):
    """One pipeline. Printing, ``repr`` and ``model_dump`` show no secret; attributes do."""

    name: PipelineName = Field(
        "default",
        description="The pipeline's name: small letters, digits and underscores. Slot, log and "
        "state are found by it.",
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
        description="How long a table that failed waits before it is tried again. Doubles with "
        "each failure in a row, up to an hour; up to 20 % more are added at random.",
    )
    table_error_retry_max_attempts: int = Field(
        5,
        ge=0,
        description="How often in a row a table that failed is tried again by itself. If that "
        "fails too (with 5: at the sixth failure), it waits for `walflow retry`.",
    )
    on_table_refused: Literal["set_aside", "error"] = Field(
        "set_aside",
        description="What to do at the first start with a table that cannot be followed as it is, "
        "because a column has a name that walflow needs, a right is missing, or row security hides "
        "rows: `set_aside` starts with the others, and takes the table in as soon as the cause is "
        "gone; `error` does not start, and leaves nothing behind. (If it is so of all tables, it "
        "does not start in any case. Later such a table is set aside.)",
    )
    on_table_removed: Literal["keep", "drop"] = Field(
        "keep",
        description="What becomes of the destination's table when one is unpublished, or gets "
        "another name. (That of a table which `tables` leave out is kept in any case.)",
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
        """The publication's name, or that of the one that walflow would make. Which one a pipeline
        has that does not say it, only the source can tell: `chosen_publication` there."""
        return self.source.publication or f"walflow_{self.name}"

    def with_publication(self, name: str) -> Self:
        """The same settings, in which the publication is said."""
        source = self.source.model_copy(update={"publication": name})
        return self.model_copy(update={"source": source})

    @property
    def log_folder(self) -> Path:
        return self.log.folder or Path.home() / ".walflow" / self.name
