"""The names of settings, as users write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from walflow.config.settings import Settings

__all__ = ["ENVIRONMENT_PREFIX", "field_at", "keys_of", "section_at", "variable_of"]

ENVIRONMENT_PREFIX = "WALFLOW_"


def keys_of(model: type[BaseModel]) -> dict[str, type[BaseModel] | None]:
    """The keys of a section as users write them, with the section behind each, if it is one."""
    keys: dict[str, type[BaseModel] | None] = {}
    for name, field in model.model_fields.items():
        kind: Any = field.annotation
        is_section = isinstance(kind, type) and issubclass(kind, BaseModel)
        keys[field.alias or name] = kind if is_section else None
    return keys


def section_at(path: Iterable[str]) -> type[BaseModel] | None:
    """The section of this path; an empty one is all settings."""
    model: type[BaseModel] | None = Settings
    for key in path:
        model = None if model is None else keys_of(model).get(key)
    return model


def field_at(path: Sequence[str]) -> FieldInfo | None:
    section = section_at(path[:-1])
    fields = {} if section is None else section.model_fields
    return next((f for name, f in fields.items() if (f.alias or name) == path[-1]), None)


def variable_of(path: Iterable[str]) -> str:
    """The environment variable of a setting."""
    return ENVIRONMENT_PREFIX + "__".join(path).upper()
