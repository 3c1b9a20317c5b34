"""docs/reference/settings.md is what the model says."""

from __future__ import annotations

from pathlib import Path

import yaml

from walflow.config import load_settings
from walflow.config.keys import all_paths, field_at, section_at
from walflow.config.reference import settings_page

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "settings.md"


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


def test_its_example_is_a_pipeline(tmp_path: Path) -> None:
    example = settings_page().partition("```yaml")[2].partition("```")[0]
    file = tmp_path / "pipeline.yaml"
    file.write_text(example, encoding="utf-8")
    settings = load_settings(file, {}, {})
    assert settings.mapping.tables == yaml.safe_load(example)["mapping"]["tables"]
