"""The page of all settings, made of the model: ``python -m walflow.config.reference``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from walflow.config.keys import field_at, keys_of, variable_of
from walflow.config.settings import Settings

__all__ = ["settings_page"]

_INTRODUCTION = """\
# Settings

<!-- Made by `python -m walflow.config.reference > docs/reference/settings.md`; a test compares. -->

A setting can be said in three places. What the command line says wins over the environment, and
that over the file.

| where | `log.fill_ms` there |
|---|---|
| command line | `walflow run --set log.fill_ms=100` |
| environment | `WALFLOW_LOG__FILL_MS=100` |
| file (`walflow run pipeline.yaml`) | `log: {fill_ms: 100}` |

```yaml
name: shop
source:
  uri: postgresql://user:password@host/shop
  tables: [public.orders, public.items]
  create_publication: true
destination:
  uri: iceberg:///data/lake
mapping:
  tables: {public.orders: sales.orders}
```

On the command line and in the environment a list is written `public.orders, public.items`, and a
mapping as a JSON object: `{"public.orders": "sales.orders"}`. What is empty says nothing, and the
default stands. Secrets, and passwords in URIs, are never shown or logged.
"""

_PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}


def settings_page() -> str:
    """All settings with variable, type, default and description, as Markdown."""
    sections = {key: model for key, model in keys_of(Settings).items() if model is not None}
    alone = [key for key in keys_of(Settings) if key not in sections]
    lines = [_INTRODUCTION, "## Of the pipeline", "", *_table([[key] for key in alone])]
    for section, model in sections.items():
        lines += ["", f"## `{section}`", "", str(model.__doc__), ""]
        lines += _table([[section, key] for key in keys_of(model)])
    return "\n".join(lines) + "\n"


def _table(paths: list[list[str]]) -> Iterator[str]:
    yield "| Setting, environment variable | Type | Default | |"
    yield "|---|---|---|---|"
    for path in paths:
        field = field_at(path)
        assert field is not None
        cells = (
            f"`{'.'.join(path)}`<br>`{variable_of(path)}`",
            _type(field.annotation, field.metadata),
            _default(path[-1], field),
            _plain(field.description or ""),
        )
        yield f"| {' | '.join(cells)} |"


def _type(annotation: Any, metadata: list[Any]) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0], metadata)
    if origin in (Union, UnionType):
        (given,) = (argument for argument in arguments if argument is not NoneType)
        return _type(given, metadata)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        return "list"
    if origin is dict:
        return "mapping"
    if annotation is SecretStr:
        return "text (secret)"
    limits = "".join(
        f", {words} {getattr(limit, name)}"
        for limit in metadata
        for name, words in (("ge", "at least"), ("gt", "above"))
        if hasattr(limit, name)
    )
    return _PLAIN[annotation] + limits


def _default(key: str, field: FieldInfo) -> str:
    if field.is_required():
        return "**must be set**"
    value = field.get_default(call_default_factory=True)
    if value is None or value == () or isinstance(value, Mapping | BaseModel):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if key.endswith("_bytes"):
        return f"`{value}` ({value >> 20} MiB)"
    return f"`{value}`"


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, but for the code in it."""
    code = False
    shown = []
    for character in text:
        code ^= character == "`"
        escaped = character == "|" or (character in "<*_" and not code)
        shown.append(f"\\{character}" if escaped else character)
    return "".join(shown)


if __name__ == "__main__":
    sys.stdout.write(settings_page())
