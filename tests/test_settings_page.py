"""The page of settings, and the schema for editors, are what the model says."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from walflow.config import Settings, load_settings
from walflow.config.keys import all_paths, field_at, keys_of, section_at
from walflow.config.reference import settings_page
from walflow.config.schema import settings_schema

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "reference" / "settings.md"
SCHEMA = DOCS / "walflow.schema.json"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_page(), (
        "run: .venv/bin/python -m walflow.config.reference > docs/reference/settings.md"
    )


def test_every_setting_is_on_it_and_described() -> None:
    paths = [path for path in all_paths() if section_at(path) is None]
    assert len(paths) > 50
    assert ("source", "tls", "mode") in paths
    page = settings_page()
    for path in paths:
        field = field_at(path)
        assert field is not None
        assert field.description, path
        assert page.count(f"| `{'.'.join(path)}`<br>`WALFLOW_{'__'.join(path).upper()}` |") == 1


def test_what_is_refused_is_said() -> None:
    (version,) = [line for line in settings_page().splitlines() if "format_version`<br>" in line]
    assert "| whole number, at least 2, at most 3 |" in version


def test_its_example_is_a_pipeline(tmp_path: Path) -> None:
    example = settings_page().partition("```yaml")[2].partition("```")[0]
    file = tmp_path / "pipeline.yaml"
    file.write_text(example, encoding="utf-8")
    settings = load_settings(file, {}, {})
    assert settings.mapping.tables == yaml.safe_load(example)["mapping"]["tables"]


def test_the_schema_for_editors_is_current() -> None:
    text = settings_schema()
    assert SCHEMA.read_text(encoding="utf-8") == text, (
        "run: .venv/bin/python -m walflow.config.schema > docs/walflow.schema.json"
    )
    schema = json.loads(text)
    assert set(schema["properties"]) == set(keys_of(Settings))
    for section in (schema, *schema["$defs"].values()):
        assert section["additionalProperties"] is False
        for key, field in section["properties"].items():
            assert "anyOf" in field or field.get("description"), key
