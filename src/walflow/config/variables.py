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
    """The file's values, with the variables that its texts name.

    What ``beside`` has too is left as it is: it counts instead. All variables that are missing
    are told at once in one ConfigError.
    """
    missing: dict[str, list[str]] = {}
    filled = _mapping(values, environment, beside, (), missing)
    if missing:
        told = [f"{', '.join(places)}: {name}" for name, places in missing.items()]
        raise ConfigError(
            "The settings file names variables that the environment does not have: "
            + "; ".join(told)
            + ".",
            hint=f"Set them: {' '.join(f'export {name}=…' for name in missing)} "
            "(write $${ where a ${ is meant as it stands).",
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
        # Empty variables say nothing, as everywhere.
        text = environment.get(name) if _NAME.fullmatch(name) else None
        if not text:
            missing.setdefault(name, []).append(".".join(path))
            return ""
        if _is_encoded(value, found.start()):
            return quote(text, safe="")
        if path[-1] == "uri" and "://" not in value and "=" in value:
            given = conninfo_value(text)
            # Whoever wrote the quotes himself gets what belongs between them.
            return given if value[: found.start()].endswith("=") else given[1:-1]
        return text

    return _PLACE.sub(variable, value)


def _is_encoded(text: str, at: int) -> bool:
    """Whether this place of a text is one of a URI where other characters than letters and digits
    have to be percent-encoded: user and password, or the parameters."""
    begin = _URI.match(text)
    if begin is None or at < begin.end():
        return False
    return at < text.rfind("@") or -1 < text.find("?") < at
