"""Options of the catalog: what can be seen to be wrong before Spark is started."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from walflow.errors import ConfigError

__all__ = ["check_options"]

_TYPES = ("hadoop", "hive", "rest", "glue", "nessie", "jdbc", "bigquery")
"""As Iceberg knows them."""
_SERVED = ("rest", "jdbc")
"""Those that need the address of their server."""
_HINT = "See docs/how-to/choose-a-catalog.md."


def check_options(options: Mapping[str, str]) -> None:
    """ConfigError if no catalog can come of the options."""
    kind = options.get("type")
    if kind is None:
        return
    if "catalog-impl" in options:
        raise ConfigError(
            "destination.options has type and catalog-impl, of which Iceberg takes one only.",
            hint="Leave one of them out.",
        )
    if kind.lower() not in _TYPES:
        meant = get_close_matches(kind.lower(), _TYPES, n=1)
        raise ConfigError(
            f"destination.options.type is {kind!r}, which is no type of an Iceberg catalog (known: "
            f"{', '.join(_TYPES)})" + (f"; did you mean {meant[0]}?" if meant else "."),
            hint=f"A class of its own is named by catalog-impl instead. {_HINT}",
        )
    if kind.lower() in _SERVED and not options.get("uri"):
        raise ConfigError(
            f"destination.options has no uri, where the catalog of type {kind} is.", hint=_HINT
        )
