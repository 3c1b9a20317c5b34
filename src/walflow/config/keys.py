"""The names of settings, as users write them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from walflow.config.settings import Settings

__all__ = [
    "ENVIRONMENT_PREFIX",
    "SHORT",
    "all_paths",
    "field_at",
    "in_sections",
    "keys_of",
    "section_at",
    "values_as_sections",
    "variable_of",
]

ENVIRONMENT_PREFIX = "WALFLOW_"
SHORT = "uri"
"""A text in place of a section is its setting of this name: ``source: postgresql://…``."""


def keys_of(model: type[BaseModel]) -> dict[str, type[BaseModel] | None]:
    """The keys of a section as users write them, each with its section if it is one."""
    keys: dict[str, type[BaseModel] | None] = {}
    for name, field in model.model_fields.items():
        kind: Any = field.annotation
        is_section = isinstance(kind, type) and issubclass(kind, BaseModel)
        keys[field.alias or name] = kind if is_section else None
    return keys


def all_paths() -> list[tuple[str, ...]]:
    """The paths of all settings and sections, outer ones first, except those of single tables."""
    found: list[tuple[str, ...]] = [()]
    for path in found:
        section = section_at(path)
        if section is not None:
            found += [(*path, key) for key in keys_of(section)]
    return found[1:]


def section_at(path: Iterable[str]) -> type[BaseModel] | None:
    """The section at this path; the empty path is all settings. A name that the user chose is one
    part of a path, even if it contains dots."""
    model: type[BaseModel] | None = Settings
    parts = iter(path)
    for key in parts:
        if model is None:
            return None
        each = _section_of_each(model, key)
        if each is None:
            model = keys_of(model).get(key)
        else:
            model = None if next(parts, None) is None else each
    return model


def _section_of_each(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """The section of each name in this mapping, if it is a mapping to sections."""
    field = _field(model, key)
    if field is None or get_origin(field.annotation) is not dict:
        return None
    kind = get_args(field.annotation)[1]
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def field_at(path: Sequence[str]) -> FieldInfo | None:
    section = section_at(path[:-1])
    return None if section is None else _field(section, path[-1])


def in_sections(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with short forms of sections written out."""
    sections = keys_of(Settings)
    return {
        key: {SHORT: value}
        if isinstance(value, str) and (section := sections.get(key)) and SHORT in keys_of(section)
        else value
        for key, value in values.items()
    }


def values_as_sections(
    values: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """The paths where a layer has another value in place of a section. After the layers are
    merged, this could not be seen any more."""
    section = section_at(path)
    for key, kind in ({} if section is None else keys_of(section)).items():
        if kind is None or key not in values:
            continue
        if isinstance(inner := values[key], Mapping):
            yield from values_as_sections(inner, (*path, key))
        else:
            yield (*path, key)


def _field(model: type[BaseModel], key: str) -> FieldInfo | None:
    fields = model.model_fields.items()
    return next((field for name, field in fields if (field.alias or name) == key), None)


def variable_of(path: Iterable[str]) -> str:
    """The environment variable of a setting."""
    return ENVIRONMENT_PREFIX + "__".join(path).upper()
