"""The JSON schema of a settings file, for editors: ``python -m walflow.config.schema``."""

from __future__ import annotations

import json
import sys
from typing import Any

from walflow.config.keys import SHORT, keys_of
from walflow.config.settings import Settings

__all__ = ["settings_schema"]


def settings_schema() -> str:
    """All settings with types, limits, defaults and descriptions, as JSON."""
    schema = Settings.model_json_schema(by_alias=True)
    schema["title"] = "walflow settings"
    schema["description"] = "A pipeline of walflow: tables of Postgres, kept equal elsewhere."
    for section in (schema, *schema["$defs"].values()):
        # What the file leaves out may be said on the command line or in the environment.
        section.pop("required", None)
        section["properties"] = {
            key: _property(field) for key, field in section["properties"].items()
        }
    for key, kind in keys_of(Settings).items():
        if kind is not None and SHORT in keys_of(kind):
            short = {"type": "string", "description": f"{key}.{SHORT}, if nothing else is said."}
            schema["properties"][key]["anyOf"].append(short)
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _property(field: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in field:
        # Its settings have their defaults, and a section may stand there empty.
        return {"anyOf": [{"$ref": field["$ref"]}, {"type": "null"}]}
    return {name: value for name, value in field.items() if name != "title"}


if __name__ == "__main__":
    sys.stdout.write(settings_schema())
