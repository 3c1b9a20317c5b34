"""Settings from a YAML file, the environment and the command line, one over the other.

``${NAME}`` in the file is the value of an environment variable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml
from pydantic import ValidationError

from walflow.config.keys import ENVIRONMENT_PREFIX, in_sections, keys_of, values_as_sections
from walflow.config.problems import described, no_section
from walflow.config.settings import Settings
from walflow.config.tls import conninfo_value
from walflow.errors import ConfigError

__all__ = ["load_settings"]


def load_settings(
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    noted: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings from overrides, environment and file (if any); the first one wins. ``noted``: the
    settings of the pipeline's last start, which all others override.

    Overrides are nested like the file, or have dotted keys (``{"source.uri": …}``); None means
    not given. One ConfigError has all problems, and never shows a value.
    """
    environment = os.environ if environment is None else environment
    said, set_there = _from_overrides(overrides or {}), _from_environment(environment)
    written = {} if file is None else in_sections(_from_file(file))
    layers = {
        "command line": said,
        "environment": set_there,
        # Values that are overridden need no variables.
        f"file {file}": _filled_in(written, environment, beside=_merge(set_there, said)),
        "pipeline.json beside the log": noted or {},
    }
    # Sections begin empty, so that a missing setting inside is reported, not the section.
    merged: dict[str, Any] = {key: {} for key, section in keys_of(Settings).items() if section}
    for layer in reversed(layers.values()):
        merged = _merge(merged, layer)
    no_sections = {
        path: name for name, layer in layers.items() for path in values_as_sections(layer)
    }
    problems = [no_section(path, layer) for path, layer in no_sections.items()]
    try:
        settings = Settings.model_validate(merged)
        if not problems:
            return settings
    except ValidationError as error:
        problems += [
            described(problem, layers)
            for problem in error.errors(include_url=False)
            if not any(problem["loc"][: len(path)] == path for path in no_sections)
        ]
    count = "A setting is" if len(problems) == 1 else f"{len(problems)} settings are"
    raise ConfigError(
        "\n  ".join([f"{count} missing or wrong:", *problems]),
        hint="Give a setting like batch.max_size in the YAML file (batch: {max_size: 100}), in the "
        "environment (WALFLOW_BATCH__MAX_SIZE=100) or on the command line, which wins.",
    )


def _from_file(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"The settings file {file} cannot be read: {error.strerror}.",
            hint="Check the path and the rights of the file.",
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"The settings file {file} is not UTF-8 text.") from None
    except yaml.YAMLError as error:
        # Only the place and the reason: the parser's own message quotes the line.
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        raise ConfigError(
            f"The settings file {file} is not valid YAML{place}: "
            f"{getattr(error, 'problem', None) or 'it has characters that YAML forbids'}.",
            hint="Quote values that contain a colon, a # or a @, or begin with a *.",
        ) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"The settings file {file} has no mapping at its top.",
            hint="It should begin with lines like `name: shop` and `source:`.",
        )
    return _given(content)


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """``WALFLOW_A__B=v`` as ``{a: {b: v}}``; an empty value means not given.

    Other variables may have the prefix too. One that names no section, and is not similar to the
    name of a setting, is ignored.
    """
    known = keys_of(Settings)
    found: dict[str, Any] = {}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or not value:
            continue
        path = variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        if len(path) == 1 and not get_close_matches(path[0], known, cutoff=0.8):
            continue
        found = _merge(found, in_sections(_nested(path, value)))
    return found


def _from_overrides(overrides: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in overrides.items():
        found = _merge(found, in_sections(_nested(key.split("."), value)))
    return _given(found)


def _nested(path: list[str], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return value  # type: ignore[no-any-return]  # a path has at least one key


def _given(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Without the Nones (an empty `log:` in YAML, an option that was not used)."""
    return {
        str(key): _given(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


_PLACE = re.compile(r"\$(?:\$(?=\{)|\{([^{}]*)\})")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_URI = re.compile(r"[a-z][a-z0-9+.\-]*://", re.IGNORECASE)


def _filled_in(
    values: Mapping[str, Any], environment: Mapping[str, str], beside: Mapping[str, Any]
) -> dict[str, Any]:
    """The file's values, with the values of the variables in its texts.

    Values that ``beside`` overrides stay unchanged. One ConfigError names all missing variables.
    """
    missing: dict[str, list[str]] = {}
    filled = _mapping(values, environment, beside, (), missing)
    if missing:
        listed = [f"{', '.join(places)}: {name}" for name, places in missing.items()]
        raise ConfigError(
            "The settings file uses variables that are not in the environment: "
            + "; ".join(listed)
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
