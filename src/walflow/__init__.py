"""walflow keeps analytical tables equal to Postgres tables.

from pathlib import Path

from walflow import Pipeline, load_settings

with Pipeline(load_settings(Path("shop.yaml"))) as pipeline:
    pipeline.wait()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walflow.config import Settings, load_settings
    from walflow.pipeline.pipeline import Pipeline

__all__ = ["Pipeline", "Settings", "load_settings"]

# Imported when they are first asked for: the command must not wait for what it does not use.
_HOMES = {
    "Pipeline": "walflow.pipeline.pipeline",
    "Settings": "walflow.config",
    "load_settings": "walflow.config",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
