"""``${NAME}`` in a settings file: the value of an environment variable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from walflow.config.tls import conninfo_value
from walflow.errors import ConfigError

__all__ = ["filled_in"]

_PLACE = re.compile(r"\$(?:\$(?=\{)|\{([^{}]*)\})")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_URI = re.compile(r"[a-z][a-z0-9+.\-]*://", re.IGNORECASE)


def filled_in(
    values: Mapping[str, Any], environment: Mapping[str, str], beside: Mapping[str, Any]
) -> dict[str, Any]:
    """The file's values, with the values of the variables in its texts.

    Values that ``beside`` overrides stay unchanged. One ConfigError names all missing variables.
    """
    missing: dict[str, list[str]] = {}
    filled = _mapping(values, environment, beside, (), missing)
    if missing:
        told = [f"{', '.join(places)}: {name}" for name, places in missing.items()]
        raise ConfigError(
            "The settings file uses variables that are not in the environment: "
            + "; ".join(told)
            + ".",
            hint=f"Set them: {' '.join(f'export {name}=…' for name in missing)} "
            "(write $${ for a literal ${).",
        )
    return filled


def _mapping(
    values: Mapping[str, Any],
    environment: Mapping[str, str],
    beside: Mapping[str, Any],
    path: tuple[str, ...],
    missing: dict[str, list[str]],
) -> dict[str, Any]:
    filled: dict[str, Any] = {}
    for key, value in values.items():
        other = beside.get(key)
        if isinstance(value, Mapping) and (other is None or isinstance(other, Mapping)):
            filled[key] = _mapping(value, environment, other or {}, (*path, key), missing)
        elif other is not None:
            filled[key] = value
        elif isinstance(value, list):
            filled[key] = [_value(item, environment, (*path, key), missing) for item in value]
        else:
            filled[key] = _value(value, environment, (*path, key), missing)
    return filled


def _value(
    value: Any, environment: Mapping[str, str], path: tuple[str, ...], missing: dict[str, list[str]]
) -> Any:
    if not isinstance(value, str):
        return value

    def variable(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return "$"
        # An empty variable counts as not set, as everywhere.
        text = environment.get(name) if _NAME.fullmatch(name) else None
        if not text:
            missing.setdefault(name, []).append(".".join(path))
            return ""
        if _is_encoded(value, found.start()):
            return quote(text, safe="")
        if path[-1] == "uri" and "://" not in value and "=" in value:
            given = conninfo_value(text)
            # If the file has the quotes already, only the text between them is inserted.
            return given if value[: found.start()].endswith("=") else given[1:-1]
        return text

    return _PLACE.sub(variable, value)


def _is_encoded(text: str, at: int) -> bool:
    """Whether the place is a part of a URI in which special characters must be percent-encoded:
    user and password, or the parameters."""
    begin = _URI.match(text)
    if begin is None or at < begin.end():
        return False
    return at < text.rfind("@") or -1 < text.find("?") < at
