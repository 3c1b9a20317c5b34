"""walflow keeps analytical tables equal to Postgres tables.

    from walflow import Pipeline

    with Pipeline({"source.uri": "postgresql://…", "destination.uri": "iceberg:///…"}) as pipeline:
        pipeline.wait()

The names here are the beginning. Those who write a destination or a store of their own find what
they need in ``walflow.destinations.rowwise`` and ``walflow.stores.base``, and tests for it in
``walflow.testing``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walflow.config import Settings, load_settings
    from walflow.errors import WalflowError
    from walflow.model import Lsn, TableName
    from walflow.pipeline.pipeline import Pipeline, PipelineStatus

__all__ = [
    "Lsn",
    "Pipeline",
    "PipelineStatus",
    "Settings",
    "TableName",
    "WalflowError",
    "load_settings",
]

# Imported when they are first asked for: the command must not wait for what it does not use.
_HOMES = {
    "Lsn": "walflow.model",
    "Pipeline": "walflow.pipeline.pipeline",
    "PipelineStatus": "walflow.pipeline.pipeline",
    "Settings": "walflow.config",
    "TableName": "walflow.model",
    "WalflowError": "walflow.errors",
    "load_settings": "walflow.config",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
