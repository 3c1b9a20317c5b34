"""Messages about wrong settings, which name the setting and where it was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic_core import ErrorDetails

from walflow.config.keys import all_paths, field_at, keys_of, section_at, variable_of
from walflow.redaction import redacted

__all__ = ["described", "no_section"]

_OF_THE_KEY = "[key]"
"""Pydantic's mark for a problem of a mapping's key rather than of its value."""

_NOW = {"log.fill_ms": "batch.max_fill_ms", "source.tables": "tables.include"}
"""Settings that were renamed."""

_GONE = ("freshness", "view_from_rows", "fold_share", "fold_seconds")
"""Settings of `apply` that no longer exist."""


def described(problem: ErrorDetails, layers: Mapping[str, Mapping[str, Any]]) -> str:
    """One problem on one line, without the value. ``layers`` are by name; the first one wins."""
    path = [str(part) for part in problem["loc"] if part != _OF_THE_KEY]
    shown = redacted(".".join(path))
    if problem["type"] == "missing":
        field = field_at(path)
        description = "" if field is None else field.description
        return f"{shown}: is not set (environment: {variable_of(path)})" + (
            f"; it is {description}" if description else ""
        )
    where = next((name for name, layer in layers.items() if _holds(layer, path)), None)
    place = f" ({where})" if where else ""
    if problem["type"] == "extra_forbidden":
        if shown in _NOW:
            return f"{shown}{place}: is now {_NOW[shown]}"
        if path[0] == "apply" and path[-1] in _GONE:
            return (
                f"{shown}{place}: is gone; every batch is merged at once, and no view is needed. "
                "Take it out, and see how-to/upgrade about tables that a view shows"
            )
        closest = _closest(path)
        advice = f"; did you mean {closest}?" if closest else ""
        return f"{shown}{place}: is not a setting{advice}"
    if problem["type"] == "model_type":
        return f"{shown}{place}: must be a section with {', '.join(_settings_at(path))}"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{shown}{place}: {message[:1].lower()}{message[1:]}"


def no_section(path: Sequence[str], layer: str) -> str:
    """The message that a layer has another value where a section should be."""
    keys = _settings_at(list(path))
    shown = ".".join(path)
    return (
        f"{shown} ({layer}): must be a section with {', '.join(keys)}, like "
        f"{path[-1]}: {{{keys[0]}: …}}"
    )


def _settings_at(path: list[str]) -> list[str]:
    section = section_at(path)
    return [] if section is None else list(keys_of(section))


def _holds(layer: Mapping[str, Any], path: list[str]) -> bool:
    value: Any = layer
    for key in path:
        if not isinstance(value, Mapping):
            break
        if key not in value:
            return False
        value = value[key]
    return True


def _closest(path: list[str]) -> str | None:
    """The setting that was probably meant: in this section, or of this name in another one."""
    *parents, key = path
    beside = get_close_matches(key, _settings_at(parents), n=1)
    if beside:
        return ".".join([*parents, beside[0]])
    places = {path[-1]: ".".join(path) for path in reversed(all_paths())}
    elsewhere = get_close_matches(key, list(places), n=1, cutoff=0.8)
    return places[elsewhere[0]] if elsewhere else None
