"""The modes of tables in a lake, from a settings file and without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from walflow.errors import ConfigError

if TYPE_CHECKING:
    from walflow.cli.options import Chosen
    from walflow.config import ApplySettings

__all__ = ["lake_settings"]


def lake_settings(chosen: Chosen) -> ApplySettings | None:
    """None if no file is named, or the destination is not a lake. (Without a file the defaults may
    differ from what the pipeline was started with.)"""
    from walflow.destinations import is_lake

    if chosen.file is None:
        return None
    try:
        settings = chosen.settings({"source.uri": ""})
    except ConfigError:
        # Such as a variable in a URI that is not set here. Reading the state does not need it.
        return None
    return settings.apply if is_lake(settings.destination.uri) else None
