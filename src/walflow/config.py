"""Settings of a pipeline: from a YAML file, the environment and the command line, one model.

What the command line says wins over the environment (``WALFLOW_SOURCE__URI``), and that over the
file. Secrets are ``SecretStr``: they never print, and ``redacted`` shows a URI without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from walflow.errors import ConfigError

__all__ = [
    "CopySettings",
    "DestinationSettings",
    "LogSettings",
    "Settings",
    "SourceSettings",
    "SparkSettings",
    "TypeSettings",
    "load_settings",
]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceSettings(_Section):
    uri: SecretStr = Field(description="postgresql://user:password@host:port/database?sslmode=…")
    publication: str = Field("walflow", description="The publication whose tables are followed.")
    create_publication: bool = Field(
        False, description="Make the publication (FOR ALL TABLES, or for `tables`) if missing."
    )
    tables: tuple[str, ...] = Field(
        (), description="schema.table names for a publication that walflow makes; empty: all."
    )
    slot: str | None = Field(None, description="The replication slot; default walflow_<name>.")
    backlog_bytes: int = Field(
        64 << 20, ge=0, description="From this much unread log on, the bulk path reads it."
    )


class TypeSettings(_Section):
    numeric: str = Field(
        "decimal(38,18)",
        pattern=r"^(decimal\(\d{1,2},\d{1,2}\)|double|string)$",
        description="The type of numeric columns that have no precision (or more than 38 digits).",
    )


class LogSettings(_Section):
    folder: Path | None = Field(None, description="Default: ~/.walflow/<name>.")
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
    max_connections: int = Field(4, ge=1, description="Source connections that copy at once.")
    range_bytes: int = Field(
        64 << 20, gt=0, description="About how much of a table one range of pages covers."
    )


class DestinationSettings(_Section):
    uri: str = Field(description="iceberg:///folder/of/the/tables")
    options: dict[str, str] = Field(
        default_factory=dict, description="Passed to the catalog as they are."
    )


class SparkSettings(_Section):
    master: str = Field("local[*]", description="local[N], spark://host:port, …")
    driver_memory: str = Field("2g", description="The JVM's heap.")
    ivy_settings: Path | None = Field(
        None, description="An Ivy settings file that says where jars come from."
    )
    conf: dict[str, str] = Field(default_factory=dict, description="More Spark settings.")


class Settings(BaseSettings):
    """One pipeline."""

    model_config = SettingsConfigDict(
        env_prefix="WALFLOW_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
    )

    name: str = Field("default", pattern=r"^[a-z0-9_]{1,50}$", description="The pipeline's name.")
    source: SourceSettings
    destination: DestinationSettings
    log: LogSettings = LogSettings()
    copy_: CopySettings = Field(CopySettings(), alias="copy")
    types: TypeSettings = TypeSettings()
    spark: SparkSettings = SparkSettings()
    metrics_address: str | None = Field(
        None, description="host:port to serve /metrics on; default: not served."
    )

    @property
    def slot(self) -> str:
        return self.source.slot or f"walflow_{self.name}"

    @property
    def log_folder(self) -> Path:
        return self.log.folder or Path.home() / ".walflow" / self.name

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings, file_settings(settings_cls))


def load_settings(file: Path | None, overrides: Mapping[str, Any]) -> Settings:
    """Settings from the file (if any) under the environment under the overrides."""
    raise NotImplementedError
