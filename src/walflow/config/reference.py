"""The page of all settings, generated from the model: ``python -m walflow.config.reference``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from inspect import cleandoc
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from walflow.config.keys import field_at, keys_of, section_at, variable_of

__all__ = ["settings_page"]

_INTRODUCTION = """\
# Settings

<!-- Made by `python -m walflow.config.reference > docs/reference/settings.md`; a test compares. -->

A setting can be given in three places. The command line wins over the environment, and that over
the file.

| where | example |
|---|---|
| command line | `walflow run --set batch.max_fill_ms=100` |
| environment | `WALFLOW_BATCH__MAX_FILL_MS=100` |
| file (`walflow run pipeline.yaml`) | `batch: {max_fill_ms: 100}` |

```yaml
name: shop
source:
  uri: postgresql://user:password@host/shop
  create_publication: true
destination:
  uri: iceberg:///data/lake
tables:
  include: [public.*]
  exclude: [public.audit_*]
mapping:
  tables: {public.orders: sales.orders}
```

On the command line and in the environment, write a list as `public.orders, sales.*`, and a mapping
as a JSON object: `{"public.orders": "sales.orders"}`. An empty value means the default. Secrets,
and passwords in URIs, are never shown or logged.

In the file, `${NAME}` stands for an environment variable, so that secrets need not be in the file:
`uri: postgresql://app:${SHOP_PASSWORD}@host/shop`. In a URI's user, password and parameters the
value is percent-encoded. Write `$${` for a literal `${`.

`source`, `destination` and `store` can be a URI alone: `source: postgresql://app@host/shop`.

Editors check and complete the file with its JSON schema,
[walflow.schema.json](../walflow.schema.json), which `walflow init` writes beside it.
"""

_PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}

_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def settings_page() -> str:
    """All settings with variable, type, default and description, as Markdown."""
    lines = [_INTRODUCTION, "## The pipeline", "", *_table(())]
    for path in _sections(()):
        section = section_at(path)
        assert section is not None
        lines += ["", f"## `{'.'.join(path)}`", "", cleandoc(str(section.__doc__)), ""]
        lines += _table(path)
    return "\n".join(lines) + "\n"


def _sections(path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths of all sections in order, each before those inside it."""
    section = section_at(path)
    assert section is not None
    for key, inner in keys_of(section).items():
        if inner is not None:
            yield (*path, key)
            yield from _sections((*path, key))


def _table(section: tuple[str, ...]) -> Iterator[str]:
    """The table of one section's settings."""
    model = section_at(section)
    assert model is not None
    paths = [(*section, key) for key, inner in keys_of(model).items() if inner is None]
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
        for name, words in _LIMITS.items()
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
    """The text, escaped for Markdown except in code."""
    code = False
    shown = []
    for character in text:
        code ^= character == "`"
        escaped = character == "|" or (character in "<*_" and not code)
        shown.append(f"\\{character}" if escaped else character)
    return "".join(shown)


if __name__ == "__main__":
    sys.stdout.write(settings_page())
