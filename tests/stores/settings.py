"""Settings of a pipeline whose store is what a test is about."""

from __future__ import annotations

from pathlib import Path

from walflow.config import Settings, load_settings


def settings(
    uri: str | None = None,
    *,
    folder: Path = Path("/nowhere"),
    postgres_schema: str | None = None,
) -> Settings:
    given = {
        "name": "shop",
        "source.uri": "postgresql://nobody@localhost/nowhere",
        "destination.uri": "iceberg:///nowhere",
        "log.folder": str(folder),
        "store.uri": uri,
        "store.postgres_schema": postgres_schema,
    }
    return load_settings(None, given, environment={})
