"""The command line and a file are two ways to say the same."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from walflow.cli import walflow
from walflow.config import Settings

SAID: dict[str, Any] = {
    "name": "shop",
    "source": {
        "uri": "postgresql://app:secret@db/shop",
        "publication": "mine",
        "slot": "a_slot",
        "create_publication": True,
        "tls": {"mode": "require"},
    },
    "destination": {"uri": "delta:///lake", "options": {"catalog": "spark_catalog"}},
    "tables": {"include": ["public.*", "shop.orders"], "exclude": ["*.audit_*"]},
    "batch": {"max_size": 5000, "max_fill_ms": 100},
    "log": {"folder": "/log"},
    "apply": {"tables": {"public.orders": {"mode": "history"}}},
    "mapping": {"tables": {"public.orders": "sales.orders"}},
    "metrics_address": "127.0.0.1:9000",
    "max_table_sync_workers": 2,
}

LINE = [
    *("--name", "shop", "--from", "postgresql://app:secret@db/shop", "--publication", "mine"),
    *("--slot", "a_slot", "--create-publication", "--to", "delta:///lake", "--log", "/log"),
    *("--table", "public.*", "--table", "shop.orders", "--exclude-table", "*.audit_*"),
    *("--metrics", "127.0.0.1:9000", "--set", "source.tls.mode=require"),
    *("--set", "destination.options.catalog=spark_catalog", "--set", "batch.max_size=5000"),
    *("--set", "batch.max_fill_ms=100", "--set", "max_table_sync_workers=2"),
    *("--set", 'apply.tables={"public.orders": {"mode": "history"}}'),
    *("--set", 'mapping.tables={"public.orders": "sales.orders"}'),
]


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a pipeline would be run with."""
    seen: list[Settings] = []

    def run(settings: Settings, **_: object) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr(import_module("walflow.cli.run"), "_run", run)

    def settings_of(*arguments: str | Path) -> Settings:
        walflow.main(["run", *map(str, arguments)], standalone_mode=False)
        return seen.pop()

    return settings_of


def test_line_file_and_environment_give_the_same_settings(
    settings_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(yaml.safe_dump(SAID), encoding="utf-8")
    by_file, by_line = settings_of(file), settings_of(*LINE)
    assert by_file == by_line
    assert by_file != settings_of("--from", "postgresql://db/shop", "--to", "delta:///lake")
    assert by_line == settings_of("--file", file, *LINE)
    for variable, value in {
        "NAME": "shop",
        "SOURCE__URI": "postgresql://app:secret@db/shop",
        "SOURCE__PUBLICATION": "mine",
        "SOURCE__SLOT": "a_slot",
        "SOURCE__CREATE_PUBLICATION": "true",
        "SOURCE__TLS__MODE": "require",
        "DESTINATION__URI": "delta:///lake",
        "DESTINATION__OPTIONS": '{"catalog": "spark_catalog"}',
        "TABLES__INCLUDE": "public.*, shop.orders",
        "TABLES__EXCLUDE": "*.audit_*",
        "BATCH__MAX_SIZE": "5000",
        "BATCH__MAX_FILL_MS": "100",
        "LOG__FOLDER": "/log",
        "APPLY__TABLES": '{"public.orders": {"mode": "history"}}',
        "MAPPING__TABLES": '{"public.orders": "sales.orders"}',
        "METRICS_ADDRESS": "127.0.0.1:9000",
        "MAX_TABLE_SYNC_WORKERS": "2",
    }.items():
        monkeypatch.setenv(f"WALFLOW_{variable}", value)
    assert by_line == settings_of()
