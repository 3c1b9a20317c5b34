"""Settings of a pipeline: from a YAML file, the environment and the command line, one model.

What the command line says wins over the environment (``WALFLOW_SOURCE__URI``), and that over the
file. No form of them that prints shows a secret.
"""

from walflow.config.loading import load_settings
from walflow.config.settings import (
    ApplySettings,
    BatchSettings,
    CopySettings,
    DestinationSettings,
    LogSettings,
    MaintenanceSettings,
    MappingSettings,
    Settings,
    SourceSettings,
    SparkSettings,
    StoreSettings,
    TableSettings,
    TablesSettings,
    TlsSettings,
    TypeSettings,
)
from walflow.config.values import host_and_port
from walflow.redaction import redacted

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
    "host_and_port",
    "load_settings",
    "redacted",
]
